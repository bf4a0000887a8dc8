package dataplane

import (
	"context"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// host is a network namespace.
type host struct {
	t    testing.TB
	name string
}

// newHost has the uplink eth0 (10.1.0.5/24, fd01::5/64) and a default route by 10.1.0.1.
func newHost(t testing.TB) *host {
	t.Helper()
	h := bareHost(t)
	h.ip("link add eth0 type veth peer name eth0p")
	h.ip("link set eth0p up")
	h.ip("link set eth0 up")
	h.ip("addr add 10.1.0.5/24 dev eth0")
	h.ip("addr add fd01::5/64 dev eth0 nodad")
	h.ip("route add default via 10.1.0.1")
	return h
}

// bareHost is a network namespace with lo alone.
func bareHost(t testing.TB) *host {
	t.Helper()
	return &host{t, namespace.New(t, "manxagent")}
}

func (h *host) ip(args string) string {
	h.t.Helper()
	return run(h.t, append([]string{"ip", "-n", h.name}, strings.Fields(args)...)...)
}

// pod adds a workload's interface.
func (h *host) pod(name string) {
	h.t.Helper()
	h.ip("link add " + name + " type veth peer name " + name + "p")
	h.ip("link set " + name + "p up")
	h.ip("link set " + name + " up")
}

func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (h *host) open() *kernel.Conn {
	h.t.Helper()
	c, err := kernel.Open("/run/netns/" + h.name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// agent starts an agent; stop ends it before the end of the test.
func (h *host) agent() (a *HostAgent, stop func()) {
	h.t.Helper()
	a = New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.NewNop(),
		MTUFile: filepath.Join(h.t.TempDir(), "mtu")})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	h.t.Cleanup(stop)
	return a, stop
}

// main is the main table of a family in the output of ip(8), without the kernel's own routes.
func (h *host) main(family string) []string {
	h.t.Helper()
	var lines []string
	for line := range strings.Lines(h.ip(family + " route show table main")) {
		line = strings.Join(strings.Fields(line), " ")
		if !strings.Contains(line, "proto kernel") && !strings.Contains(line, "proto ra") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// eventually waits until the main table of a family is as expected.
func (h *host) eventually(family string, want ...string) {
	h.t.Helper()
	slices.Sort(want)
	var have []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if have = h.main(family); slices.Equal(have, want) {
			return
		}
	}
	h.t.Fatalf("routes are\n  %s\nwant\n  %s", strings.Join(have, "\n  "), strings.Join(want, "\n  "))
}

// settle waits until the agent has nothing to do.
func settle(t testing.TB, a *HostAgent) {
	t.Helper()
	waitFor(t, "the agent to settle", func() bool {
		empty := a.inbox.empty() // before the lock: a batch taken from it is done once we hold the lock
		a.mu.Lock()
		defer a.mu.Unlock()
		listed, _ := a.routes.Listed()
		return empty && a.host.Known() && listed &&
			!slices.ContainsFunc(a.routes.Statuses(), func(s route.Status) bool { return s.Phase == reconcile.Pending })
	})
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

func object(k model.Key, v any) *model.Object { return &model.Object{Key: k, Value: v} }

func nodeObject(name, ip4, ip6 string) *model.Object {
	return object(model.ResourceKey(model.KindNode, name),
		&model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: ip4, IPv6Address: ip6}}})
}

func poolObject(name, cidr, ipip string) *model.Object {
	p := &model.IPPool{}
	p.Spec.CIDR = cidr
	p.Spec.IPIPMode = v3.IPIPMode(ipip)
	return object(model.ResourceKey(model.KindIPPool, name), p)
}

func blockObject(cidr string, state model.AffinityState) *model.Object {
	k := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "node-1", CIDR: netip.MustParsePrefix(cidr)})
	return object(k, &model.BlockAffinity{State: state})
}

func endpointObject(name, node, iface string, nets ...string) *model.Object {
	return object(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name},
		&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: node, InterfaceName: iface, IPNetworks: nets}})
}

