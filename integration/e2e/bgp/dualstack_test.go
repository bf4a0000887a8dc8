package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/ipam"
)

func (c *cluster) testDualStack(t *testing.T) {
	var all sync.WaitGroup
	pings := 0
	ping := func(name, ns string, to netip.Addr) {
		pings++
		all.Go(func() {
			if err := lab.Eventually(limit, func() error { return lab.Ping(ns, to) }); err != nil {
				t.Errorf("%s does not reach %s: %v", name, to, err)
			}
		})
	}
	for from, p := range c.Pods {
		for to, q := range c.Pods {
			if to != from {
				ping(from, p.Namespace, q.IP4())
				ping(from, p.Namespace, q.IP6())
			}
		}
		ping(from, p.Namespace, lab.External.Addr().Next())
		for _, tor := range c.ToRs {
			ping(tor.Name, tor.Namespace, p.IP4())
			ping(tor.Name, tor.Namespace, p.IP6())
		}
		all.Wait()
	}
	t.Logf("%d pairs ping", pings)

	for _, n := range c.Nodes {
		for _, family := range []string{"-4", "-6"} {
			own := world.Blocks(t, n, family)
			if len(own) == 0 {
				t.Errorf("%s has no blackhole for a block of family %s", n.Name, family)
			}
			for _, b := range own {
				for _, tor := range c.ToRs {
					c.torHas(t, tor, family, b, true)
				}
			}
		}
	}
}

// torHas waits until the kernel of a router has a route for a prefix, or none.
func (c *cluster) torHas(t *testing.T, tor *lab.ToR, family string, p netip.Prefix, want bool) {
	t.Helper()
	eventually(t, func() error {
		found := world.Routes(t, tor.Namespace, family, p.String())
		if len(found) > 0 != want {
			return fmt.Errorf("%s: route for %s wanted: %v, there are %v", tor.Name, p, want, found)
		}
		return nil
	})
}

// testReleasedBlock deletes the pods of n3 and releases its blocks, as a cluster's garbage collection does.
func (c *cluster) testReleasedBlock(t *testing.T) {
	released := map[string][]netip.Prefix{"-4": world.Blocks(t, c.N3, "-4"), "-6": world.Blocks(t, c.N3, "-6")}
	for _, name := range []string{"n3-p1", "n3-p2"} {
		must(t, c.Pods[name].Delete())
		delete(c.Pods, name)
	}
	for family, own := range released {
		if len(own) == 0 {
			t.Fatalf("n3 has no block of family %s", family)
		}
		for _, b := range own { // the block outlives its pods
			c.torHas(t, c.ToR1, family, b, true)
		}
	}
	store, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{c.N1.EtcdSocket()}}, zap.NewNop())
	must(t, err)
	defer store.Close()
	start := time.Now()
	must(t, ipam.New(store, nil, nil).ReleaseHostAffinities(t.Context(), ipam.Owner{Type: "host", Name: "n3"}, true))

	for family, own := range released {
		for _, b := range own {
			for _, tor := range c.ToRs {
				c.torHas(t, tor, family, b, false)
			}
			for _, n := range c.Nodes {
				eventually(t, func() error {
					if left := world.Routes(t, n.Namespace, family, b.String()); len(left) > 0 {
						return fmt.Errorf("%s still has %v", n.Name, left)
					}
					return nil
				})
			}
		}
	}
	t.Logf("blocks %v are gone everywhere %.0f ms after their release began", released,
		time.Since(start).Seconds()*1000)
	for _, name := range []string{"n3-p3", "n3-p4"} {
		c.Pods[strings.Replace(strings.Replace(name, "p3", "p1", 1), "p4", "p2", 1)] = c.AddPod(t, c.N3, name)
		delete(c.Pods, name)
	}
	c.Settled(t)
}
