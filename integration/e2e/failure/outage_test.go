package failure

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// testOutage kills the daemon with the embedded datastore, under traffic between the others.
func (c *cluster) testOutage(t *testing.T) {
	n := c.N2
	sessionsBefore, before := world.Peers(t, n), world.Measure(t, n)
	watchesBefore := watchRestarts(t, n)
	watch := world.WatchRoutes(t, n)
	defer watch.Stop()
	f := &world.Flows{}
	for _, to := range c.Pods["n3-p1"].IPs {
		c.Flow(t, f, "n2-p1 to n3-p1", c.Pods["n2-p1"].Namespace, to)
	}
	for _, to := range c.Pods["n2-p1"].IPs {
		c.Flow(t, f, "n3-p2 to n2-p1", c.Pods["n3-p2"].Namespace, to)
		c.Flow(t, f, "tor1 to n2-p1", c.ToR1.Namespace, to)
	}
	c.Flow(t, f, "n2-p2 to the world", c.Pods["n2-p2"].Namespace, lab.External.Addr().Next())
	c.Flow(t, f, "n1-p1 to n2-p2", c.Pods["n1-p1"].Namespace, c.Pods["n2-p2"].IP4())

	f.Run(t, 20)
	c.N1.Manxd().Kill()
	start := time.Now()
	var out string
	eventually(t, func() error {
		var err error
		if out, err = n.Manxctl("status"); world.ExitCode(err) != 4 {
			return fmt.Errorf("manxctl status should end with 4 while the datastore is away: %v\n%s", err, out)
		}
		return nil
	})
	t.Logf("noticed after %.1f s: %s", time.Since(start).Seconds(), strings.TrimSpace(world.LineWith(out,
		"Datastore:")))
	world.Contains(t, "manxctl status", world.LineWith(out, "Datastore:"), "not connected", "connection lost",
		"the last state is kept", c.N1.IP4.String()+":2379")

	start = time.Now()
	// ls and not ip, which warns of a namespace that another test removes meanwhile
	links, err := n.Run("ls", "/sys/class/net")
	must(t, err)
	_, err = n.AddPod("outage", lab.DualStack)
	if err == nil {
		t.Fatal("a pod was attached without a datastore")
	}
	t.Logf("CNI ADD refused after %.1f s: %v", time.Since(start).Seconds(), err)
	world.Contains(t, "the answer to CNI ADD", err.Error(), `"code": 11`, "datastore")
	if now, err := n.Run("ls", "/sys/class/net"); err != nil || now != links {
		t.Errorf("the failed ADD left an interface (%v): before\n%s\nnow\n%s", err, links, now)
	}

	must(t, c.N1.StartManxd())
	must(t, c.N1.Ready(2*limit))
	back := time.Now()
	must(t, n.Ready(limit))
	t.Logf("n2 in sync %.1f s after n1 was ready", time.Since(back).Seconds())
	if again := watchRestarts(t, n); again <= watchesBefore {
		t.Errorf("watches of n2 began again %d times before its etcd was gone, and %d times by now", watchesBefore,
			again)
	}
	for key, value := range c.Raw(t, "/calico/") {
		if strings.Contains(key, "outage") || strings.Contains(value, c.Spec.Name+"-outage") {
			t.Errorf("the failed ADD left %s: %s", key, value)
		}
	}
	p := c.AddPod(t, n, "after")
	c.Reachable(t, "n3-p1", "after")
	c.Reachable(t, "n1-p1", "after")
	c.Settled(t)
	f.Run(t, 50)
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("%d of %d pings lost, want 0", lost, sent)
	} else {
		t.Logf("0 of %d pings lost", sent)
	}
	if gone := watch.Deleted(t); len(gone) > 0 {
		t.Errorf("routes were deleted on n2:\n%s", strings.Join(gone, "\n"))
	}
	n1Sessions := func(p *manxv1.Peer) bool {
		return p.GetAddress() == c.N1.IP4.String() || p.GetAddress() == c.N1.IP6.String()
	}
	var others []*manxv1.Peer
	for _, s := range sessionsBefore {
		if !n1Sessions(s) {
			others = append(others, s)
		}
	}
	world.SameSessions(t, others, world.Peers(t, n))
	must(t, p.Delete())
	delete(c.Pods, "after")
	world.Stable(t, n, before)
}

// watchRestarts returns the counter of watches that began again.
func watchRestarts(t *testing.T, n *lab.Node) (count int) {
	t.Helper()
	page, err := n.Get("/metrics")
	must(t, err)
	const name = "manx_datastore_watch_restarts_total"
	for line := range strings.Lines(page) {
		if n, _ := fmt.Sscanf(line, name+" %d", &count); n == 1 {
			return count
		}
	}
	t.Fatalf("no %s on /metrics", name)
	return 0
}
