package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/kubeapi"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation/validationtest"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// moving is a cluster whose objects move to the newer group, and a user with kubectl.
type moving struct {
	*finalized
	older, newer *kubernetes.Store
}

const asked = `{"apiVersion":"migration.projectcalico.org/v1beta1","kind":"DatastoreMigration",
	"metadata":{"name":"v1-to-v3"},"spec":{"type":"APIServerToCRDs"}}`

const migrations = "/apis/migration.projectcalico.org/v1beta1/datastoremigrations"

// newMoving has the definitions of both groups that Manx has, objects of each kind in the older group, and two nodes.
func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{finalized: &finalized{T: t, api: apiserver.Start(t)}}
	m.must("create", "-f", "../deploy/crds/crd.projectcalico.org")
	calicotest.Eventually(t, "the older group is served", func() bool {
		_, err := m.kubectl("get", "ipamhandles.crd.projectcalico.org,tiers.crd.projectcalico.org")
		return err == nil
	})
	var err error
	if m.kube, err = kubeapi.New(m.api.Config(apiserver.Admin)); err != nil {
		t.Fatal(err)
	}
	m.older = m.open(kubernetes.Config{Group: string(form.V1)})
	for _, node := range []string{"n1", "n2"} {
		m.api.Request(t, http.MethodPost, "/api/v1/nodes", map[string]any{"kind": "Node", "metadata": map[string]any{
			"name": node, "annotations": map[string]any{"projectcalico.org/IPv4Address": "10.0.0.1/24"}}})
	}
	m.fill()
	m.must("create", "-f", "../deploy/crds/projectcalico.org", "-f", "../deploy/migration/definition.yaml")
	m.newer = m.open(kubernetes.Config{Group: string(form.V3)})
	return m
}

func (m *moving) open(c kubernetes.Config) *kubernetes.Store {
	m.Helper()
	s, err := kubernetes.OpenREST(m.Context(), c, m.api.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { s.Close() }) //nolint:errcheck // the test is over
	return s
}

func (m *moving) must(args ...string) string {
	m.Helper()
	out, err := m.kubectl(args...)
	if err != nil {
		m.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// fill creates objects of each kind in the older group, and addresses of two nodes.
func (m *moving) fill() {
	m.Helper()
	m.api.Request(m.T, http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "ns"}})
	create := func(o *model.Object) error {
		if meta := o.Metadata(); meta != nil {
			meta.SetLabels(map[string]string{"rack": "1"})
		}
		_, err := m.older.Create(m.Context(), o)
		return err
	}
	for kind, value := range map[model.Kind]any{
		model.KindClusterInformation: &v3.ClusterInformation{Spec: v3.ClusterInformationSpec{ClusterGUID: "g",
			DatastoreReady: new(true)}},
		model.KindFelixConfiguration: &model.FelixConfiguration{},
		model.KindKubeControllers:    settings.Default(),
		model.KindGlobalNetworkSet:   &v3.GlobalNetworkSet{},
		model.KindIPAMConfiguration: &model.IPAMConfiguration{Spec: model.IPAMConfigurationSpec{
			AutoAllocateBlocks: new(true), MaxBlocksPerHost: 4}},
		model.KindCalicoNodeStatus: &v3.CalicoNodeStatus{Spec: v3.CalicoNodeStatusSpec{Node: "n1",
			UpdatePeriodSeconds: new(uint32(10)), Classes: []v3.NodeStatusClassType{v3.NodeStatusClassTypeBGP}}},
		model.KindIPReservation: &v3.IPReservation{Spec: v3.IPReservationSpec{
			ReservedCIDRs: []string{"10.244.9.0/29"}}},
		model.KindIPPool: &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.244.0.0/16"}},
	} {
		value.(metav1.Object).SetName("default")
		if err := create(model.NewObject(model.ResourceKey(kind, "default"), value)); err != nil {
			m.Fatal(err)
		}
	}
	a := ipam.New(m.older, nil, nil)
	for _, node := range []string{"n1", "n2"} {
		for i := range 3 {
			if _, err := a.AutoAssign(m.Context(), ipam.Request{Host: node, Num4: 1, Use: "Workload",
				Handle: fmt.Sprintf("k8s-pod-network.%s-%d", strings.ToUpper(node), i)}); err != nil {
				m.Fatal(err)
			}
		}
	}
	for n, row := range slices.Concat(validationtest.Objects(), validationtest.Policies()) {
		key, text := row.Document()
		if _, custom := form.CustomResource(form.V1, key.Kind); !custom || row.Want != "" ||
			key.Kind == model.KindClusterInformation {
			continue
		}
		list, err := document.Parse([]byte(text))
		if err != nil {
			m.Fatal(err)
		}
		o := list[0]
		if err = create(o); errors.Is(err, datastore.ErrExists) {
			o.Key.Name = fmt.Sprintf("%s-%d", o.Key.Name, n)
			o.Metadata().SetName(o.Key.Name)
			_ = create(o) // some names are fixed
		} else if err != nil {
			m.Fatal(row.Rule, err)
		}
	}
	for _, k := range model.Kinds() {
		if _, custom := form.CustomResource(form.V1, k.Kind); !custom {
			continue
		}
		if list, _, err := m.older.List(m.Context(), k.Kind, ""); err != nil || len(list) == 0 {
			m.Errorf("there is no %s: %v", k.Kind, err)
		}
	}
}

