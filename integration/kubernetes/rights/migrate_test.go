package rights_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers"
	"github.com/manxnet/manx/controllers/kubeapi"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/rights"
	"github.com/manxnet/manx/integration/kubernetes/twonodes"
)

// migrating gives the controllers the rights to move all objects to the newer group.
var migrating = installation{"kubernetes-migration", "", []string{"calicoAPIGroup=both", "datastoreMigration=true"},
	form.V1, true, nil}

// migrationRights returns the documents of that installation, and the rights that others do not have.
func migrationRights(t *testing.T) (documents [][]byte, more []rights.Grant) {
	t.Helper()
	documents, more = migrating.objects(t)
	without := migrating
	without.values = without.values[:1]
	_, has := without.objects(t)
	return documents, slices.DeleteFunc(more, func(g rights.Grant) bool { return slices.Contains(has, g) })
}

// migrants has an object of each kind: its resource in the older group, name and spec.
var migrants = [][3]string{{"tiers", "x", "{}"}, {"felixconfigurations", "x", "{}"}, {"bgpconfigurations", "x", "{}"},
	{"kubecontrollersconfigurations", "default", `{"controllers":{}}`}, {"ippools", "x", `{"cidr":"10.77.0.0/24"}`},
	{"ipreservations", "x", "{}"}, {"bgppeers", "x", "{}"}, {"bgpfilters", "x", "{}"},
	{"globalnetworkpolicies", "x", "{}"}, {"networkpolicies", "x", "{}"}, {"stagedglobalnetworkpolicies", "x", "{}"},
	{"stagednetworkpolicies", "x", "{}"}, {"stagedkubernetesnetworkpolicies", "x", "{}"}, {"hostendpoints", "x", "{}"},
	{"globalnetworksets", "x", "{}"}, {"networksets", "x", "{}"}, {"ipamconfigs", "x", `{"strictAffinity":true}`},
	{"blockaffinities", "n1-10-77-0-0-26",
		`{"cidr":"10.77.0.0/26","deleted":"false","node":"n1","state":"confirmed","type":"host"}`},
	{"ipamblocks", "10-77-0-0-26", `{"affinity":"host:n1","allocations":[],"attributes":[],"cidr":"10.77.0.0/26",
		"strictAffinity":false,"unallocated":[]}`},
	{"ipamhandles", "good", `{"block":{},"deleted":false,"handleID":"good"}`},
	{"caliconodestatuses", "x", `{"node":"n1"}`}}

// migrant is a cluster in which an administrator migrates objects.
type migrant struct {
	*testing.T
	s *apiserver.Server
}

// each calls do with each object: its path in a group, its name and its spec.
func (m migrant) each(g form.Group, do func(path, kind, name, spec string)) {
	for _, o := range migrants {
		for _, info := range model.Kinds() {
			older, ok := form.CustomResource(form.V1, info.Kind)
			if !ok || older.Plural != o[0] {
				continue
			}
			r, _ := form.CustomResource(g, info.Kind)
			path := "/apis/" + string(g) + "/" + r.Plural
			if r.Namespaced {
				path = "/apis/" + string(g) + "/namespaces/default/" + r.Plural
			}
			do(path, r.Kind, o[1], o[2])
			break
		}
	}
}

