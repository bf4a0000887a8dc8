package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testManyPods attaches many pods to one node at once, as after the loss of another, and detaches them at once.
func (c *cluster) testManyPods(t *testing.T) {
	const many = 30
	endpoints, handles := c.Raw(t, world.EndpointKeys), c.Raw(t, "/calico/ipam/v2/handle/")
	before := len(world.OurRoutes(t, c.N2.Namespace, "-4"))
	pods, errs := make([]*lab.Pod, many), make([]error, many)
	start := time.Now()
	world.Parallel(many, func(i int) { pods[i], errs[i] = c.N2.AddPod(fmt.Sprintf("many%d", i), lab.DualStack) })
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
	world.Parallel(many, func(i int) {
		for _, a := range pods[i].IPs {
			errs[i] = errors.Join(errs[i],
				lab.Eventually(limit, func() error { return lab.Ping(c.Pods["n3-p1"].Namespace, a) }))
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	t.Logf("%d ADD at once: %.1f s; all reachable from another node after %.1f s", many, took.Seconds(),
		time.Since(start).Seconds())
	for _, p := range pods {
		for family, host := range map[string]netip.Addr{"-4": p.IP4(), "-6": p.IP6()} {
			if r := world.Routes(t, c.N2.Namespace, family, host.String(), "proto", "80"); len(r) != 1 {
				t.Errorf("%s: routes to %s: %v, want one", p.Name, host, r)
			}
		}
	}

	start = time.Now()
	world.Parallel(many, func(i int) { errs[i] = pods[i].Delete() })
	must(t, errors.Join(errs...))
	took = time.Since(start)
	eventually(t, func() error {
		for _, r := range append(world.Routes(t, c.N2.Namespace, "-4", "proto", "80"),
			world.Routes(t, c.N2.Namespace, "-6", "proto", "80")...) {
			if a, err := netip.ParseAddr(r.Dst); err == nil && slices.Contains(pods, c.podWith(pods, a)) {
				return fmt.Errorf("the route to %s is still there", a)
			}
		}
		return nil
	})
	t.Logf("%d DEL at once: %.1f s", many, took.Seconds())
	if now := c.Raw(t, world.EndpointKeys); len(now) != len(endpoints) {
		t.Errorf("%d WorkloadEndpoints, want %d as before", len(now), len(endpoints))
	}
	if now := c.Raw(t, "/calico/ipam/v2/handle/"); len(now) != len(handles) {
		t.Errorf("%d IPAM handles, want %d as before", len(now), len(handles))
	}
	t.Logf("%d routes of Manx on n2 before, %d after (the blocks stay with the node)", before,
		len(world.OurRoutes(t, c.N2.Namespace, "-4")))
}

func (c *cluster) list() (pods []*lab.Pod) {
	for _, p := range c.Pods {
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