// everything returns the objects of a group by kind and name, with their specs.
func (m *moving) everything(s *kubernetes.Store) map[string]string {
	m.Helper()
	all := map[string]string{}
	for _, info := range model.Kinds() {
		if _, ok := form.CustomResource(form.V1, info.Kind); !ok || info.Kind == model.KindClusterInformation {
			continue
		}
		list, _, err := s.List(m.Context(), info.Kind, "")
		if err != nil {
			m.Fatal(err)
		}
		for _, o := range list {
			value := o.Value
			labels := map[string]string(nil)
			if o.Metadata() != nil {
				labels = o.Metadata().GetLabels()
				value = reflect.ValueOf(value).Elem().FieldByName("Spec").Interface()
			}
			text, err := json.Marshal([]any{value, labels})
			if err != nil {
				m.Fatal(err)
			}
			all[o.Key.String()] = string(text)
		}
	}
	return all
}

// checkSame fails the test unless both groups have the same objects.
func (m *moving) checkSame() {
	m.Helper()
	compare(m.T, m.everything(m.newer), m.everything(m.older))
}

// lead runs the controllers on a store until stop is called.
func (m *moving) lead(s *kubernetes.Store) (manager *Manager, stop func()) {
	manager = New(Config{Node: "n1", Store: s, Kube: m.kube, InKubernetes: true, Log: zap.NewNop(),
		CheckInterval: 100 * time.Millisecond, Drain: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(m.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = manager.Run(ctx) }()
	return manager, func() { cancel(); <-done }
}

// becomes waits until kubectl shows a phase, with a text in the message.
func (m *moving) becomes(phase, text string) {
	m.Helper()
	last := ""
	for end := time.Now().Add(50 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		last, _ = m.kubectl("get", "datastoremigration", "v1-to-v3", "-o",
			"jsonpath={.status.phase}: {.status.message}")
		if strings.HasPrefix(last, phase+": ") && strings.Contains(last, text) {
			return
		}
	}
	m.Fatalf("the migration is %q, want %q, %q", last, phase, text)
}

func (m *moving) ready(g form.Group) string {
	m.Helper()
	group, _, _ := strings.Cut(string(g), "/")
	return m.must("get", "clusterinformations."+group, "default", "-o", "jsonpath={.spec.datastoreReady}")
}

// A user creates a DatastoreMigration. When no calico-kube-controllers run, which would do it, the controllers copy all
// objects, also when they end in the middle of it; the nodes change to the newer group and report it; and the deletion
// deletes the older group.
func TestDatastoreMigration(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	before := m.everything(m.older)
	const others = "deployment/calico-kube-controllers"
	m.must("create", "deployment", "calico-kube-controllers", "-n", "kube-system", "--image=i")
	m.must("label", others, "-n", "kube-system", "k8s-app=calico-kube-controllers")
	manager, stop := m.lead(m.older)
	why := make(chan string, 2)
	first := kubernetes.Config{Node: "n2", MigrationInterval: 50 * time.Millisecond,
		Moved: func(s string) { why <- s }}
	s := m.open(first)
	go func() {
		for range s.Watch(t.Context(), model.KindClusterInformation) { // as every node
		}
	}()
	calicotest.Eventually(t, "the controllers rest", func() bool { return manager.State().Yielding != "" })
	m.api.Request(t, http.MethodPost, migrations, []byte(asked))
	time.Sleep(time.Second) // they would begin sooner
	if out := m.must("get", "datastoremigration", "v1-to-v3", "-o",
		"jsonpath={.status}{.metadata.finalizers}"); out != "" {
		t.Errorf("beside calico-kube-controllers: %s", out)
	}
	m.must("delete", others, "-n", "kube-system")
	m.becomes("Migrating", "")
	stop() // in the middle
	_, stop = m.lead(m.open(kubernetes.Config{}))
	m.becomes("Converged", "projectcalico.org/v3 is in use. Waiting for 2 of 2 nodes to report it: n1, n2")
	compare(t, m.everything(m.newer), before)
	m.checkSame()
	if older, newer := m.ready(form.V1), m.ready(form.V3); older != "false" || newer != "true" {
		t.Errorf("open are the older group %s, the newer group %s", older, newer)
	}
	out := m.must("get", "datastoremigrations")
	if !strings.Contains(out, "21 / 21") || !strings.Contains(out, "TYPES") {
		t.Errorf("kubectl shows %s", out)
	}
	stop() // the controllers change, too
	_, stop = m.lead(m.open(kubernetes.Config{}))
	defer func() { stop() }()

	// A running node is told to open the datastore again. One with a setting stays behind.
	select {
	case <-why:
	case <-time.After(20 * time.Second):
		t.Fatal("a node that ran before the migration began does not follow it")
	}
	open := func(node, group string) {
		m.open(kubernetes.Config{Node: node, Group: group, MigrationInterval: 50 * time.Millisecond,
			Moved: func(string) {}})
	}
	open("n2", "")
	open("n1", string(form.V1))
	m.becomes("Converged", "Waiting for 1 of 2 nodes to report it: n1")
	open("n1", "")
	m.becomes("Complete", "All agents use projectcalico.org/v3")
	m.must("delete", "datastoremigration", "v1-to-v3", "--timeout=40s")
	calicotest.Eventually(t, "the older group is gone", func() bool {
		out, err := m.kubectl("get", "crds", "-o", "name")
		return err == nil && !strings.Contains(out, ".crd.projectcalico.org")
	})
	compare(t, m.everything(m.newer), before)
}

// The deletion of a migration that waits for the user takes everything back, and a second one succeeds.
func TestDatastoreMigrationTakenBack(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	before := m.everything(m.older)
	m.create("globalnetworksets", "GlobalNetworkSet", "theirs", `{"nets":["192.0.2.0/24"]}`)
	if _, err := m.older.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindGlobalNetworkSet, "theirs"),
		&v3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}})); err != nil {
		t.Fatal(err)
	}
	manager, stop := m.lead(m.older)
	defer stop()
	m.api.Request(t, http.MethodPost, migrations, []byte(asked))
	m.becomes("WaitingForConflictResolution", "Nothing is locked yet. 1 objects differ")
	if out := m.must("get", "datastoremigration", "v1-to-v3", "-o", "jsonpath={.status.conditions[0].message}"); out !=
		"GlobalNetworkSet/theirs: projectcalico.org/v3 has it with another spec" {
		t.Errorf("the condition: %s", out)
	}
	m.must("delete", "datastoremigration", "v1-to-v3", "--timeout=30s")

	// The other way: an unusable node keeps the migration in Converged, which is too late; before that it is not.
	m.must("delete", "globalnetworkset.crd.projectcalico.org", "theirs")
	m.must("patch", "customresourcedefinition", "ipamhandles.projectcalico.org", "--type=json", "-p",
		`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations",`+
			`"value":[{"rule":"false","message":"not today"}]}]`)
	m.api.Request(t, http.MethodPost, migrations, []byte(asked))
	m.becomes("Migrating", "not today")
	if older, newer := m.ready(form.V1), m.ready(form.V3); older != "false" || newer != "false" {
		t.Errorf("open are the older group %s, the newer group %s", older, newer)
	}
	m.must("delete", "datastoremigration", "v1-to-v3", "--timeout=30s")
	if older := m.ready(form.V1); older != "true" {
		t.Errorf("open is the older group: %s", older)
	}
	compare(t, m.everything(m.older), before)
	left := m.everything(m.newer)
	delete(left, "GlobalNetworkSet theirs")
	if len(left) > 0 {
		t.Errorf("in the newer group are left: %v", left)
	}
	calicotest.Eventually(t, "the controllers work again", func() bool {
		return slices.Contains(manager.State().Controllers, "node-ipam")
	})
}