func (m migrant) post(path, apiVersion, kind, name, spec string) {
	m.Helper()
	m.s.Request(m.T, http.MethodPost, path, fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},
		"spec":%s}`, apiVersion, kind, name, spec))
}

const asked = "/apis/migration.projectcalico.org/v1beta1/datastoremigrations"

func (m migrant) ask() {
	m.Helper()
	m.post(asked, "migration.projectcalico.org/v1beta1", "DatastoreMigration", "v1-to-v3", `{"type":"APIServerToCRDs"}`)
}

// becomes waits until the migration has a phase and a text in its status.
func (m migrant) becomes(phase, text string) {
	m.Helper()
	until(m.T, phase+": "+text, func() error {
		raw := m.s.Request(m.T, http.MethodGet, asked+"/v1-to-v3", nil)
		if !bytes.Contains(raw, []byte(`"phase":"`+phase+`"`)) || !bytes.Contains(raw, []byte(text)) {
			return fmt.Errorf("%s", raw)
		}
		return nil
	})
}

// withdraw deletes the migration, and waits for the end of that.
func (m migrant) withdraw() {
	m.Helper()
	m.s.Request(m.T, http.MethodDelete, asked+"/v1-to-v3", nil)
	until(m.T, "the migration is taken away", func() error {
		raw, err := m.s.Try(m.Context(), m.T, http.MethodGet, asked+"/v1-to-v3", nil)
		if err == nil {
			return fmt.Errorf("%s", raw)
		}
		return nil
	})
}

func (m migrant) kubectl(args ...string) {
	m.Helper()
	out, err := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), append(args, "--kubeconfig",
		m.s.Kubeconfig(m.T, apiserver.Admin))...).CombinedOutput()
	if err != nil {
		m.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// control runs the controllers with the account of the chart.
func (m migrant) control() *controllers.Manager {
	m.Helper()
	config := m.s.Config(apiserver.Admin)
	config.BearerToken = m.s.AccountToken(m.T, namespace, "manx-controllers", "")
	store, err := kubernetes.OpenREST(m.Context(), kubernetes.Config{LeaseNamespace: namespace}, config, zap.NewNop())
	must(m.T, err)
	kube, err := kubeapi.New(config)
	must(m.T, err)
	manager := controllers.New(controllers.Config{Node: "n1", Store: store, Kube: kube, InKubernetes: true,
		Log: zap.NewNop(), CheckInterval: 100 * time.Millisecond, Drain: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(m.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = manager.Run(ctx) }()
	m.Cleanup(func() { cancel(); <-done; must(m.T, store.Close()) })
	return manager
}

// Without the chart's datastoreMigration the leader says which value is missing, and does nothing else.
func TestMigrateWithoutRights(t *testing.T) {
	t.Parallel()
	m := migrant{t, apiserver.Start(t)}
	m.kubectl("create", "-f", "../../../deploy/migration/definition.yaml")
	m.s.InstallCRDs(t, form.V1)
	m.s.InstallCRDs(t, form.V3)
	without := migrating
	without.values = without.values[:1]
	documents, _ := without.objects(t)
	for _, d := range documents {
		twonodes.Create(t, m.s, d)
	}
	m.post("/apis/"+string(form.V1)+"/clusterinformations", string(form.V1), "ClusterInformation", "default", "{}")
	manager := m.control()
	m.ask()
	until(t, "the leader says why it does nothing", func() error {
		text := manager.State().Migration
		if !strings.Contains(text, "may not update datastoremigrations/status.migration.projectcalico.org. The value "+
			"datastoreMigration=true of the chart gives all rights") {
			return fmt.Errorf("%q", text)
		}
		return nil
	})
	if raw := m.s.Request(t, http.MethodGet, asked+"/v1-to-v3", nil); bytes.Contains(raw, []byte("finalizers")) ||
		bytes.Contains(raw, []byte("phase")) {
		t.Errorf("it begins: %s", raw)
	}
}

const service = "/apis/apiregistration.k8s.io/v1/apiservices/v3.projectcalico.org"

// setService hands the newer group to another server.
func (m migrant) setService(metadata, spec string) {
	m.Helper()
	m.s.Request(m.T, http.MethodPatch, service, fmt.Appendf(nil, `{"metadata":%s,"spec":%s}`, metadata, spec))
}

// The controllers move all objects with the rights of the chart's datastoreMigration, take two migrations back before,
// and use each right.
func TestMigrate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, policy := filepath.Join(dir, "audit.log"), filepath.Join(dir, "policy.yaml")
	must(t, os.WriteFile(policy, []byte(rights.Policy(rights.Controllers)), 0o600))
	m := migrant{t, apiserver.Start(t, "--audit-policy-file="+policy, "--audit-log-path="+log,
		"--audit-log-mode=blocking-strict")}
	m.kubectl("create", "-f", "../../../deploy/crds/projectcalico.org/ipamhandles.yaml", "-f",
		"../../../deploy/migration/definition.yaml")
	m.s.InstallCRDs(t, form.V1)
	m.s.InstallCRDs(t, form.V3)
	documents, more := migrationRights(t)
	for _, d := range documents {
		twonodes.Create(t, m.s, d)
	}
	m.post("/apis/"+string(form.V1)+"/clusterinformations", string(form.V1), "ClusterInformation", "default", "{}")
	m.each(form.V1, func(path, kind, name, spec string) { m.post(path, string(form.V1), kind, name, spec) })
	m.each(form.V3, func(path, kind, name, _ string) {
		m.post(path, string(form.V3), kind, name, `{"other":1,"block":{},"handleID":"good"}`)
	})
	m.control()

	// Calico's API server has the newer group, and all objects differ.
	m.setService(`{"labels":null}`, `{"service":{"name":"calico-api","namespace":"default"},"caBundle":null,
		"insecureSkipTLSVerify":true}`)
	m.ask()
	m.becomes("WaitingForConflictResolution", "The datastore is locked. 21 objects differ")
	m.withdraw()
	raw := m.s.Request(t, http.MethodGet, service, nil)
	if !bytes.Contains(raw, []byte("calico-api")) {
		t.Errorf("Calico's API server does not have the group again: %s", raw)
	}

	// The newer group refuses one object in the middle.
	m.s.Request(t, http.MethodDelete, service, nil)
	until(t, "the objects that differ are deleted", func() (err error) {
		m.each(form.V3, func(path, _, name, _ string) {
			if _, gone := m.s.Try(t.Context(), t, http.MethodDelete, path+"/"+name, nil); gone == nil ||
				!strings.Contains(gone.Error(), "not found") {
				err = fmt.Errorf("%s/%s: %v", path, name, gone)
			}
		})
		return err
	})
	const bad = "/apis/" + string(form.V1) + "/ipamhandles"
	m.post(bad, string(form.V1), "IPAMHandle", "bad", `{"block":{},"deleted":false,"handleID":"bad"}`)
	m.kubectl("patch", "customresourcedefinition", "ipamhandles.projectcalico.org", "--type=json", "-p",
		`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations",`+
			`"value":[{"rule":"self.handleID != 'bad'","message":"not today"}]}]`)
	m.ask()
	m.becomes("Migrating", "not today")
	m.withdraw()

	m.s.Request(t, http.MethodDelete, bad+"/bad", nil)
	m.ask()
	m.becomes("Complete", "All agents use")
	m.withdraw()

	text, err := os.ReadFile(log)
	must(t, err)
	calls, err := rights.Calls(bytes.NewReader(text), nil)
	must(t, err)
	for _, c := range rights.Denied(calls) {
		t.Errorf("denied: %v", c)
	}
	table, err := rights.NewTable(rights.Rows, rights.Migration)
	must(t, err)
	for _, g := range rights.Unused(table.Of(rights.Migrate, more), calls) {
		t.Errorf("granted and not used: %v", g)
	}
}
