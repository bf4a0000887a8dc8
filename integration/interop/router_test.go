package interop

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// peering is the configuration of a router towards Manx.
type peering struct {
	as, manxAS uint32
	local      netip.Addr // of the router
	manx       netip.Addr
	announce   []netip.Prefix
	nextHops   []netip.Addr // several: the router announces each prefix by each of them (ADD-PATH)
	password   string
	ttl        bool // TTL security, one hop
	tagged     bool // announced with tagStandard and tagLarge
	client     bool // Manx is a client of this route reflector
	bfd        bool
	others     []netip.Addr // further iBGP peers, clients too
	twoByte    bool         // without the capability for AS numbers of four bytes
	behind     uint32       // an AS behind the router that its routes come from; 0: none
}

func (p peering) internal() bool { return p.as == p.manxAS }

const tagStandard, tagLarge = "65010:7", "65010:8:9"

// router is another BGP implementation in a namespace of the lab.
type router interface {
	name() string
	// run (re)starts the software with this configuration.
	run(t *testing.T, p peering)
	// crash kills the BGP program and leaves the kernel as it is; recover starts it again.
	crash()
	recover(t *testing.T)
	stop()
	// routes shows the router's routes to a prefix; paths counts its paths.
	routes(p netip.Prefix) string
	paths(p netip.Prefix) int
	// sessions returns the router's view of its peers.
	sessions() string
	// refresh requests the routes of Manx again (RFC 2918); reset ends the session with Manx, which comes up again.
	refresh()
	reset()
	// shows returns the text by which routes shows that an attribute has a value.
	shows(a attribute, value string) string
	log() string
}

// attribute is an attribute of a route.
type attribute int

const (
	localPref attribute = iota
	asPath
	communities
	largeCommunities
	originator
	clusterList
)

// site is where a router runs.
type site struct {
	ns, dir string
	id      netip.Addr
}

func newSite(t *testing.T, l *lab.Lab, i int) site {
	t.Helper()
	s := site{ns: l.ToRs[i].Namespace, dir: filepath.Join(l.Dir, fmt.Sprintf("router%d", i+1)),
		id: l.ToRs[i].Address(l.Nodes[0])}
	must(t, os.MkdirAll(s.dir, 0o777))
	must(t, os.Chmod(s.dir, 0o777))
	return s
}

func (s site) file(name string) string { return filepath.Join(s.dir, name) }

func (s site) write(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(s.file(name), []byte(text), 0o644))
}

// start runs a program of the router, with a process group of its own, until it is killed.
func (s site) start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := namespace.Command(s.ns, name, args...)
	log, err := os.OpenFile(s.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start())
	return cmd
}

// kill kills a program with all its processes: a part that survived would end its sessions in order.
func kill(cmd *exec.Cmd) {
	if cmd != nil && cmd.ProcessState == nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}
}

func (s site) log() string {
	b, _ := os.ReadFile(s.file("log"))
	return string(b)
}

func run(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return string(out) + "\n" + err.Error()
	}
	return string(out)
}

// bird is BIRD 2.
type bird struct {
	site
	cmd *exec.Cmd
}

func (b *bird) name() string { return "BIRD" }

func (b *bird) config(p peering) string {
	var c strings.Builder
	family := "ipv4"
	if p.manx.Is6() {
		family = "ipv6"
	}
	fmt.Fprintf(&c, "log stderr all;\nrouter id %s;\nprotocol device {}\nprotocol direct { ipv4; ipv6; }\n", b.id)
	for _, f := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&c, "protocol kernel { %s { import none; export where source = RTS_BGP; }; graceful restart on; "+
			"merge paths on; }\n", f)
	}
	vias := []string{"blackhole"}
	if len(p.nextHops) > 0 {
		vias = nil
		for _, nh := range p.nextHops {
			vias = append(vias, "via "+nh.String())
		}
	}
	for i, via := range vias {
		fmt.Fprintf(&c, "protocol static own%d { %s { preference %d; };\n", i, family, 200-i)
		for _, prefix := range p.announce {
			fmt.Fprintf(&c, "  route %s %s;\n", prefix, via)
		}
		c.WriteString("}\n")
	}
	c.WriteString("filter announced {\n")
	if p.client {
		c.WriteString("  if source = RTS_BGP then accept;\n")
	}
	c.WriteString("  if source != RTS_STATIC then reject;\n")
	if p.tagged {
		c.WriteString("  bgp_community.add((65010,7)); bgp_large_community.add((65010,8,9));\n")
	}
	if p.behind != 0 {
		fmt.Fprintf(&c, "  bgp_path.prepend(%d);\n", p.behind)
	}
	c.WriteString("  accept;\n}\n")
	if p.bfd {
		c.WriteString("protocol bfd { interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; multiplier " +
			"3; }; multihop { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }\n")
	}
	b.session(&c, "manx", family, p.manx, p.manxAS, p)
	for i, other := range p.others {
		b.session(&c, fmt.Sprintf("other%d", i), family, other, p.manxAS, p)
	}
	return c.String()
}

