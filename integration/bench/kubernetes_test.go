package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/fill"
	"github.com/manxnet/manx/integration/namespace"
)

// thousand is the cluster of the goals.
var thousand = fill.Cluster{Nodes: 1000, Pods: 30_000, Namespaces: 300, Policies: 1000, Services: 2000}

// part returns one of n parts of a cluster: a smaller cluster of the same shape.
func part(c fill.Cluster, n int) fill.Cluster {
	c.Nodes, c.Pods, c.Namespaces, c.Policies, c.Services = c.Nodes/n, c.Pods/n, c.Namespaces/n, c.Policies/n,
		c.Services/n
	return c
}

func local(c fill.Cluster) fill.Cluster         { c.Local = 30; return c }
func withPlainPods(c fill.Cluster) fill.Cluster { c.Plain = true; return c }

// BenchmarkKubernetes measures manxd beside a real kube-apiserver with a large cluster: from its start until it is
// ready, a time without changes, ten changes of pods' status a second, and ten pods a second that are created and
// deleted. The line to the apiserver counts bytes; the apiserver's audit log counts requests. KUBERNETES_STARTS is the
// number of starts of manxd (3), KUBERNETES_SECONDS the duration of each steady part (60).
func BenchmarkKubernetes(b *testing.B) {
	for _, c := range []struct {
		name        string
		cluster     fill.Cluster
		controllers string // on: this node runs the controllers of the cluster; auto: another one does
	}{
		{"1000-nodes", thousand, "off"},
		{"1000-nodes,candidate", thousand, "auto"},
		{"1000-nodes,30-pods-here", local(thousand), "off"},
		{"1000-nodes,plain-pods", withPlainPods(thousand), "off"},
		{"500-nodes", part(thousand, 2), "off"},
		{"250-nodes", part(thousand, 4), "off"},
		{"1000-nodes,controllers", thousand, "on"},
	} {
		b.Run(c.name, func(b *testing.B) {
			k := newKubernetes(b, c.cluster, 0, "--controllers="+c.controllers)
			for range number(b, "KUBERNETES_STARTS", 3) * b.N {
				k.start(b)
			}
			k.measureSteady(b, "idle", func(context.Context, time.Duration) error { return nil })
			k.measureSteady(b, "changes", func(ctx context.Context, d time.Duration) error {
				return fill.Steadily(ctx, 10, d, func(ctx context.Context, i int) error {
					return k.Change(ctx, k.Local+i)
				})
			})
			k.measureSteady(b, "lives", func(ctx context.Context, d time.Duration) error {
				return fill.Steadily(ctx, 10, d, func(ctx context.Context, i int) error {
					return k.Life(ctx, k.Pods+i, 2*time.Second)
				})
			})
			k.report(b)
		})
	}
}

// node is manxd's user.
const nodeUser = "system:serviceaccount:kube-system:manx-node"

// kube is a node beside an apiserver.
type kube struct {
	*site
	*fill.Filled
	server *apiserver.Server
	line   *apiserver.Line
	args   []string
	starts float64
	sum    map[string]float64 // over all starts
	best   map[string]float64 // of all starts: on a busy machine the shortest times are the most significant
}

func (k *kube) reportBest(name string, v float64) {
	if was, ok := k.best[name]; !ok || v < was {
		k.best[name] = v
	}
}

// load returns the load of the machine.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// newKubernetes fills an apiserver behind a line with a delay. The apiserver has streaming lists.
func newKubernetes(b *testing.B, c fill.Cluster, away time.Duration, args ...string) *kube {
	b.Helper()
	useEtcd(b)
	return newKubernetesOnAnyEtcd(b, c, away, args...)
}

func newKubernetesOnAnyEtcd(b *testing.B, c fill.Cluster, away time.Duration, args ...string) *kube {
	b.Helper()
	s := newSite(b)
	audit := filepath.Join(s.node.Dir, "audit")
	k := &kube{site: s, server: apiserver.Start(b, "--audit-policy-file="+writePolicy(b), "--audit-log-path="+audit),
		sum: map[string]float64{}, best: map[string]float64{}}
	k.server.AddUsers(b, nodeUser)
	config := k.server.Config(apiserver.Admin)
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	if err := fill.Definitions(ctx, config, "../../deploy/crds/crd.projectcalico.org"); err != nil {
		b.Fatal(err)
	}
	var err error
	if k.Filled, err = c.Fill(ctx, config, k.server.Etcd); err != nil {
		b.Fatal(err)
	}
	allow(b, k.API)
	if err := namespace.Inside(s.node.Namespace, func() { k.line = apiserver.NewLine(b, k.server.URL) }); err != nil {
		b.Fatal(err)
	}
	k.line.Delay = away / 2
	for i := range c.Local {
		k.plug(b, i)
	}
	if slices.Contains(args, "--controllers=auto") {
		k.lead(b)
	}
	k.args = append(args, "--datastore=kubernetes", "--kubeconfig="+k.server.KubeconfigAt(b, k.line.URL, nodeUser),
		"--no-default-pools")
	k.run(b) // for the objects that every cluster has
	s.node.Manxd().Kill()
	return k
}

