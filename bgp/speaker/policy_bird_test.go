package speaker

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// filterNet has BIRD as an iBGP peer that announces routes and as another peer, in another AS and with another router
// ID, both with ADD-PATH.
func filterNet(t *testing.T) (*birdNet, *child, bgp.Desired, func(community string) string) {
	t.Helper()
	n := newBirdNet(t, []string{"10.77.0.1/24", "10.77.0.10/24"}, []string{"10.77.0.2/24", "10.77.0.3/24"})
	config := func(community string) string {
		return birdHead +
			strings.Replace(birdSession("ibgp4", "10.77.0.2", 64512, "10.77.0.1", "ipv4", ""),
				"export where source = RTS_STATIC", "export filter { if source != RTS_STATIC then reject; "+
					"bgp_community.add(("+community+")); accept; }", 1) +
			strings.Replace(birdSession("ebgp4", "10.77.0.3", 64600, "10.77.0.10", "ipv4", "router id 10.77.0.3;"),
				"export where source = RTS_STATIC", "export none", 1)
	}
	n.start(config("65000,1"))
	d := birdDesired()
	d.ExportPrefixes = []netip.Prefix{pfx("10.244.0.0/16")}
	d.Sessions = []bgp.Session{birdPeer("10.77.0.2", "10.77.0.1", 64512), birdPeer("10.77.0.3", "10.77.0.10", 64600)}
	c := startChild(t, n.manx)
	c.set(d)
	for _, s := range d.Sessions {
		c.await("session with "+s.Address.String(),
			func() bool { return c.sessions[s.Address].Phase == PhaseEstablished })
	}
	n.await("show route protocol ebgp4", "10.244.1.0/26", "10.244.1.64/26", "10.244.2.0/26")
	c.await("BIRD's routes", func() bool {
		return len(c.routes[pfx("10.244.2.0/26")].Paths) > 0 && len(c.routes[pfx("0.0.0.0/0")].Paths) > 0
	})
	return n, c, d, config
}

func withFilters(d bgp.Desired, session int, filters ...bgp.Filter) bgp.Desired {
	d.Filters = filters
	d.Sessions = append([]bgp.Session{}, d.Sessions...)
	d.Sessions[session].Filters = nil
	for _, f := range filters {
		d.Sessions[session].Filters = append(d.Sessions[session].Filters, f.Name)
	}
	return d
}

