package dataplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// everything that users see of interfaces that belong to no workload.
func (h *host) foreignState() string {
	h.t.Helper()
	var b strings.Builder
	for _, args := range []string{"-d link show dev eth0", "addr show dev eth0", "addr show dev lo",
		"-4 route show table all", "-6 route show table all", "rule show"} {
		b.WriteString(h.ip(args))
	}
	b.WriteString(run(h.t, "ip", "netns", "exec", h.name, "tc", "qdisc", "show"))
	for _, pattern := range []string{"ipv4/conf/eth0", "ipv4/conf/lo", "ipv4/conf/all", "ipv4/conf/default",
		"ipv4/neigh/eth0", "ipv6/conf/eth0"} {
		b.WriteString(run(h.t, "ip", "netns", "exec", h.name, "sh", "-c",
			"cd /proc/sys/net && grep -r . "+pattern+" 2>/dev/null | sort; true"))
	}
	return b.String()
}

// A WorkloadEndpoint that names an interface of the host changes nothing there, for any value of its fields. The reason
// is reported. A valid endpoint beside it works.
func TestWorkloadsCannotHaveTheHostsInterfaces(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	h.pod("tap1")
	files := filepath.Join(t.TempDir(), "endpoint-status")
	a := New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.NewNop(),
		EndpointStatusDir: func(string) string { return files }})
	start(t, a)
	node := nodeObject("node-1", "10.1.0.5/24", "fd01::5/64")
	objects := []*model.Object{node, endpointObject("node--1-k8s-good-eth0", "node-1", "cali1", "10.244.1.7/32",
		"fd00:244::7/128")}
	a.set(model.NewSet(objects...))
	a.synced(true, true)
	served := func(iface, address string) func() bool {
		return func() bool { return strings.Contains(h.ip("-4 route show"), address+" dev "+iface+" ") }
	}
	waitFor(t, "the route to the good workload", served("cali1", "10.244.1.7"))
	settle(t, a)
	waitFor(t, "the kernel to have checked its own addresses", func() bool {
		return strings.TrimSpace(h.ip("-6 addr show tentative")) == "" &&
			strings.Count(h.ip("-6 addr show scope link"), "inet6 fe80") == 6
	})
	before := h.foreignState()

	forged := []string{"eth0", "lo", "tunl0", "all", "default", "tap1"}
	for i, iface := range forged {
		o := endpointObject("node--1-k8s-"+iface+"-eth0", "node-1", iface, "10.244.9."+string(rune('1'+i))+"/32",
			"fd00:244::9"+string(rune('1'+i))+"/128")
		spec := &o.Value.(*model.WorkloadEndpoint).Spec
		spec.QoSControls = &model.QoSControls{IngressBandwidth: 1_000_000, EgressBandwidth: 1_000_000}
		spec.AllowSpoofedSourcePrefixes = []string{"0.0.0.0/0"}
		objects = append(objects, o)
	}
	a.set(model.NewSet(objects...))
	waitFor(t, "the refusals", func() bool { return len(a.Status().RefusedEndpoints) == len(forged) })
	settle(t, a)
	a.Resync()
	settle(t, a)
	if after := h.foreignState(); after != before {
		t.Errorf("the host's interfaces have changed:\n%s\nbefore:\n%s", after, before)
	}
	for _, n := range a.Status().RefusedEndpoints {
		if !strings.Contains(n.Text, "the endpoint gets no route, no rules and no settings: interfaceName ") ||
			n.Since.IsZero() {
			t.Errorf("%+v", n)
		}
	}
	if list, _ := os.ReadDir(files); len(list) != 1 {
		t.Errorf("status files are %v, want that of the good workload", list)
	}
	if !served("cali1", "10.244.1.7")() {
		t.Error("the good workload has lost its route")
	}

	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	felix.Spec.InterfacePrefix = "tap, t, a" // also with names that never belong to a workload
	a.set(model.NewSet(append(objects, model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"),
		felix))...))
	waitFor(t, "the route by tap1", served("tap1", "10.244.9.6"))
	waitFor(t, "the route by cali1 to go", func() bool { return !served("cali1", "10.244.1.7")() })
	if n := len(a.Status().RefusedEndpoints); n != len(forged) { // tap1 is not refused any more, cali1 is
		t.Errorf("%d endpoints are refused: %v", n, a.Status().RefusedEndpoints)
	}
}

// start runs an agent until the test ends.
func start(t *testing.T, a *HostAgent) {
	ctx, done := t.Context(), make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() { <-done })
}
