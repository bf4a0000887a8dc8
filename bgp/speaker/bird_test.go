package speaker

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/integration/namespace"
)

// birdNet is two namespaces on one link: the speaker's, and one with BIRD.
type birdNet struct {
	t            *testing.T
	manx, bird   string
	dir          string
	config       string
	cmd          *exec.Cmd
	deleted      func() []string // kernel routes that BIRD has removed
	ctl, pidFile string
}

func newBirdNet(t *testing.T, manxAddrs, birdAddrs []string) *birdNet {
	t.Helper()
	namespace.Require(t, "bird", "birdc")
	n := &birdNet{t: t, manx: namespace.New(t, "mxbgp-m"), bird: namespace.New(t, "mxbgp-b"), dir: t.TempDir()}
	n.ctl, n.pidFile = filepath.Join(n.dir, "ctl"), filepath.Join(n.dir, "pid")
	n.ip("link", "add", "eth0", "netns", n.manx, "type", "veth", "peer", "name", "eth0", "netns", n.bird)
	for ns, addrs := range map[string][]string{n.manx: manxAddrs, n.bird: birdAddrs} {
		lines := []string{"link set eth0 up"}
		for _, a := range addrs {
			line := "addr add " + a + " dev eth0"
			if strings.Contains(a, ":") {
				line += " nodad"
			}
			lines = append(lines, line)
		}
		if err := namespace.Batch(ns, lines...); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n *birdNet) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// launch starts n.cmd, the router named, and ends it with the test. It returns the router's output, which the log of a
// failed test has, too.
func (n *birdNet) launch(name string) *strings.Builder {
	n.t.Helper()
	out := &strings.Builder{}
	n.cmd.Stdout, n.cmd.Stderr = out, out
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	cmd := n.cmd
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if n.t.Failed() {
			n.t.Logf("%s:\n%s", name, out)
		}
	})
	return out
}