func (b *bird) session(c *strings.Builder, name, family string, peer netip.Addr, as uint32, p peering) {
	fmt.Fprintf(c, "protocol bgp %s { local %s as %d; neighbor %s as %d; connect delay time 1; connect retry time 1; "+
		"error wait time 1, 1; graceful restart on; debug { states, events };\n",
		name, p.local, p.as, peer, as)
	switch {
	case p.ttl:
		c.WriteString("  ttl security on; direct;\n")
	case p.internal():
		c.WriteString("  multihop;\n")
	}
	if p.password != "" {
		fmt.Fprintf(c, "  password %q;\n", p.password)
	}
	if p.twoByte {
		c.WriteString("  enable as4 off;\n")
	}
	if p.client {
		c.WriteString("  rr client;\n")
	}
	if p.bfd {
		c.WriteString("  bfd on;\n")
	}
	nextHop := ""
	if len(p.nextHops) == 0 && !p.client {
		nextHop = "next hop self; "
	}
	fmt.Fprintf(c, "  %s { import all; export filter announced; %sadd paths on; };\n}\n", family, nextHop)
}

func (b *bird) run(t *testing.T, p peering) {
	t.Helper()
	b.stop()
	b.write(t, "bird.conf", b.config(p))
	b.launch(t)
}

func (b *bird) launch(t *testing.T, args ...string) {
	t.Helper()
	b.cmd = b.start(t, "bird", append([]string{"-f", "-c", b.file("bird.conf"), "-s", b.file("bird.ctl")}, args...)...)
}

func (b *bird) stop()                { kill(b.cmd) }
func (b *bird) crash()               { kill(b.cmd) }
func (b *bird) recover(t *testing.T) { b.launch(t, "-R") }
func (b *bird) birdc(words ...string) string {
	return run("birdc", append([]string{"-s", b.file("bird.ctl")}, words...)...)
}
func (b *bird) routes(p netip.Prefix) string { return b.birdc("show", "route", "all", p.String()) }
func (b *bird) paths(p netip.Prefix) int     { return strings.Count(b.routes(p), "BGP.next_hop") }
func (b *bird) sessions() string             { return b.birdc("show", "protocols", "all", "manx") }
func (b *bird) refresh()                     { b.birdc("reload", "in", "manx") }
func (b *bird) reset()                       { b.birdc("restart", "manx") }

func (b *bird) shows(a attribute, value string) string {
	switch a {
	case localPref:
		return "BGP.local_pref: " + value
	case asPath:
		return "BGP.as_path: " + value + "\n"
	case communities:
		return "(" + strings.ReplaceAll(value, ":", ",") + ")"
	case largeCommunities:
		return "(" + strings.ReplaceAll(value, ":", ", ") + ")"
	case originator:
		return "BGP.originator_id: " + value
	}
	return "BGP.cluster_list: " + value
}

// frr is FRRouting: zebra, bgpd and, where they are needed, bfdd and staticd.
type frr struct {
	site
	daemons map[string]*exec.Cmd
}

func (f *frr) name() string { return "FRR" }

const frrFolder = "/usr/lib/frr/"

