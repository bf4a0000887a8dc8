package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

// testDrift deletes and changes routes of each kind by hand.
func (c *cluster) testDrift(t *testing.T) {
	n := c.n2
	pod4, pod6 := c.pods["n2-p1"].IP4().String(), c.pods["n2-p1"].IP6().String()
	other4, other6 := blocks(t, c.n3, "-4")[0].String(), blocks(t, c.n3, "-6")[0].String()
	for _, x := range []struct{ name, family, dst, do string }{
		{"deleted: a learned route", "-4", other4, "route del " + other4},
		{"deleted: a learned IPv6 route", "-6", other6, "-6 route del " + other6},
		{"deleted: a workload route", "-4", pod4, "route del " + pod4},
		{"deleted: a workload's IPv6 route", "-6", pod6, "-6 route del " + pod6},
		{"deleted: a blackhole", "-4", blocks(t, n, "-4")[0].String(), "route del blackhole " +
			blocks(t, n, "-4")[0].String()},
		{"deleted: a route with two next hops", "-4", lab.External.String(), "route del " + lab.External.String()},
		{"changed: a learned route", "-4", other4, "route replace " + other4 + " dev lo proto 12"},
		{"changed: a workload route", "-4", pod4, "route replace " + pod4 + " via " + c.tor1.Address(n).String() +
			" proto 80"},
	} {
		before := fmt.Sprint(mine(t, n, x.family, x.dst))
		if before == "[]" {
			t.Fatalf("%s: %s has no route to %s", x.name, n.Name, x.dst)
		}
		do := x.do
		if metric := mine(t, n, x.family, x.dst)[0].Metric; metric != 0 && x.family == "-4" &&
			!strings.Contains(do, "metric") {
			do += fmt.Sprintf(" metric %d", metric)
		}
		ip(t, n, do)
		start := time.Now()
		var after string
		err := lab.Eventually(limit, func() error {
			if after = fmt.Sprint(mine(t, n, x.family, x.dst)); after != before {
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

// added puts routes there by hand: those that look like ours go, those of others stay.
func (c *cluster) added(t *testing.T) {
	n, tor := c.n2, c.tor1.Address(c.n2).String()
	foreign := "10.244.201.0/28 via " + tor + " proto static"
	ip(t, n, "route add "+foreign)
	for _, extra := range []string{"10.244.200.0/28 via " + tor + " proto 12", blocks(t, c.n3, "-4")[0].String() +
		" via " + tor + " proto 12 metric 77"} {
		ip(t, n, "route add "+extra)
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
	ip(t, n, "route del "+foreign)
}

// mine are the routes of Manx to one destination.
func mine(t *testing.T, n *lab.Node, family, dst string) (list []kernelRoute) {
	t.Helper()
	return append(routes(t, n.Namespace, family, dst, "proto", "12"),
		routes(t, n.Namespace, family, dst, "proto", "80")...)
}