// start runs BIRD in the foreground.
func (n *birdNet) start(config string, args ...string) {
	n.t.Helper()
	if config != "" {
		n.config = filepath.Join(n.dir, "bird.conf")
		if err := os.WriteFile(n.config, []byte(config), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	_ = os.Remove(n.ctl)
	n.cmd = exec.Command("ip", append([]string{"netns", "exec", n.bird, "bird", "-f", "-c", n.config, "-s", n.ctl, "-P",
		n.pidFile}, args...)...)
	out := n.launch("bird")
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat(n.ctl); err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("bird does not start: %s", out)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (n *birdNet) birdc(args ...string) string {
	out, _ := exec.Command("birdc", append([]string{"-s", n.ctl}, args...)...).CombinedOutput()
	return string(out)
}

// await waits until BIRD's reply contains all texts.
func (n *birdNet) await(cmd string, texts ...string) string {
	n.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		out := n.birdc(strings.Fields(cmd)...)
		missing := ""
		for _, text := range texts {
			if !strings.Contains(out, text) {
				missing = text
			}
		}
		if missing == "" {
			return out
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("birdc %s: no %q in:\n%s", cmd, missing, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// awaitNot waits until BIRD's reply does not contain text any more.
func (n *birdNet) awaitNot(cmd, text string) {
	n.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for strings.Contains(n.birdc(strings.Fields(cmd)...), text) {
		if time.Now().After(deadline) {
			n.t.Fatalf("birdc %s still prints %q", cmd, text)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// watchKernel records every route that is deleted in BIRD's namespace from now on.
func (n *birdNet) watchKernel() {
	n.t.Helper()
	cmd := exec.Command("ip", "-n", n.bird, "monitor", "route")
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	var mu sync.Mutex
	var lines []string
	probe := make(chan struct{})
	go func() {
		once := sync.Once{}
		in := bufio.NewScanner(out)
		for in.Scan() {
			if strings.Contains(in.Text(), "192.0.2.1") { // the probe below
				once.Do(func() { close(probe) })
				continue
			}
			if strings.HasPrefix(in.Text(), "Deleted") {
				mu.Lock()
				lines = append(lines, in.Text())
				mu.Unlock()
			}
		}
	}()
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for started := false; !started; { // until the monitor listens
		n.ip("-n", n.bird, "route", "add", "blackhole", "192.0.2.1/32")
		n.ip("-n", n.bird, "route", "del", "blackhole", "192.0.2.1/32")
		select {
		case <-probe:
			started = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	n.deleted = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string{}, lines...)
	}
}

const birdHead = `
log stderr all;
router id 10.77.0.2;
graceful restart wait 60;
protocol device {}
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; graceful restart; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; graceful restart; }
protocol static { ipv4; route 10.244.2.0/26 blackhole; route 0.0.0.0/0 blackhole; }
protocol static { ipv6; route fd00:244:2::/122 blackhole; }
template bgp common { graceful restart; connect delay time 1; connect retry time 2; error wait time 1, 2; }
`

func birdSession(name, local string, as int, neighbor, family, extra string) string {
	return fmt.Sprintf("protocol bgp %s from common { local %s as %d; neighbor %s as 64512; multihop; %s %s { import "+
		"all; export where source = RTS_STATIC; next hop self; add paths on; }; }\n",
		name, local, as, neighbor, extra, family)
}

func birdDesired() bgp.Desired {
	lp := uint32(bgp.MaxPriority - bgp.NormalPriority)
	return bgp.Desired{
		Global: bgp.Global{LocalAS: 64512, RouterID: ip("10.77.0.1"), ListenPort: 179},
		Originated: []bgp.Origin{
			{Prefix: pfx("10.244.1.0/26"), LocalPref: lp, Communities: []uint32{64512<<16 | 5},
				LargeCommunities: [][3]uint32{{64512, 1, 2}}, Blackhole: true},
			{Prefix: pfx("10.244.1.64/26"), LocalPref: lp, Blackhole: true},
			{Prefix: pfx("fd00:244:1::/122"), LocalPref: lp, Blackhole: true},
		},
	}
}

func birdPeer(addr, source string, as uint32) bgp.Session {
	return bgp.Session{Address: ip(addr), LocalAS: 64512, PeerAS: as, Source: ip(source), Type: bgp.SessionNode}
}

func TestWithBIRD(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.1/24", "10.77.0.10/24", "10.77.0.11/24", "10.77.0.12/24", "10.77.0.13/24",
		"fd77::1/64", "fd77::10/64"},
		[]string{"10.77.0.2/24", "10.77.0.3/24", "10.77.0.4/24", "10.77.0.5/24", "10.77.0.6/24", "fd77::2/64",
			"fd77::3/64"})
	n.start(birdHead +
		birdSession("ibgp4", "10.77.0.2", 64512, "10.77.0.1", "ipv4", "") +
		birdSession("ebgp4", "10.77.0.3", 64600, "10.77.0.10", "ipv4", "") +
		birdSession("ibgp6", "fd77::2", 64512, "fd77::1", "ipv6", "") +
		birdSession("ebgp6", "fd77::3", 64600, "fd77::10", "ipv6", "") +
		birdSession("good5", "10.77.0.4", 64512, "10.77.0.11", "ipv4", `password "secret";`) +
		birdSession("bad5", "10.77.0.5", 64512, "10.77.0.12", "ipv4", `password "theirs";`) +
		strings.Replace(birdSession("otherAS", "10.77.0.6", 64512, "10.77.0.13", "ipv4", ""), "10.77.0.13 as 64512",
			"10.77.0.13 as 64999", 1))
	d := birdDesired()
	good, bad := birdPeer("10.77.0.4", "10.77.0.11", 64512), birdPeer("10.77.0.5", "10.77.0.12", 64512)
	good.Password, bad.Password = "secret", "ours"
	d.Sessions = []bgp.Session{birdPeer("10.77.0.2", "10.77.0.1", 64512), birdPeer("10.77.0.3", "10.77.0.10", 64600),
		good, bad,
		birdPeer("fd77::2", "fd77::1", 64512), birdPeer("fd77::3", "fd77::10", 64600),
		birdPeer("10.77.0.6", "10.77.0.13", 64512)}
	c := startChild(t, n.manx)
	c.set(d)
	for _, s := range d.Sessions {
		if s.Address == bad.Address || s.Address == ip("10.77.0.6") {
			continue
		}
		c.await("session with "+s.Address.String(),
			func() bool { return c.sessions[s.Address].Phase == PhaseEstablished })
	}

	for proto, texts := range map[string][]string{
		"ibgp4": {"10.244.1.0/26", "BGP.local_pref: 2147482623", "BGP.next_hop: 10.77.0.1\n", "BGP.as_path: \n",
			"BGP.origin: IGP", "BGP.community: (64512,5)", "BGP.large_community: (64512, 1, 2)"},
		"ebgp4": {"10.244.1.0/26", "BGP.local_pref: 100", "BGP.next_hop: 10.77.0.10", "BGP.as_path: 64512"},
		"good5": {"10.244.1.0/26", "BGP.local_pref: 2147482623", "BGP.next_hop: 10.77.0.11"},
		"ibgp6": {"fd00:244:1::/122", "BGP.local_pref: 2147482623", "BGP.next_hop: fd77::1"},
		"ebgp6": {"fd00:244:1::/122", "BGP.local_pref: 100", "BGP.next_hop: fd77::10", "BGP.as_path: 64512"},
	} {
		n.await("show route all protocol "+proto, texts...)
	}
	// One family per session.
	if out := n.birdc("show", "protocols", "all", "ibgp4"); strings.Contains(out, "ipv6") {
		t.Errorf("the IPv4 session offers IPv6:\n%s", out)
	}
	c.await("BIRD's routes", func() bool {
		return len(c.routes[pfx("10.244.2.0/26")].Paths) > 0 && len(c.routes[pfx("fd00:244:2::/122")].Paths) > 0 &&
			len(c.routes[pfx("0.0.0.0/0")].Paths) > 0
	})
	if r := c.route(pfx("10.244.2.0/26")); r.Metric != bgp.MaxPriority-100 || r.Paths[0].Peer != ip("10.77.0.2") {
		t.Errorf(
			"iBGP route %+v; BIRD sends LOCAL_PREF 100 without a filter, and iBGP from .2 has the shortest AS path", r)
	}

	// A released prefix is withdrawn, the others stay.
	d.Originated = d.Originated[1:]
	c.set(d)
	n.awaitNot("show route", "10.244.1.0/26")
	n.await("show route", "10.244.1.64/26", "fd00:244:1::/122")

	// BIRD expects another AS than ours and reports that in a NOTIFICATION.
	c.await("the reason of the wrong AS", func() bool {
		return strings.Contains(c.sessions[ip("10.77.0.6")].Reason, "it expects another AS, we are 64512")
	})

	// A session with a wrong password never comes up and reports why.
	c.await("the reason of the wrong password", func() bool {
		return strings.Contains(c.sessions[bad.Address].Reason, "wrong MD5 password")
	})
	// The right one brings it up without touching the others.
	before := c.session(good.Address).Flaps
	d.Sessions[3].Password = "theirs"
	c.set(d)
	c.await("the session with the corrected password",
		func() bool { return c.sessions[bad.Address].Phase == PhaseEstablished })
	if c.session(good.Address).Flaps != before {
		t.Error("another session was touched")
	}
}

// TestRestartUnderBIRD: BIRD, as helper, must not lose a route while the speaker is killed and started again, and the
// speaker must not lose BIRD's routes while BIRD restarts (RFC 4724).
func TestRestartUnderBIRD(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.1/24", "10.77.0.10/24", "fd77::1/64"},
		[]string{"10.77.0.2/24", "10.77.0.3/24", "fd77::2/64"})
	names := []string{"ibgp4", "ebgp4", "ibgp6"}
	n.start(birdHead +
		birdSession("ibgp4", "10.77.0.2", 64512, "10.77.0.1", "ipv4", "") +
		birdSession("ebgp4", "10.77.0.3", 64600, "10.77.0.10", "ipv4", "") +
		birdSession("ibgp6", "fd77::2", 64512, "fd77::1", "ipv6", ""))
	d := birdDesired()
	d.Sessions = []bgp.Session{birdPeer("10.77.0.2", "10.77.0.1", 64512), birdPeer("10.77.0.3", "10.77.0.10", 64600),
		birdPeer("fd77::2", "fd77::1", 64512)}
	up := func(c *child) {
		t.Helper()
		for _, s := range d.Sessions {
			c.await("session with "+s.Address.String(),
				func() bool { return c.sessions[s.Address].Phase == PhaseEstablished })
		}
		c.await("the end of the restart", func() bool { return c.synced })
		for _, name := range names {
			n.await("show protocols all "+name, "Established")
		}
	}
	c := startChild(t, n.manx)
	c.set(d)
	up(c)
	n.await("show route", "10.244.1.0/26", "10.244.1.64/26", "fd00:244:1::/122")
	n.watchKernel()
	for _, sig := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		c.kill(sig)
		for _, name := range names {
			n.await("show protocols all "+name, "Neighbor graceful restart active")
		}
		c = startChild(t, n.manx)
		c.set(d)
		up(c)
		for _, name := range names {
			// R bit and F bit of our OPEN.
			n.await("show protocols all "+name, "Restart recovery", "AF preserved: ipv")
			// Our End-of-RIB ends the helper's work; routes that we had not sent again would be deleted now.
			n.awaitNot("show protocols all "+name, "Neighbor graceful restart active")
		}
		n.await("show route", "10.244.1.0/26", "10.244.1.64/26", "fd00:244:1::/122")
		if lost := n.deleted(); len(lost) > 0 {
			t.Fatalf("after %s BIRD deleted %q", sig, lost)
		}
	}

	// The reverse: BIRD is killed and restarts with recovery.
	c.await("BIRD's routes", func() bool { return len(c.routes) >= 3 })
	c.mu.Lock()
	c.removed = nil
	c.mu.Unlock()
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	c.await("the loss", func() bool {
		return strings.Contains(c.sessions[ip("10.77.0.2")].Reason, "graceful restart") ||
			strings.Contains(c.sessions[ip("10.77.0.2")].LastError, "graceful restart")
	})
	n.start("", "-R")
	for _, s := range d.Sessions {
		c.await("session with "+s.Address.String(), func() bool {
			st := c.sessions[s.Address]
			return st.Phase == PhaseEstablished && st.Flaps == 1
		})
	}
	n.await("show route", "10.244.1.0/26", "10.244.1.64/26", "fd00:244:1::/122")
	c.mu.Lock()
	removed := append([]netip.Prefix{}, c.removed...)
	c.mu.Unlock()
	if len(removed) > 0 {
		t.Errorf("routes %v went away while BIRD restarted", removed)
	}
}

// reconfigure changes the configuration of the running BIRD.
func (n *birdNet) reconfigure(config string) {
	n.t.Helper()
	if err := os.WriteFile(n.config, []byte(config), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if out := n.birdc("configure"); !strings.Contains(out, "econfigur") {
		n.t.Fatalf("birdc configure: %s", out)
	}
}

// TestCrashesInARowUnderBIRD: the speaker is killed again before it may send its End-of-RIB, since another peer is
// down. BIRD removes what it had kept and not got again, which is nothing (RFC 4724 section 4.2).
func TestCrashesInARowUnderBIRD(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.1/24"}, []string{"10.77.0.2/24"})
	n.start(birdHead + birdSession("ibgp4", "10.77.0.2", 64512, "10.77.0.1", "ipv4", ""))
	d := birdDesired()
	d.Originated = d.Originated[:2]
	d.Sessions = []bgp.Session{birdPeer("10.77.0.2", "10.77.0.1", 64512), birdPeer("10.77.0.9", "10.77.0.1", 64512)}
	c := startChild(t, n.manx)
	c.set(d)
	n.await("show route", "10.244.1.0/26", "10.244.1.64/26")
	n.watchKernel()
	for range 3 {
		c.kill(syscall.SIGKILL)
		n.await("show protocols all ibgp4", "Neighbor graceful restart active")
		c = startChild(t, n.manx)
		c.set(d)
		n.await("show protocols all ibgp4", "Established")
		time.Sleep(time.Second) // the routes leave at once; the next crash must not be earlier
		c.mu.Lock()
		over := c.synced
		c.mu.Unlock()
		if over {
			t.Fatal("the restart is over")
		}
	}
	n.awaitNot("show protocols all ibgp4", "Neighbor graceful restart active") // with our End-of-RIB, after 10 s
	n.await("show route", "10.244.1.0/26", "10.244.1.64/26")
	if lost := n.deleted(); len(lost) > 0 {
		t.Errorf("BIRD deleted %q", lost)
	}
}
