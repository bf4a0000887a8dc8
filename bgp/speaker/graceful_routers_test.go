package speaker

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/integration/namespace"
)

// routerRestarts are the cases with other BGP programs.
var routerRestarts = []gracefulCase{
	{"BIRD, recovery", "killed, started with `bird -R`: R=1, F=1", untilEndOfRIB.words(), helping, func(t *testing.T) {
		n, c := startBIRD(t, "")
		n.killRouter()
		keeps(c)
		n.start(birdRestart(""), "-R")
		awaitEndOfRIB(c)
		wantOpen(c, true, true)
	}},
	{"BIRD, no recovery", "killed, started without `-R`: R=0, F=0", untilEndOfRIB.words(), helping + ", but with R=0",
		func(t *testing.T) {
			n, c := startBIRD(t, "")
			n.killRouter()
			keeps(c)
			n.start(birdRestart(""))
			awaitEndOfRIB(c)
			wantOpen(c, false, false)
		}},
	{"BIRD, graceful restart switched off", "killed, started with `graceful restart off`", untilReturn.words(),
		helping, func(t *testing.T) {
			n, c := startBIRD(t, "")
			n.killRouter()
			keeps(c)
			n.start(birdRestart("off"))
			awaitReturn(c)
			wantOpenWithout(c)
			awaitGone(c) // P1 is announced again before anybody can see that it was gone
			c.await("the new route", func() bool { return len(c.routes[pfx(routerKept)].Paths) > 0 })
		}},
	{"BIRD, helper alone", "has `graceful restart aware`: GR for no family; killed", untilLoss.words(),
		"RFC 4724 sections 3 and 4.2", func(t *testing.T) {
			n, c := startBIRD(t, "aware")
			wantOpenWithout(c)
			n.killRouter()
			c.await("both routes to go", func() bool { return len(c.routes) == 0 })
		}},
	{"BIRD, session disabled", "`birdc disable`: NOTIFICATION 6/2", untilLoss.words(), notifications,
		func(t *testing.T) {
			n, c := startBIRD(t, "")
			n.birdc("disable", "manx")
			c.await("both routes to go", func() bool { return len(c.routes) == 0 })
			c.await("the NOTIFICATION", func() bool {
				return strings.Contains(c.sessions[ip(routerPeer)].LastError, "6/2")
			})
		}},
	{"FRR, forwarding state kept",
		"bgpd, with `bgp graceful-restart` and `preserve-fw-state`, killed and started: R=1, F=1",
		untilEndOfRIB.words(), helping, func(t *testing.T) {
			n, c := startFRR(t)
			n.killRouter()
			keeps(c)
			n.launchFRR(frrGraceful+frrForwards, routerKept)
			awaitEndOfRIB(c)
			wantOpen(c, true, true)
		}},
	{"FRR, forwarding state lost", "bgpd, killed and started without `preserve-fw-state`: R=1, F=0",
		untilReturn.words(), helping, func(t *testing.T) {
			n, c := startFRR(t)
			n.killRouter()
			keeps(c)
			n.launchFRR(frrGraceful, routerKept)
			awaitReturn(c)
			wantOpen(c, true, false)
			awaitNewRoutes(c)
		}},
	{"FRR, helper alone on return", "bgpd, killed and started without `bgp graceful-restart`: GR for no family",
		untilReturn.words(), helping, func(t *testing.T) {
			n, c := startFRR(t)
			n.killRouter()
			keeps(c)
			n.launchFRR("", routerKept)
			awaitReturn(c)
			wantOpenWithout(c)
			awaitNewRoutes(c)
		}},
}

const (
	routerManx, routerPeer = "10.77.0.1", "10.77.0.2"
	frrGraceful            = " bgp graceful-restart\n"
	frrForwards            = " bgp graceful-restart preserve-fw-state\n"
	routerKept, routerGone = "10.244.2.0/26", "10.244.3.0/26" // P1 and P2
)

// birdConfig announces prefixes; mode is of `graceful restart`.
func birdConfig(mode string, prefixes ...string) string {
	var b strings.Builder
	b.WriteString("log stderr all;\nrouter id " + routerPeer + ";\nprotocol device {}\nprotocol static { ipv4;\n")
	for _, p := range prefixes {
		b.WriteString("  route " + p + " blackhole;\n")
	}
	b.WriteString("}\ntemplate bgp common { graceful restart " + mode + "; connect delay time 1; " +
		"connect retry time 1; error wait time 1, 2; }\n")
	return b.String() + birdSession("manx", routerPeer, 64512, routerManx, "ipv4", "")
}

// birdRestart is the configuration after a restart.
func birdRestart(mode string) string { return birdConfig(mode, routerKept) }

// startBIRD returns a speaker that has learned two routes from BIRD, which restarts gracefully.
func startBIRD(t *testing.T, mode string) (*birdNet, *child) {
	t.Helper()
	n := newBirdNet(t, []string{routerManx + "/24"}, []string{routerPeer + "/24"})
	n.start(birdConfig(mode, routerKept, routerGone))
	return n, learnedFrom(t, n.manx, 64512)
}

