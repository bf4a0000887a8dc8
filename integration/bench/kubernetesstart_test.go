package bench

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/manxnet/manx/integration/namespace"
)

// BenchmarkKubernetesStart compares starts beside an API server without streaming lists (etcd 3.4): of manxd, of
// another manxd in the folder KUBERNETES_OTHER, and of client-go's reflectors for the kinds that every follower of
// policy reads. KUBERNETES_STARTS is the number of turns (3).
func BenchmarkKubernetesStart(b *testing.B) {
	k := newKubernetesOnAnyEtcd(b, thousand, 0, "--controllers=off")
	bin := k.Spec.Bin
	programs := []struct {
		name  string
		start func() (pid int, stop func())
	}{
		{"manxd", func() (int, func()) { return k.startFrom(b, bin) }},
		{"reflectors", func() (int, func()) { return k.startReflectors(b) }},
	}
	if other := os.Getenv("KUBERNETES_OTHER"); other != "" {
		programs = append(programs, programs[0])
		programs[2].name, programs[2].start = "other", func() (int, func()) { return k.startFrom(b, other) }
	}
	figures := map[string][]float64{}
	for range number(b, "KUBERNETES_STARTS", 3) * b.N {
		for _, p := range programs {
			served, received, requests, t0 := cpu(k.server.PID()), k.line.Received(), k.requests(b), time.Now()
			pid, stop := p.start()
			ready, used := milliseconds(time.Since(t0)), milliseconds(cpu(pid))
			time.Sleep(3 * time.Second) // work left over from the start is part of its cost
			round := map[string]float64{"ready-ms": ready, "cpu-ms": used,
				"server-cpu-ms": milliseconds(cpu(k.server.PID()) - served), "peak-MiB": statusMB(pid, "VmHWM"),
				"MB": float64(k.line.Received()-received) / (1 << 20), "requests": float64(k.requests(b) - requests)}
			b.Logf("%s: %v; load %s", p.name, round, load())
			for name, v := range round {
				figures[p.name+"-"+name] = append(figures[p.name+"-"+name], v)
			}
			stop()
		}
	}
	for name, list := range figures {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], name)
	}
	b.ReportMetric(0, "ns/op")
}

// startFrom runs the manxd of a folder until it is ready.
func (k *kube) startFrom(b *testing.B, folder string) (pid int, stop func()) {
	b.Helper()
	k.Spec.Bin = folder
	k.run(b)
	return k.node.Manxd().PID(), k.node.Manxd().Kill
}

// startReflectors runs this program on the node with reflectors until they have read everything.
func (k *kube) startReflectors(b *testing.B) (pid int, stop func()) {
	b.Helper()
	kubeconfig := ""
	for _, a := range k.args {
		if file, ok := strings.CutPrefix(a, "--kubeconfig="); ok {
			kubeconfig = file
		}
	}
	cmd := namespace.Command(k.node.Namespace, os.Args[0])
	cmd.Env = append(os.Environ(), reflectors+"="+kubeconfig, "KUBE_FEATURE_WatchListClient=false")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		stop()
		b.Fatalf("reflectors: %q, %v", line, err)
	}
	return cmd.Process.Pid, stop
}

// reflectors is the environment variable that makes this program run reflectors, with a kubeconfig.
const reflectors = "MANX_BENCH_REFLECTORS"

func TestMain(m *testing.M) {
	if file := os.Getenv(reflectors); file != "" {
		if err := reflect(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// reflect runs reflectors until this process is killed, and prints a line when they have read everything.
func reflect(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	core := api.CoreV1().RESTClient()
	var synced []cache.InformerSynced
	for _, r := range []struct {
		by   cache.Getter
		name string
		of   runtime.Object
	}{
		{core, "nodes", &corev1.Node{}}, {core, "pods", &corev1.Pod{}}, {core, "namespaces", &corev1.Namespace{}},
		{core, "serviceaccounts", &corev1.ServiceAccount{}}, {core, "services", &corev1.Service{}},
		{api.DiscoveryV1().RESTClient(), "endpointslices", &discoveryv1.EndpointSlice{}},
		{api.NetworkingV1().RESTClient(), "networkpolicies", &networkingv1.NetworkPolicy{}},
	} {
		from := cache.NewListWatchFromClient(r.by, r.name, "", fields.Everything())
		informer := cache.NewSharedInformer(from, r.of, 0)
		go informer.Run(nil)
		synced = append(synced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(nil, synced...) {
		return errors.New("not in sync")
	}
	fmt.Println("in sync")
	select {}
}
