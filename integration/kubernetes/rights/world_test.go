package rights_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/rights"
	"github.com/manxnet/manx/integration/kubernetes/twonodes"
	"github.com/manxnet/manx/integration/lab"
	netns "github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/ports"
)

const patience = twonodes.Patience

var must, until = twonodes.Must, twonodes.Until

// installation is the chart with some values.
type installation struct {
	name        string
	lab         string // the beginning of its lab's name
	values      []string
	group       form.Group // of the custom resources; empty with etcd
	controllers bool
	templates   []string // of the chart; nil: those of a node and the controllers
}

// v1 is what the chart finds out by itself in a cluster that has this group.
const v1 = "calicoAPIGroup=" + string(form.V1)

var installations = []installation{
	{"kubernetes", "ra", []string{"bgp.passwordSecrets={tor}", v1}, form.V1, true, nil},
	{"kubernetes-v3", "rb", []string{"bgp.passwordSecrets={tor}", "calicoAPIGroup=" + string(form.V3)}, form.V3, true,
		nil},
	{"kubernetes-no-controllers", "rc", []string{"bgp.passwordSecrets={tor}", "controllers=off", v1}, form.V1, false,
		nil},
	{"etcd", "rd", []string{"bgp.passwordSecrets={tor}", "datastore=etcd"}, "", true, nil},
	{"etcd-no-controllers", "re", []string{"bgp.passwordSecrets={tor}", "datastore=etcd", "controllers=off"}, "",
		false, nil},
}

// leaving is the account of what runs last of Manx in a cluster.
var leaving = installation{"leaving", "", []string{"cleanup=true", "calicoAPIGroup=" + string(form.V3)}, form.V3, false,
	[]string{"cleanup"}}

// kubernetes reports whether Calico's objects are in the Kubernetes API.
func (i installation) kubernetes() bool { return i.group != "" }

// api returns the API group of the custom resources without its version, empty with etcd.
func (i installation) api() string {
	group, _, _ := strings.Cut(string(i.group), "/")
	return group
}

// objects are the accounts and roles of the chart, and their rights.
func (i installation) objects(t *testing.T) (documents [][]byte, grants []rights.Grant) {
	t.Helper()
	args := []string{"helm", "template", "manx", "../../../deploy/charts/manx", "--namespace", namespace}
	templates := i.templates
	if templates == nil {
		templates = []string{"rbac", "serviceaccounts", "admission"}
	}
	for _, name := range templates {
		args = append(args, "--show-only=templates/"+name+".yaml")
	}
	for _, v := range i.values {
		args = append(args, "--set="+v)
	}
	var out, errs bytes.Buffer
	cmd := exec.Command("../../deploy/tool", args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(),
		"HELM_DATA_HOME="+t.TempDir())
	if err := cmd.Run(); err != nil {
		t.Fatalf("helm: %v: %s", err, errs.String())
	}
	var all rights.Objects
	documents = twonodes.Documents(t, out.String())
	for _, raw := range documents {
		item := fmt.Appendf(nil, `{"items":[%s]}`, raw)
		var one rights.Objects
		must(t, json.Unmarshal(item, &one))
		all.Items = append(all.Items, one.Items...)
	}
	return documents, rights.Grants(all)
}

const (
	namespace = rights.Namespace
	daemon    = rights.Daemon
	plugin    = rights.Plugin
	alone     = rights.Controllers
)

// world is a node on which Manx runs with the rights of an installation, and an API server that logs its calls.
type world struct {
	*lab.Lab
	installation
	test   *testing.T // in which all steps are
	server *apiserver.Server
	log    string         // the audit log
	begin  int            // its length before manxd
	marked int            // its length when the step began
	needed []rights.Grant // the rights that the step is to use
	socket string         // the plugin's socket of manxd
	n      *lab.Node
	line   *apiserver.Line // from manxd to the API server
	kube   string          // the daemon's kubeconfig
	conf   string          // folder of the CNI configuration
	bin    string          // folder of the CNI plugin
}