// learnedFrom starts a speaker and waits for the routes of the router.
func learnedFrom(t *testing.T, netns string, as uint32) *child {
	t.Helper()
	c := startChild(t, netns)
	d := birdDesired()
	d.Originated, d.Sessions = nil, []bgp.Session{birdPeer(routerPeer, routerManx, as)}
	c.set(d)
	c.await("both routes", func() bool { return len(c.routes) == 2 })
	c.await("the end of the speaker's own restart", func() bool { return c.synced })
	return c
}

func (n *birdNet) killRouter() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// startFRR returns a speaker that has learned two routes from FRR, which restarts gracefully.
func startFRR(t *testing.T) (*birdNet, *child) {
	t.Helper()
	namespace.Require(t, frrFolder+"bgpd", "vtysh")
	n := newBirdNet(t, []string{routerManx + "/24"}, []string{routerPeer + "/24"})
	n.launchFRR(frrGraceful+frrForwards, routerKept, routerGone)
	return n, learnedFrom(t, n.manx, 64600)
}

const frrFolder = "/usr/lib/frr/"

// launchFRR runs bgpd without zebra: its routes need no kernel.
func (n *birdNet) launchFRR(graceful string, prefixes ...string) {
	n.t.Helper()
	config := "log stdout\nrouter bgp 64600\n bgp router-id " + routerPeer + "\n no bgp network import-check\n" +
		" no bgp default ipv4-unicast\n no bgp ebgp-requires-policy\n" + graceful + " neighbor " + routerManx +
		" remote-as 64512\n neighbor " + routerManx + " timers connect 1\n address-family ipv4 unicast\n"
	for _, p := range prefixes {
		config += "  network " + p + "\n"
	}
	config += "  neighbor " + routerManx + " activate\n exit-address-family\nexit\n"
	n.config = filepath.Join(n.dir, "frr.conf")
	for dir := n.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // bgpd runs as a user of its own
		if err := os.Chmod(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	if out, err := exec.Command("chown", "frr:frr", n.dir).CombinedOutput(); err != nil {
		n.t.Fatalf("chown: %v: %s", err, out)
	}
	if err := os.WriteFile(n.config, []byte(config), 0o644); err != nil {
		n.t.Fatal(err)
	}
	n.cmd = namespace.Command(n.bird, frrFolder+"bgpd", "-Z", "-f", n.config, "-i", n.pidFile, "--vty_socket", n.dir,
		"-A", "127.0.0.1", "-u", "frr", "-g", "frr")
	n.launch("bgpd")
}

// keeps waits for the loss, which removes no route.
func keeps(c *child) {
	c.t.Helper()
	c.await("the loss", func() bool {
		st := c.sessions[ip(routerPeer)]
		return st.Flaps == 1 && st.Phase != PhaseEstablished
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.removed) > 0 {
		c.t.Fatalf("routes %v went with the loss", c.removed)
	}
}

// awaitGone waits until the route that is not announced again is gone. It gives up long before the restart time of
// 120 s is over.
func awaitGone(c *child) {
	c.t.Helper()
	c.await("the route that is not announced again to go", func() bool { return wasRemoved(c, routerGone) })
}

// awaitReturn waits for the second session.
func awaitReturn(c *child) {
	c.t.Helper()
	c.await("the return", func() bool {
		st := c.sessions[ip(routerPeer)]
		return st.Flaps == 1 && established(st)
	})
}

// wantOpen checks that the last OPEN of the router has the family of the session and the bits that the row says.
func wantOpen(c *child, restarted, forwards bool) {
	c.t.Helper()
	st := c.session(ip(routerPeer))
	if !st.GracefulRestart || st.PeerRestarted != restarted || st.PeerForward != forwards {
		c.t.Errorf("the OPEN is another one than the row says: %+v", st)
	}
}

// wantOpenWithout checks that the last OPEN of the router has no graceful restart for the family of the session.
func wantOpenWithout(c *child) {
	c.t.Helper()
	if st := c.session(ip(routerPeer)); st.GracefulRestart {
		c.t.Errorf("the OPEN is another one than the row says: %+v", st)
	}
}

// awaitNewRoutes waits until both routes have gone, and the one that is announced again has come: FRR sends it a second
// after the session came up.
func awaitNewRoutes(c *child) {
	c.t.Helper()
	c.await("both routes to go", func() bool { return wasRemoved(c, routerKept) && wasRemoved(c, routerGone) })
	c.await("the new route", func() bool { return len(c.routes[pfx(routerKept)].Paths) > 0 })
}

// awaitEndOfRIB does the same, and checks that the other route has never been away.
func awaitEndOfRIB(c *child) {
	c.t.Helper()
	awaitGone(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if wasRemoved(c, routerKept) {
		c.t.Error("the route that is announced again was away")
	}
	if st := c.sessions[ip(routerPeer)]; !established(st) || st.Flaps != 1 {
		c.t.Errorf("the route went without the End-of-RIB: session %s, %d flaps", st.Phase, st.Flaps)
	}
}

func wasRemoved(c *child, prefix string) bool { return slices.Contains(c.removed, pfx(prefix)) }
