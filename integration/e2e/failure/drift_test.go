package failure

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testDrift deletes and changes routes of each kind by hand.
func (c *cluster) testDrift(t *testing.T) {
	n := c.N2
	pod4, pod6 := c.Pods["n2-p1"].IP4().String(), c.Pods["n2-p1"].IP6().String()
	other4, other6 := world.Blocks(t, c.N3, "-4")[0].String(), world.Blocks(t, c.N3, "-6")[0].String()
	for _, x := range []struct{ name, family, dst, do string }{
		{"deleted: a learned route", "-4", other4, "route del " + other4},
		{"deleted: a learned IPv6 route", "-6", other6, "-6 route del " + other6},
		{"deleted: a workload route", "-4", pod4, "route del " + pod4},
		{"deleted: a workload's IPv6 route", "-6", pod6, "-6 route del " + pod6},
		{"deleted: a blackhole", "-4", world.Blocks(t, n, "-4")[0].String(), "route del blackhole " +
			world.Blocks(t, n, "-4")[0].String()},
		{"deleted: a route with two next hops", "-4", lab.External.String(), "route del " + lab.External.String()},
		{"changed: a learned route", "-4", other4, "route replace " + other4 + " dev lo proto 12"},
		{"changed: a workload route", "-4", pod4, "route replace " + pod4 + " via " + c.ToR1.Address(n).String() +
			" proto 80"},
	} {
		before := fmt.Sprint(world.OurRoutesTo(t, n, x.family, x.dst))
		if before == "[]" {
			t.Fatalf("%s: %s has no route to %s", x.name, n.Name, x.dst)
		}
		do := x.do
		if metric := world.OurRoutesTo(t, n, x.family, x.dst)[0].Metric; metric != 0 && x.family == "-4" &&
			!strings.Contains(do, "metric") {
			do += fmt.Sprintf(" metric %d", metric)
		}
		world.IP(t, n, do)
		start := time.Now()
		var after string
		err := lab.Eventually(limit, func() error {
			if after = fmt.Sprint(world.OurRoutesTo(t, n, x.family, x.dst)); after != before {
				return fmt.Errorf("%s: have %s, want %s", x.name, after, before)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s: as before %d ms later", x.name, time.Since(start).Milliseconds())
	}
	c.added(t)
}

// added adds routes with ip(8): routes with our protocol are removed, those of others stay.
func (c *cluster) added(t *testing.T) {
	n, tor := c.N2, c.ToR1.Address(c.N2).String()
	foreign := "10.244.201.0/28 via " + tor + " proto static"
	world.IP(t, n, "route add "+foreign)
	for _, extra := range []string{"10.244.200.0/28 via " + tor + " proto 12", world.Blocks(t, c.N3, "-4")[0].String() +
		" via " + tor + " proto 12 metric 77"} {
		world.IP(t, n, "route add "+extra)
		start := time.Now()
		eventually(t, func() error {
			if out, err := n.Run("ip", append([]string{"route", "show"}, strings.Fields(extra)...)...); err != nil ||
				strings.TrimSpace(out) != "" {
				return fmt.Errorf("still there: %s %w", out, err)
			}
			return nil
		})
		t.Logf("added: %s: gone %d ms later", extra, time.Since(start).Milliseconds())
	}
	if out, err := n.Run("ip", append([]string{"route", "show"}, strings.Fields(foreign)...)...); err != nil ||
		out == "" {
		t.Errorf("the foreign route is gone: %v", err)
	}
	world.IP(t, n, "route del "+foreign)
}
