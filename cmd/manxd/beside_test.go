package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore/laststate"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// A daemon that finds a pod of calico-node on its host programs nothing, reports the remedy, and continues when the pod
// has ended. It reports a later pod, and then removes nothing.
func TestWaitsForCalicoNode(t *testing.T) {
	if os.Getenv("MANX_TEST_CALICO_NODE") == "" {
		runInNamespaces(t, "MANX_TEST_CALICO_NODE")
		return
	}
	dir := t.TempDir()
	d := daemonForTest(t, dir) // brings up the loopback interface
	api := apiserver.Start(t)
	admin, err := kubernetes.NewForConfig(api.Config(apiserver.Admin))
	must(t, err)
	d.options.datastore.kube.Kubeconfig = api.Kubeconfig(t, apiserver.Admin)
	_, err = admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{})
	must(t, err)
	pod := func(name, node string) {
		t.Helper()
		yes := true
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"k8s-app": "calico-node"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "calico-node",
				UID: "1", Controller: &yes}}},
			Spec: corev1.PodSpec{NodeName: node, HostNetwork: true,
				Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		p, err := admin.CoreV1().Pods("kube-system").Create(t.Context(), p, metav1.CreateOptions{})
		must(t, err)
		p.Status.Phase = corev1.PodRunning
		_, err = admin.CoreV1().Pods("kube-system").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		must(t, err)
	}
	remove := func(name string) {
		t.Helper()
		none := int64(0)
		must(t, admin.CoreV1().Pods("kube-system").Delete(t.Context(), name,
			metav1.DeleteOptions{GracePeriodSeconds: &none}))
	}
	// A tenant with the label keeps no node from starting.
	_, err = admin.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "innocent", Labels: map[string]string{"k8s-app": "calico-node"}}, Spec: corev1.PodSpec{NodeName: "n1",
		Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	must(t, err)
	pod("calico-node-far", "n2")
	pod("calico-node-here", "n1")
	// A state of an earlier run is no reason to begin beside calico-node.
	last := laststate.State{Node: d.deps.Node.Name, Origin: laststate.Origin{Type: d.options.datastore.kind},
		Objects: []*model.Object{
			model.NewObject(model.ResourceKey(model.KindNode, d.deps.Node.Name),
				&model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"}}})}}
	content, _, err := last.Encode()
	must(t, err)
	must(t, os.MkdirAll(d.options.datastore.dataDir, 0o700))
	must(t, os.WriteFile(d.options.datastore.lastStateFile(), content, 0o600))
	d.options.datastore.patience = 4 * time.Second // an API server of a busy machine answers within it
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "run", "manxd.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	w := operator{t, conn}
	w.await("readyz", func() string { return get("/readyz?verbose") },
		"[-]calico-node: calico-node is active on this host "+
			"(the pod kube-system/calico-node-here)", "kubectl label node n1 manx.io/network=manx", "goes on by itself")
	w.await("notices", w.notices, "calico-node: calico-node is active on this host")
	time.Sleep(9 * time.Second) // longer than the datastore has to be read
	if text := get("/metrics"); !strings.Contains(text, "manx_datastore_last_state_in_use 0") {
		t.Errorf("BGP began beside calico-node: %s", text)
	}
	if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil ||
		strings.Contains(string(out), "manx") {
		t.Errorf("a waiting daemon has programmed a table: %v %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "nodename")); err == nil {
		t.Error("a waiting daemon has registered its node")
	}
	remove("calico-node-here")
	w.await("readyz after the end of calico-node", func() string { return get("/readyz?verbose") },
		"[+]bgp", "[+]dataplane: the kernel has the wanted devices and routes",
		"[+]policy: the rules are in the kernel")
	if text := get("/readyz?verbose"); strings.Contains(text, "[-]calico-node") {
		t.Errorf("readyz: %s", text)
	}
	w.await("notices of a pod with the label", w.notices, "calico-node: the pod default/innocent has the label "+
		"k8s-app=calico-node on this node and does not count: its namespace is none of Calico's "+
		"(calico-system, kube-system)")
	pod("calico-node-late", "n1")
	w.await("notices of a later calico-node", w.notices, "(the pod kube-system/calico-node-late)")
	if text := get("/readyz"); strings.Contains(text, "[-]") {
		t.Errorf("a later calico-node makes a node unready: %s", text)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("end: %v", err)
	}
}

// Beside calico/node, its Felix serves the listeners that the settings of Felix want.
func TestNoListenersOfFelixBesideCalico(t *testing.T) {
	if p := newFelixListeners(deps.Deps{}, webOptions{}, calicoOptions{beside: true}); p != nil {
		t.Errorf("there is the part %s", p.Name())
	}
}
