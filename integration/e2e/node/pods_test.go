package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

// testManyPods attaches many pods to one node at once, as after the loss of another, and detaches them at once.
func (c *cluster) testManyPods(t *testing.T) {
	const many = 30
	endpoints, handles := c.raw(t, endpointKeys), c.raw(t, "/calico/ipam/v2/handle/")
	before := len(ours(t, c.n2.Namespace, "-4"))
	pods, errs := make([]*lab.Pod, many), make([]error, many)
	start := time.Now()
	together(many, func(i int) { pods[i], errs[i] = c.n2.AddPod(fmt.Sprintf("many%d", i), lab.DualStack) })
	must(t, errors.Join(errs...))
	took := time.Since(start)

	owner := map[netip.Addr]string{}
	for _, p := range append(slices.Clone(pods), c.list()...) {
		if len(p.IPs) != 2 {
			t.Fatalf("%s has addresses %v, want one of each family", p.Name, p.IPs)
		}
		for _, a := range p.IPs {
			if other := owner[a]; other != "" {
				t.Errorf("%s and %s both have %s", p.Name, other, a)
			}
			owner[a] = p.Name
		}
	}
	together(many, func(i int) {
		for _, a := range pods[i].IPs {
			errs[i] = errors.Join(errs[i],
				lab.Eventually(limit, func() error { return lab.Ping(c.pods["n3-p1"].Namespace, a) }))
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	t.Logf("%d ADD at once: %.1f s; all reachable from another node after %.1f s", many, took.Seconds(),
		time.Since(start).Seconds())
	for _, p := range pods {
		for family, host := range map[string]netip.Addr{"-4": p.IP4(), "-6": p.IP6()} {
			if r := routes(t, c.n2.Namespace, family, host.String(), "proto", "80"); len(r) != 1 {
				t.Errorf("%s: routes to %s: %v, want one", p.Name, host, r)
			}
		}
	}

	start = time.Now()
	together(many, func(i int) { errs[i] = pods[i].Delete() })
	must(t, errors.Join(errs...))
	took = time.Since(start)
	eventually(t, func() error {
		for _, r := range append(routes(t, c.n2.Namespace, "-4", "proto", "80"),
			routes(t, c.n2.Namespace, "-6", "proto", "80")...) {
			if a, err := netip.ParseAddr(r.Dst); err == nil && slices.Contains(pods, c.podWith(pods, a)) {
				return fmt.Errorf("the route to %s is still there", a)
			}
		}
		return nil
	})
	t.Logf("%d DEL at once: %.1f s", many, took.Seconds())
	if now := c.raw(t, endpointKeys); len(now) != len(endpoints) {
		t.Errorf("%d WorkloadEndpoints, want %d as before", len(now), len(endpoints))
	}
	if now := c.raw(t, "/calico/ipam/v2/handle/"); len(now) != len(handles) {
		t.Errorf("%d IPAM handles, want %d as before", len(now), len(handles))
	}
	t.Logf("%d routes of Manx on n2 before, %d after (the blocks stay with the node)", before,
		len(ours(t, c.n2.Namespace, "-4")))
}

const endpointKeys = "/calico/resources/v3/projectcalico.org/workloadendpoints/"

func (c *cluster) list() (pods []*lab.Pod) {
	for _, p := range c.pods {
		pods = append(pods, p)
	}
	return pods
}

func (c *cluster) podWith(pods []*lab.Pod, a netip.Addr) *lab.Pod {
	for _, p := range pods {
		if slices.Contains(p.IPs, a) {
			return p
		}
	}
	return nil
}

// together runs f for 0 to n-1, all at once.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