func learned(prefix string, metric uint32, hops ...string) locrib.Route {
	l := locrib.Route{Prefix: netip.MustParsePrefix(prefix), Metric: metric}
	for _, h := range hops {
		l.Paths = append(l.Paths, locrib.Path{NextHop: netip.MustParseAddr(h)})
	}
	return l
}

// baseObjects has node-1 with one pool of each family, a block of each, and a workload at each.
func baseObjects() model.Set {
	return model.NewSet(
		nodeObject("node-1", "10.1.0.5/24", "fd01::5/64"), nodeObject("node-2", "10.1.0.9/24", "fd01::9/64"),
		poolObject("v4", "10.244.0.0/16", ""), poolObject("v6", "fd10::/48", ""),
		blockObject("10.244.1.0/26", model.StateConfirmed), blockObject("fd10::1:0/122", ""),
		blockObject("10.244.9.0/26", model.StatePending), blockObject("10.244.8.7/32", model.StateConfirmed),
		endpointObject("a", "node-1", "cali1", "10.244.1.7/32", "fd10::1:7/128"),
		endpointObject("b", "node-2", "cali2", "10.244.2.7/32"),
	)
}

// The whole of a small node, in both families.
func TestNodeRoutes(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	a, stop := h.agent()
	a.set(baseObjects())
	a.Learn([]locrib.Route{
		learned("10.244.2.0/26", 1024, "10.1.0.9"),
		learned("10.244.3.0/26", 1024, "10.2.0.9"), // behind the gateway
		learned("10.244.4.0/26", 1024, "10.1.0.9", "10.1.0.10"),
		learned("fd10::2:0/122", 1024, "fd01::9"),
		learned("fd10::4:0/122", 1024, "fd01::9", "fd01::10"),
		learned("fd10::5:0/122", 1024, "fd02::9"),  // no route
		learned("10.244.1.0/26", 1024, "10.1.0.9"), // own block
		learned("10.244.6.0/26", 1024, "10.1.0.5"), // own address
		learned("10.244.1.9/32", 512, "10.1.0.9"),  // borrowed
	})
	want4 := []string{
		"default via 10.1.0.1 dev eth0",
		"10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.1.9 via 10.1.0.9 dev eth0 proto bird metric 512",
		"10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
		"10.244.3.0/26 via 10.1.0.1 dev eth0 proto bird metric 1024",
		"10.244.4.0/26 proto bird metric 1024", "nexthop via 10.1.0.9 dev eth0 weight 1",
		"nexthop via 10.1.0.10 dev eth0 weight 1",
	}
	h.eventually("-4", want4...)
	h.eventually("-6",
		"fd10::1:7 dev cali1 proto 80 metric 1024 pref medium",
		"blackhole fd10::1:0/122 dev lo proto bird metric 1024 pref medium",
		"fd10::2:0/122 via fd01::9 dev eth0 proto bird metric 1024 pref medium",
		"fd10::4:0/122 proto bird metric 1024 pref medium", "nexthop via fd01::9 dev eth0 weight 1",
		"nexthop via fd01::10 dev eth0 weight 1",
	)
	reasons := map[string]string{}
	for _, s := range a.Routes() {
		if s.Phase == reconcile.Blocked {
			reasons[s.Prefix.String()] = s.Reason
		}
	}
	for prefix, want := range map[string]string{
		"fd10::5:0/122": "no route to next hop fd02::9",
		"10.244.6.0/26": "next hop 10.1.0.5 is this node itself",
	} {
		if reasons[prefix] != want {
			t.Errorf("%s: reason %q, want %q", prefix, reasons[prefix], want)
		}
	}
	stop()
	h.eventually("-4", want4...)
}

// countRouteEvents counts the changes of the main tables from now on.
func countRouteEvents(t *testing.T, c *kernel.Conn) func() int64 {
	t.Helper()
	var n atomic.Int64
	ready, done := make(chan struct{}), make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		done <- c.Watch(ctx, func(events []kernel.Event) {
			for _, e := range events {
				switch e.Type {
				case kernel.EventResync:
					close(ready)
				case kernel.EventRoute, kernel.EventRouteGone:
					n.Add(1)
				}
			}
		})
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return n.Load
}
