package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/cni/install"
	"github.com/manxnet/manx/integration/kubernetes/fill"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// sandbox is the time of a runtime from the kubelet's event of a pod to the ADD: processes and namespaces.
const sandbox = 200 * time.Millisecond

// BenchmarkKubernetesCNI measures an ADD and a DEL of a pod of Kubernetes with policy and routes. The round trip to the
// API is a millisecond. It reports the processor time of the plugin's process and of manxd.
func BenchmarkKubernetesCNI(b *testing.B) {
	k := newKubernetes(b, fill.Cluster{Nodes: 4, Pods: 30, Namespaces: 3, Policies: 9, Services: 3, Local: 5},
		time.Millisecond, "--controllers=off")
	k.run(b)
	pid, plugin := k.node.Manxd().PID(), k.installed(b)
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes",
		"nodename_file": filepath.Join(k.node.Dir, "nodename"), "manxd_socket": k.node.Socket(),
		"endpoint_status_dir": filepath.Join(k.node.Dir, "endpoint-status"), "log_level": "info",
		"ipam": map[string]any{"type": "calico-ipam"}, "policy": map[string]any{"type": "k8s"},
	})
	if err != nil {
		b.Fatal(err)
	}
	var cost [2]lab.Cost
	var work [2]time.Duration
	for i := range b.N + 1 { // the first one takes a block
		pod := k.newPod(b, i)
		time.Sleep(sandbox) // as long as a runtime needs before it calls the plugin
		for v, verb := range []string{"ADD", "DEL"} {
			used := cpu(pid)
			c := k.cni(b, plugin, verb, pod, conf)
			if i > 0 {
				cost[v].Wall, cost[v].CPU, work[v] = cost[v].Wall+c.Wall, cost[v].CPU+c.CPU, work[v]+cpu(pid)-used
			}
		}
	}
	for v, verb := range []string{"add", "del"} {
		b.ReportMetric(milliseconds(cost[v].Wall)/float64(b.N), verb+"-ms")
		b.ReportMetric(milliseconds(cost[v].CPU)/float64(b.N), verb+"-plugin-cpu-ms")
		b.ReportMetric(milliseconds(work[v])/float64(b.N), verb+"-manxd-cpu-ms")
	}
	b.Log("load:", load())
	b.ReportMetric(0, "ns/op")
}

// newPod creates a pod of this node and its network namespace.
func (k *kube) newPod(b *testing.B, i int) string {
	b.Helper()
	name := fmt.Sprint("new-", i)
	off := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "app-1"}},
		Spec: corev1.PodSpec{
			NodeName: fill.Measured, ServiceAccountName: "app", AutomountServiceAccountToken: &off,
			Containers: []corev1.Container{{Name: "app", Image: "app"}}}}
	if _, err := k.API.CoreV1().Pods("ns-0").Create(b.Context(), pod, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	if err := namespace.Add(k.namespace(name)); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = namespace.Remove(k.namespace(name)) })
	return name
}

func (k *kube) namespace(pod string) string { return k.node.Namespace + "-" + pod }

// cni calls the plugin as a container runtime does. Another program that entered the namespace before the plugin would
// be a part of the cost.
func (k *kube) cni(b *testing.B, plugin, verb, pod string, conf []byte) lab.Cost {
	b.Helper()
	var out bytes.Buffer
	cmd := exec.Command(plugin)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+fmt.Sprintf("%064x", pod), "CNI_IFNAME=eth0",
		"CNI_NETNS=/run/netns/"+k.namespace(pod), "CNI_PATH="+filepath.Dir(plugin),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=ns-0;K8S_POD_NAME="+pod)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &out, &out
	var began time.Time
	var err error
	if inside := namespace.Inside(k.node.Namespace, func() {
		began = time.Now()
		err = cmd.Start()
	}); inside != nil {
		b.Fatal(inside)
	}
	if err == nil {
		err = cmd.Wait()
	}
	took := time.Since(began)
	if err != nil {
		b.Fatalf("%s of %s: %v: %s\n%s", verb, pod, err, out.String(), k.node.Log())
	}
	return lab.Cost{Wall: took, CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
}

// installed is the plugin where a runtime looks for it. The linker's own file has its pages one by one in the page
// cache, so that its start costs more than that of a copy.
func (k *kube) installed(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	if _, err := (install.Binaries{From: k.Spec.Bin, To: []string{dir}}).Install(); err != nil {
		b.Fatal(err)
	}
	return filepath.Join(dir, "calico")
}