// lead makes another node the leader of the controllers. It renews its lease until the benchmark ends.
func (k *kube) lead(b *testing.B) {
	b.Helper()
	leases := k.API.CoordinationV1().Leases(metav1.NamespaceSystem)
	holder, seconds := "another_1", int32(15)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "manx-controllers"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}}
	lease, err := leases.Create(b.Context(), lease, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Duration(seconds) * time.Second / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			if next, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
				lease = next
			}
		}
	}()
	b.Cleanup(func() { stop(); <-done })
}

// useEtcd has the apiserver use a current etcd: Debian 12's etcd lacks a feature that watches with initial events need.
func useEtcd(b *testing.B) {
	b.Helper()
	dir := b.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "etcd"), "go.etcd.io/etcd/server/v3")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// writePolicy has the apiserver log each request of the node once.
func writePolicy(b *testing.B) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "audit.yaml")
	text := fmt.Sprintf("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+
		"omitStages: [ResponseStarted, ResponseComplete, Panic]\n"+
		"rules:\n- {level: Metadata, users: [%q]}\n- {level: None}\n", nodeUser)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	return file
}

// allow gives the node all rights: the rights it needs are irrelevant here.
func allow(b *testing.B, api kubernetes.Interface) {
	b.Helper()
	_, err := api.RbacV1().ClusterRoleBindings().Create(b.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: nodeUser}},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
}

// plug makes the interface of a pod of this node.
func (k *kube) plug(b *testing.B, i int) {
	b.Helper()
	namespace, name := k.PodName(i)
	host, pod := conversion.InterfaceName("cali", namespace, name), fmt.Sprint("pod", i)
	for _, args := range [][]string{
		{"link", "add", host, "type", "veth", "peer", "name", pod}, {"link", "set", pod, "up"},
		{"link", "set", host, "up"},
	} {
		if _, err := k.node.Run("ip", args...); err != nil {
			b.Fatal(err)
		}
	}
}

func (k *kube) run(b *testing.B) {
	b.Helper()
	if err := k.node.StartManxd(k.args...); err != nil {
		b.Fatal(err)
	}
	if err := k.node.Ready(2 * time.Minute); err != nil {
		b.Fatalf("%v\n%s", err, k.node.Log())
	}
}

// settled is the time from manxd's start to the measurement of its memory: memory of a burst is freed by then.
const settled = 10 * time.Second

// start starts manxd and adds up the cost. The last started manxd keeps running.
func (k *kube) start(b *testing.B) {
	b.Helper()
	if k.starts > 0 {
		k.node.Manxd().Kill()
	}
	k.starts++
	bytes, requests, t0 := k.line.Received(), k.requests(b), time.Now()
	k.run(b)
	pid := k.node.Manxd().PID()
	ready, used := milliseconds(time.Since(t0)), milliseconds(cpu(pid))
	b.Logf("ready after %.0f ms with %.0f ms of the processor; load %s", ready, used, load())
	k.reportBest("ready-ms", ready)
	k.reportBest("ready-cpu-ms", used)
	time.Sleep(settled) // work left over from the start is part of its cost
	k.sum["start-MB"] += float64(k.line.Received()-bytes) / (1 << 20)
	k.sum["start-requests"] += float64(k.requests(b) - requests)
	k.sum["rss-MiB"] += statusMB(pid, "VmRSS")
	k.sum["peak-MiB"] += statusMB(pid, "VmHWM")
	k.sum["private-MiB"] += privateMB(pid)
	k.sum["anonymous-MiB"] += statusMB(pid, "RssAnon")
}

// requests returns the number of the node's requests.
func (k *kube) requests(b *testing.B) (n int) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(k.node.Dir, "audit"))
	if err != nil && !os.IsNotExist(err) {
		b.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e struct{ Stage string }
		if json.Unmarshal(line, &e) == nil && e.Stage == "RequestReceived" {
			n++
		}
	}
	return n
}

// measureSteady produces events for a while, and reports their cost for manxd.
func (k *kube) measureSteady(b *testing.B, name string, happen func(context.Context, time.Duration) error) {
	b.Helper()
	d := time.Duration(number(b, "KUBERNETES_SECONDS", 60)) * time.Second
	pid := k.node.Manxd().PID()
	received, requests, used, t0 := k.line.Received(), k.requests(b), cpu(pid), time.Now()
	if err := happen(b.Context(), d); err != nil {
		b.Fatal(err)
	}
	time.Sleep(d - time.Since(t0)) // the time that is measured
	took := time.Since(t0)
	b.ReportMetric(100*(cpu(pid)-used).Seconds()/took.Seconds(), name+"-cpu-%")
	b.ReportMetric(float64(k.line.Received()-received)/took.Seconds()/1024, name+"-KB/s")
	b.ReportMetric(float64(k.requests(b)-requests)/took.Seconds(), name+"-requests/s")
	b.ReportMetric(statusMB(pid, "VmRSS"), name+"-rss-MiB")
	b.ReportMetric(privateMB(pid), name+"-private-MiB")
	b.Logf("%s: %.2f %% of a processor; load %s", name, 100*(cpu(pid)-used).Seconds()/took.Seconds(), load())
}

// number returns the number in an environment variable.
func number(b *testing.B, name string, otherwise int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s=%s: want a positive number", name, text)
	}
	return n
}

func (k *kube) report(b *testing.B) {
	for name, v := range k.sum {
		b.ReportMetric(v/k.starts, name)
	}
	for name, v := range k.best {
		b.ReportMetric(v, name)
	}
	b.ReportMetric(0, "ns/op")
}