func TestFiltersWithBIRD(t *testing.T) {
	t.Parallel()
	n, c, d, config := filterNet(t)
	before := n.birdc("show", "protocols")
	block := &bgp.PrefixMatch{CIDR: pfx("10.244.1.0/26"), Min: 26, Max: 32}

	// Reject one block towards one peer: it is withdrawn there, the rest stays.
	c.set(withFilters(d, 1, bgp.Filter{Name: "f1", ExportV4: []bgp.Rule{{Name: "r", Prefix: block}}}))
	n.awaitNot("show route protocol ebgp4", "10.244.1.0/26")
	n.await("show route protocol ebgp4", "10.244.1.64/26", "10.244.2.0/26")
	n.await("show route protocol ibgp4", "10.244.1.0/26")

	// The same rule accepts with operations.
	accept := bgp.Rule{Name: "r", Accept: true, Prefix: block, Operations: []bgp.Operation{
		{AddCommunity: new(uint32(65000<<16 | 7))}, {AddLarge: &[3]uint32{65000, 7, 8}},
		{PrependASPath: []uint32{65001, 65002}}, {SetPriority: 100}}}
	c.set(withFilters(d, 1, bgp.Filter{Name: "f1", ExportV4: []bgp.Rule{accept}}))
	out := n.await("show route all 10.244.1.0/26 protocol ebgp4", "BGP.as_path: 64512 65001 65002 64512\n", "(65000,7)",
		"(65000, 7, 8)")
	if strings.Contains(out, "4294967295") {
		t.Errorf("BIRD sees the marker:\n%s", out)
	}
	c.set(withFilters(d, 0, bgp.Filter{Name: "f1", ExportV4: []bgp.Rule{accept}}))
	n.await("show route all 10.244.1.0/26 protocol ibgp4", "BGP.as_path: 65001 65002\n", "BGP.local_pref: 2147483547")
	n.await("show route all 10.244.1.0/26 protocol ebgp4", "BGP.as_path: 64512\n")

	// A route that an import filter rejects leaves the kernel and other peers.
	c.set(withFilters(d, 0, bgp.Filter{Name: "f1",
		ImportV4: []bgp.Rule{{Name: "r", Prefix: &bgp.PrefixMatch{CIDR: pfx("10.244.2.0/26"), Min: 26, Max: 26}}}}))
	c.await("the loss of the route", func() bool { return len(c.routes[pfx("10.244.2.0/26")].Paths) == 0 })
	n.awaitNot("show route protocol ebgp4", "10.244.2.0/26")
	if len(c.route(pfx("0.0.0.0/0")).Paths) == 0 {
		t.Error("another route went with it")
	}
	c.set(d)
	c.await("the route again", func() bool { return len(c.routes[pfx("10.244.2.0/26")].Paths) > 0 })
	n.await("show route protocol ebgp4", "10.244.1.0/26", "10.244.2.0/26")

	// A route that changes so that it is rejected is withdrawn, also from a peer with ADD-PATH.
	c.set(withFilters(d, 1, bgp.Filter{Name: "f1",
		ExportV4: []bgp.Rule{{Name: "r", Community: new(uint32(65000<<16 | 99))}}}))
	n.await("show route all 10.244.2.0/26 protocol ebgp4", "(65000,1)")
	time.Sleep(1500 * time.Millisecond) // a resend after a session came up would hide the fault
	n.reconfigure(config("65000,99"))
	n.awaitNot("show route protocol ebgp4", "10.244.2.0/26")
	n.reconfigure(config("65000,1"))
	n.await("show route protocol ebgp4", "10.244.2.0/26")

	if after := n.birdc("show", "protocols"); !sameSessions(before, after) {
		t.Errorf("sessions before:\n%s\nand after:\n%s", before, after)
	}
}

// RFC 8326: a drained node announces its routes as the last choice, then not at all, and then as before.
func TestDrainWithBIRD(t *testing.T) {
	t.Parallel()
	n, c, d, _ := filterNet(t)
	before := n.birdc("show", "protocols")
	d.Drain = bgp.DrainDraining
	c.set(d)
	n.await("show route all 10.244.1.0/26 protocol ibgp4", "BGP.local_pref: 0\n", "(65535,0)")
	n.await("show route all 10.244.1.0/26 protocol ebgp4", "(65535,0)")
	n.await("show route all 10.244.2.0/26 protocol ebgp4", "(65535,0)")
	d.Drain = bgp.DrainWithdrawn
	c.set(d)
	n.awaitNot("show route protocol ibgp4", "10.244.1.")
	n.awaitNot("show route protocol ebgp4", "10.244.")
	d.Drain = bgp.DrainNone
	c.set(d)
	out := n.await("show route all protocol ibgp4", "10.244.1.0/26", "BGP.local_pref: 2147482623\n") +
		n.await("show route all protocol ebgp4", "10.244.1.0/26", "10.244.2.0/26")
	if strings.Contains(out, "(65535,0)") {
		t.Errorf("a route still has GRACEFUL_SHUTDOWN:\n%s", out)
	}
	if after := n.birdc("show", "protocols"); !sameSessions(before, after) {
		t.Errorf("sessions before:\n%s\nand after:\n%s", before, after)
	}
}