func newWorld(t *testing.T, i installation, documents [][]byte) *world {
	t.Helper()
	bin := twonodes.Require(t, "ip", "nft")
	dir := t.TempDir()
	w := &world{installation: i, test: t, log: filepath.Join(dir, "audit.log"), conf: filepath.Join(dir, "net.d"),
		bin: filepath.Join(dir, "bin")}
	policy := filepath.Join(dir, "policy.yaml")
	must(t, errors.Join(os.Mkdir(w.conf, 0o755), os.Mkdir(w.bin, 0o755),
		os.WriteFile(policy, []byte(rights.Policy(daemon, plugin, alone)), 0o600)))
	w.server = apiserver.Start(t, "--audit-policy-file="+policy, "--audit-log-path="+w.log,
		"--audit-log-mode=blocking-strict")
	if i.kubernetes() {
		w.server.InstallCRDs(t, i.group)
		w.server.Define(t, apiserver.ClusterPolicies)
	}
	for _, d := range documents {
		w.create(t, d)
	}
	l := twonodes.New(t, i.lab, bin)
	w.Lab, w.n, w.socket = l, l.Nodes[0], l.Nodes[0].Socket()
	w.line = twonodes.Line(t, w.n, w.server.URL)
	for _, name := range []string{"n1", "n2"} {
		w.create(t, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, name))
	}
	w.kube = w.server.KubeconfigWith(t, w.line.URL, w.server.AccountToken(t, namespace, "manx-node", "n1"))
	awaitPolicies(t, w.server)
	w.begin = len(w.audit(t))
	w.request(t, http.MethodPatch, "/api/v1/nodes/n1/status", fmt.Sprintf(
		`{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, w.n.IP4))
	return w
}

// request sends a request of the administrator.
func (w *world) request(t *testing.T, verb, path, body string) []byte {
	t.Helper()
	return w.server.Request(t, verb, path, []byte(body))
}

// create stores an object of Kubernetes as the administrator.
func (w *world) create(t *testing.T, raw []byte) {
	t.Helper()
	twonodes.Create(t, w.server, raw)
}

// customPath returns the path of a custom resource.
func (w *world) customPath(plural string, rest ...string) string {
	return "/apis/" + string(w.group) + "/" + strings.Join(append([]string{plural}, rest...), "/")
}

// start runs manxd as the chart does.
func (w *world) start(t *testing.T) {
	t.Helper()
	args := []string{"--kubeconfig=" + w.kube, "--ip=autodetect", "--ip-autodetection-method=kubernetes-internal-ip",
		"--ipv4pool-cidr=10.10.0.0/24", "--ipv6pool-cidr=none", "--cni-conf-dir=" + w.conf, "--cni-net-dir=" + w.conf}
	if w.kubernetes() {
		args = append(args, "--datastore=kubernetes", "--calico-api-group="+string(w.group))
	} else {
		args = append(args, "--k8s-node-ref=n1")
		args = append(args, w.n.EmbedDatastore()...)
	}
	must(t, w.n.StartManxd(append(args, "--controllers=off")...))
	must(t, w.n.Ready(patience))
}

// startControllers runs the controllers as the chart does, until the test ends.
func (w *world) startControllers(t *testing.T) {
	t.Helper()
	dir, at := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", ports.Free(t, "127.0.0.1"))
	args := []string{"controllers", "--node-name=manx-controllers-0", "--run-dir=" + filepath.Join(dir, "run"),
		"--nodename-file=" + filepath.Join(dir, "nodename"), "--http-listen=" + at, "--wait-for-datastore",
		"--kubeconfig=" + w.server.KubeconfigWith(t, w.server.URL, w.server.AccountToken(t, namespace,
			"manx-controllers", "n1"))}
	if w.kubernetes() {
		args = append(args, "--datastore=kubernetes", "--calico-api-group="+string(w.group))
	} else {
		args = append(args, "--datastore=etcdv3", "--etcd-endpoints="+w.n.EtcdSocket())
	}
	must(t, os.Mkdir(filepath.Join(dir, "run"), 0o755))
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	cmd := exec.Command(filepath.Join(w.Spec.Bin, "manxd"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the controllers ended with %v", err)
		}
		if t.Failed() {
			raw, _ := os.ReadFile(log.Name())
			t.Logf("end of the log of the controllers:\n%s", twonodes.Tail(string(raw), 60))
		}
	})
	until(t, "the controllers", func() error {
		answer, err := http.Get("http://" + at + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close() //nolint:errcheck // the status is enough
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
}

func (w *world) stop(t *testing.T) {
	t.Helper()
	must(t, w.n.Manxd().Stop(patience))
}

// calls returns the calls in the audit log so far.
func (w *world) calls(t *testing.T) []rights.Call { return w.callsFrom(t, w.begin) }

// callsOfStep returns the calls since the mark.
func (w *world) callsOfStep(t *testing.T) []rights.Call { return w.callsFrom(t, w.marked) }

// unused returns the rights that the step has yet to use.
func (w *world) unused(t *testing.T) []rights.Grant { return rights.Unused(w.needed, w.callsOfStep(t)) }

func (w *world) mark(t *testing.T) { w.marked = len(w.audit(t)) }

// audit returns the log, up to its last whole line.
func (w *world) audit(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(w.log)
	if !errors.Is(err, os.ErrNotExist) {
		must(t, err)
	}
	return raw[:bytes.LastIndexByte(raw, '\n')+1]
}

func (w *world) callsFrom(t *testing.T, at int) []rights.Call {
	t.Helper()
	calls, err := rights.Calls(bytes.NewReader(w.audit(t)[at:]), nil)
	must(t, err)
	return calls
}

// cni runs the plugin for a pod's interface as a container runtime does, with the configuration that manxd wrote.
func (w *world) cni(t *testing.T, verb, pod string) error {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.conf, "10-calico.conflist"))
	must(t, err)
	var list struct {
		Name, CNIVersion string
		Plugins          []map[string]any
	}
	must(t, json.Unmarshal(raw, &list))
	conf := list.Plugins[0]
	for k, v := range map[string]any{"name": list.Name, "cniVersion": list.CNIVersion, "manxd_socket": w.socket,
		"nodename_file": filepath.Join(w.n.Dir, "nodename"), "ipam_lock_file": filepath.Join(w.n.Dir, "ipam.lock"),
		"endpoint_status_dir": filepath.Join(w.n.Dir, "endpoint-status"),
		"log_file_path":       filepath.Join(w.n.Dir, "cni.log")} {
		conf[k] = v
	}
	if !w.kubernetes() {
		conf["etcd_endpoints"] = w.n.EtcdSocket()
	}
	stdin, err := json.Marshal(conf)
	must(t, err)
	for from, to := range map[string]string{"manx-cni": "calico", "manx-cni-direct": "manx-cni-direct"} {
		err := os.Symlink(filepath.Join(w.Spec.Bin, from), filepath.Join(w.bin, to))
		if err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	ns := w.Spec.Name + "-" + pod
	cmd := netns.Command(w.n.Namespace, filepath.Join(w.bin, "calico"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+pod, "CNI_NETNS=/run/netns/"+ns,
		"CNI_IFNAME=eth0", "CNI_PATH="+w.bin, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("CNI %s of pod %s: %w: %s", verb, pod, err, out)
	}
	return nil
}

// addPod makes a pod on the node and has the plugin attach it.
func (w *world) addPod(t *testing.T, pod, annotations string) {
	t.Helper()
	must(t, w.tryPod(t, pod, annotations))
}

func (w *world) tryPod(t *testing.T, pod, annotations string) error {
	t.Helper()
	w.create(t, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"default",
		"annotations":{%s}},"spec":{"nodeName":"n1","terminationGracePeriodSeconds":0,
		"containers":[{"name":"c","image":"i"}]}}`, pod, annotations))
	ns := w.Spec.Name + "-" + pod
	must(t, netns.Add(ns))
	t.Cleanup(func() { _ = netns.Remove(ns) })
	return w.cni(t, "ADD", pod)
}

// deletePod has the plugin detach the pod, and deletes it.
func (w *world) deletePod(t *testing.T, pod string) {
	t.Helper()
	must(t, w.cni(t, "DEL", pod))
	w.request(t, http.MethodDelete, "/api/v1/namespaces/default/pods/"+pod, `{"gracePeriodSeconds":0}`)
}
