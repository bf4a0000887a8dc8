package failure

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testRestart stops a node's daemon, adds leftovers and foreign routes beside its own routes, and starts it while the
// datastore is away: undesired routes are removed, but only once the desired ones are known.
func (c *cluster) testRestart(t *testing.T) {
	n := c.N2
	f := &world.Flows{}
	for _, to := range c.Pods["n2-p1"].IPs {
		c.Flow(t, f, "n3-p1 to n2-p1", c.Pods["n3-p1"].Namespace, to)
		c.Flow(t, f, "tor1 to n2-p1", c.ToR1.Namespace, to)
	}
	c.Flow(t, f, "n2-p2 to the world", c.Pods["n2-p2"].Namespace, lab.External.Addr().Next())
	wanted := map[string]string{"-4": fmt.Sprint(world.OurRoutes(t, n.Namespace, "-4")),
		"-6": fmt.Sprint(world.OurRoutes(t, n.Namespace, "-6"))}
	watch := world.WatchRoutes(t, n)
	defer watch.Stop()

	f.Run(t, 20)
	start := time.Now()
	if err := n.Manxd().Stop(limit); err != nil {
		t.Errorf("manxd after SIGTERM: %v, want exit code 0", err)
	}
	t.Logf("manxd ended %d ms after SIGTERM", time.Since(start).Milliseconds())
	if out, err := n.Manxctl("status"); world.ExitCode(err) != 4 || !strings.Contains(err.Error(), "manxd") {
		t.Errorf("manxctl status without a daemon should end with 4: %v\n%s", err, out)
	}
	for family, was := range wanted {
		if now := fmt.Sprint(world.OurRoutes(t, n.Namespace, family)); now != was {
			t.Errorf("routes of family %s changed with the end of manxd:\n%s\nwas\n%s", family, now, was)
		}
	}
	for family, own := range map[string]string{"-4": world.Blocks(t, n, "-4")[0].String(),
		"-6": world.Blocks(t, n, "-6")[0].String()} {
		if len(world.Routes(t, c.ToR1.Namespace, family, own)) == 0 {
			t.Errorf("tor1 dropped %s with the end of manxd", own)
		}
	}

	tor := c.ToR1.Address(n).String()
	other := world.Blocks(t, c.N3, "-4")[0].String()
	leftovers := []string{"10.244.200.0/28 via " + tor + " proto 12", other + " via " + tor + " proto 12 metric 77",
		"10.244.200.9 dev eth0 proto 80"}
	foreign := []string{"10.244.201.0/28 via " + tor + " proto static", "10.244.202.0/28 via " + tor +
		" proto 12 table 100",
		other + " via " + tor + " proto static metric 99"}
	for _, r := range append(leftovers, foreign...) {
		world.IP(t, n, "route add "+r)
	}

	c.N1.Manxd().Kill() // the datastore is away
	logged := len(n.Log())
	must(t, n.StartManxd())
	eventually(t, func() error {
		if !strings.Contains(n.Log()[logged:], "waiting for the datastore") {
			return fmt.Errorf("manxd does not log that it waits:\n%s", n.Log()[logged:])
		}
		return nil
	})
	if gone := watch.Deleted(t); len(gone) > 0 {
		t.Errorf("routes were deleted before the datastore was there:\n%s", strings.Join(gone, "\n"))
	}
	must(t, c.N1.StartManxd())
	must(t, c.N1.Ready(2*limit))
	c.Settled(t)
	for _, r := range leftovers {
		eventually(t, func() error {
			if out, err := n.Run("ip", append([]string{"route", "show"}, strings.Fields(r)...)...); err != nil ||
				strings.TrimSpace(out) != "" {
				return fmt.Errorf("the leftover is still there: %s %w", out, err)
			}
			return nil
		})
	}
	for _, r := range foreign {
		if out, err := n.Run("ip", append([]string{"route", "show"}, strings.Fields(r)...)...); err != nil ||
			strings.TrimSpace(out) == "" {
			t.Errorf("the foreign route %q is gone: %v", r, err)
		}
		world.IP(t, n, "route del "+r)
	}
	for family, was := range wanted {
		if now := fmt.Sprint(world.OurRoutes(t, n.Namespace, family)); now != was {
			t.Errorf("routes of family %s after the restart:\n%s\nwas\n%s", family, now, was)
		}
	}
	gone := watch.Deleted(t)
	if len(gone) != len(leftovers) {
		t.Errorf("deleted routes should be the %d leftovers, but are\n%s", len(leftovers), strings.Join(gone, "\n"))
	}
	c.prunedInTime(t, n, logged, gone)
	f.Run(t, 50)
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("%d of %d pings lost, want 0", lost, sent)
	} else {
		t.Logf("0 of %d pings lost", sent)
	}
}

// prunedInTime compares the time of the leftovers' removal with the time when the daemon reported that all routes are
// known.
func (c *cluster) prunedInTime(t *testing.T, n *lab.Node, logged int, deleted []string) {
	t.Helper()
	line := world.LineWith(n.Log()[logged:], "bgp restart finished")
	stamp, _, _ := strings.Cut(line, "\t")
	synced, err := time.Parse("2006-01-02T15:04:05.000Z0700", stamp)
	if err != nil {
		t.Fatalf("no time in %q: %v", line, err)
	}
	for _, d := range deleted {
		text, _, _ := strings.Cut(strings.TrimPrefix(d, "["), "]")
		at, err := time.ParseInLocation("2006-01-02T15:04:05.000000", text, time.Local)
		must(t, err)
		if at.Before(synced.Truncate(time.Millisecond)) {
			t.Errorf("deleted %s before all routes were known: %s", synced.Sub(at), d)
		}
		t.Logf("%s after the end of the restart: %s", at.Sub(synced), d)
	}
}