func (f *frr) config(p peering) string {
	var c strings.Builder
	family, network := "ipv4", "ip"
	if p.manx.Is6() {
		family, network = "ipv6", "ipv6"
	}
	fmt.Fprintf(&c, "log file %s\n", f.file("frr.log"))
	for _, prefix := range p.announce {
		fmt.Fprintf(&c, "%s route %s blackhole\n", network, prefix)
	}
	c.WriteString("route-map out permit 10\n")
	if p.tagged {
		fmt.Fprintf(&c, " set community %s\n set large-community %s\n", tagStandard, tagLarge)
	}
	if p.behind != 0 {
		fmt.Fprintf(&c, " set as-path prepend %d\n", p.behind)
	}
	c.WriteString("exit\n")
	// One network has one path; the redistributed route is another one.
	hop := func(i int) string {
		if len(p.nextHops) == 0 {
			return ""
		}
		return fmt.Sprintf(" set ip next-hop %s\n", p.nextHops[i])
	}
	fmt.Fprintf(&c, "route-map first permit 10\n set origin igp\n%sexit\n", hop(0))
	if len(p.nextHops) > 1 {
		fmt.Fprintf(&c, "route-map second permit 10\n set origin igp\n%sexit\n", hop(1))
	}
	fmt.Fprintf(&c, "router bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n"+
		" no bgp network import-check\n no bgp default ipv4-unicast\n", p.as, f.id)
	c.WriteString(" bgp graceful-restart\n bgp graceful-restart preserve-fw-state\n" +
		" bgp graceful-restart select-defer-time 5\n")
	for _, peer := range append([]netip.Addr{p.manx}, p.others...) {
		fmt.Fprintf(&c, " neighbor %[1]s remote-as %[2]d\n neighbor %[1]s timers connect 1\n"+
			" neighbor %[1]s update-source %[3]s\n", peer, p.manxAS, p.local)
		if p.twoByte {
			fmt.Fprintf(&c, " neighbor %s dont-capability-negotiate\n", peer) // it has no option for one capability
		}
		if p.password != "" {
			fmt.Fprintf(&c, " neighbor %s password %s\n", peer, p.password)
		}
		if p.ttl {
			fmt.Fprintf(&c, " neighbor %s ttl-security hops 1\n", peer)
		}
		if p.bfd {
			fmt.Fprintf(&c, " neighbor %s bfd 3 100 100\n", peer)
		}
	}
	fmt.Fprintf(&c, " address-family %s unicast\n", family)
	for _, prefix := range p.announce {
		fmt.Fprintf(&c, "  network %s route-map first\n", prefix)
	}
	if len(p.nextHops) > 1 {
		c.WriteString("  redistribute static route-map second\n")
	}
	for _, peer := range append([]netip.Addr{p.manx}, p.others...) {
		fmt.Fprintf(&c, "  neighbor %[1]s activate\n  neighbor %[1]s route-map out out\n"+
			"  neighbor %[1]s addpath-tx-all-paths\n", peer)
		if p.client {
			fmt.Fprintf(&c, "  neighbor %s route-reflector-client\n", peer)
		}
	}
	c.WriteString("  maximum-paths 8\n  maximum-paths ibgp 8\n exit-address-family\nexit\n")
	return c.String()
}

func (f *frr) run(t *testing.T, p peering) {
	t.Helper()
	f.stop()
	f.write(t, "frr.conf", f.config(p))
	f.daemons = map[string]*exec.Cmd{}
	f.launch(t, "zebra")
	if len(p.nextHops) > 0 {
		f.launch(t, "staticd")
	}
	if p.bfd {
		f.launch(t, "bfdd", "--bfdctl", f.file("bfdd.sock"))
	}
	f.launch(t, "bgpd")
}

func (f *frr) launch(t *testing.T, daemon string, args ...string) {
	t.Helper()
	_ = os.Remove(f.file(daemon + ".vty"))
	f.daemons[daemon] = f.start(t, frrFolder+daemon,
		append([]string{"-f", f.file("frr.conf"), "-i", f.file(daemon + ".pid"), "-z", f.file("zserv.api"),
			"--vty_socket", f.dir, "-A", "127.0.0.1", "-u", "frr", "-g", "frr"}, args...)...)
	eventually(t, func() error {
		if out := run("vtysh", "--vty_socket", f.dir, "-d", daemon, "-c", "show version"); !strings.Contains(out,
			"FRRouting") {
			return errors.New(daemon + " does not answer: " + out)
		}
		return nil
	})
}

func (f *frr) stop() {
	for _, name := range []string{"bgpd", "bfdd", "staticd", "zebra"} {
		kill(f.daemons[name])
		delete(f.daemons, name)
	}
	_ = os.Remove(f.file("zserv.api"))
}

func (f *frr) crash()               { kill(f.daemons["bgpd"]) }
func (f *frr) recover(t *testing.T) { f.launch(t, "bgpd") }

func (f *frr) vtysh(command string) string { return run("vtysh", "--vty_socket", f.dir, "-c", command) }

func (f *frr) routes(p netip.Prefix) string {
	family := "ipv4"
	if p.Addr().Is6() {
		family = "ipv6"
	}
	return f.vtysh("show bgp " + family + " unicast " + p.String())
}

func (f *frr) paths(p netip.Prefix) int { return strings.Count(f.routes(p), "Origin IGP") }
func (f *frr) sessions() string         { return f.vtysh("show bgp neighbors") }
func (f *frr) refresh()                 { f.vtysh("clear bgp * in") }
func (f *frr) reset()                   { f.vtysh("clear bgp *") }

func (f *frr) shows(a attribute, value string) string {
	switch a {
	case localPref:
		return "localpref " + value
	case asPath:
		return "  " + value + "\n"
	case communities:
		return "Community: " + value
	case largeCommunities:
		return "Large Community: " + value
	case originator:
		return "Originator: " + value
	}
	return "Cluster list: " + value
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const patience = 40 * time.Second

func eventually(t *testing.T, check func() error) {
	t.Helper()
	must(t, lab.Eventually(patience, check))
}