// A route of the kernel is announced as long as BGP has none for its prefix, to peers with ADD-PATH as to others. BIRD
// never sees one for a prefix that it announces itself, not even while the speaker starts.
func TestKernelRoutesYieldWithBIRD(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.1/24", "10.77.0.10/24", "10.77.0.11/24"},
		[]string{"10.77.0.2/24", "10.77.0.3/24", "10.77.0.4/24"})
	log := filepath.Join(n.dir, "log")
	const theirs = "route 10.244.2.0/26 blackhole;"
	config := func(route string) string {
		quiet := func(text string) string { return strings.Replace(text, "where source = RTS_STATIC", "none", 1) }
		head := strings.Replace(birdHead, "log stderr all;", `log "`+log+`" all; debug protocols { routes };`, 1)
		return strings.Replace(head, theirs, route, 1) +
			strings.Replace(birdSession("plain", "10.77.0.2", 64512, "10.77.0.1", "ipv4", ""),
				"add paths on; ", "", 1) +
			quiet(birdSession("several", "10.77.0.4", 64512, "10.77.0.11", "ipv4", "router id 10.77.0.4;")) +
			quiet(birdSession("ebgp4", "10.77.0.3", 64600, "10.77.0.10", "ipv4", "router id 10.77.0.3;"))
	}
	n.start(config(theirs))
	d := birdDesired()
	d.ExportPrefixes = []netip.Prefix{pfx("10.244.0.0/16")}
	d.Sessions = []bgp.Session{birdPeer("10.77.0.2", "10.77.0.1", 64512), birdPeer("10.77.0.4", "10.77.0.11", 64512),
		birdPeer("10.77.0.3", "10.77.0.10", 64600)}
	kernel := func(p string, metric uint32) bgp.Origin {
		return bgp.Origin{Prefix: pfx(p), LocalPref: bgp.MaxPriority - metric, Kernel: true, Yields: true}
	}
	own := d.Originated
	d.Originated = append(own[:len(own):len(own)], kernel("10.244.2.0/26", 99), kernel("10.244.3.0/24", 50))
	c := startChild(t, n.manx)
	c.set(d)
	sessions := []string{"plain", "several", "ebgp4"}
	for _, s := range sessions {
		n.await("show route protocol "+s, "10.244.3.0/24")
	}
	n.await("show route all 10.244.3.0/24 protocol plain", "BGP.local_pref: 2147483597\n")
	n.await("show route all 10.244.3.0/24 protocol several", "BGP.local_pref: 2147483597\n")
	relayed := func() {
		t.Helper()
		n.await("show route all 10.244.2.0/26 protocol ebgp4", "BGP.med: 100\n")
		for _, s := range sessions[:2] {
			n.awaitNot("show route 10.244.2.0/26 protocol "+s, "10.244.2.0/26")
		}
		n.awaitNot("show route all 10.244.2.0/26 protocol ebgp4 where ! defined(bgp_med)", "10.244.2.0/26")
	}
	relayed()
	lines, err := os.ReadFile(log)
	seen := fmt.Sprint(regexp.MustCompile(`(?m)^.*(plain|several)\S* > added.*$`).FindAllString(string(lines), -1))
	if err != nil || !strings.Contains(seen, " 10.244.3.0/24 ") || strings.Contains(seen, " 10.244.2.0/26 ") {
		t.Errorf("at the start BIRD got %s %v", seen, err)
	}

	n.reconfigure(config("")) // BIRD's route goes: that of the kernel comes
	for _, s := range sessions[:2] {
		n.await("show route all 10.244.2.0/26 protocol "+s, "BGP.local_pref: 2147483548\n")
	}
	n.await("show route all 10.244.2.0/26 protocol ebgp4 where ! defined(bgp_med)", "BGP.as_path: 64512\n")
	n.awaitNot("show route all 10.244.2.0/26 protocol ebgp4", "BGP.med")
	n.reconfigure(config(theirs))
	relayed()

	d.Originated = append(own[:len(own):len(own)], kernel("10.244.3.0/24", 70))
	c.set(d)
	n.await("show route all 10.244.3.0/24 protocol plain", "BGP.local_pref: 2147483577\n")
	n.await("show route all 10.244.3.0/24 protocol several", "BGP.local_pref: 2147483577\n")
	d.Originated = own
	c.set(d)
	for _, s := range sessions {
		n.awaitNot("show route protocol "+s, "10.244.3.0/24")
	}
	relayed()
}
