package interop

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// cells are the rows of the matrix.
var cells = []struct {
	name string
	run  func(*bench, *testing.T)
}{
	{"IPv4", (*bench).testIPv4},
	{"IPv6", (*bench).testIPv6},
	{"dialled by Manx", (*bench).testDialledByManx},
	{"dialled by the router", (*bench).testDialledByRouter},
	{"dialled by both", (*bench).testDialledByBoth},
	{"iBGP", (*bench).testInternal},
	{"eBGP", (*bench).testExternal},
	{"MD5", (*bench).testMD5},
	{"GTSM", (*bench).testGTSM},
	{"4-byte AS", (*bench).testFourByteAS},
	{"2-byte AS", (*bench).testTwoByteAS},
	{"communities", (*bench).testCommunities},
	{"large communities", (*bench).testLargeCommunities},
	{"ADD-PATH", (*bench).testAddPath},
	{"ADD-PATH received", (*bench).testAddPathReceived},
	{"ECMP", (*bench).testECMP},
	{"route refresh", (*bench).testRouteRefresh},
	{"hard reset", (*bench).testHardReset},
	{"GR helper", (*bench).testHelper},
	{"GR restarter", (*bench).testRestarter},
	{"filters", (*bench).testFilters},
	{"routes of the kernel", (*bench).testKernelRoutes},
	{"BFD", (*bench).testBFD},
	{"reflector client", (*bench).testReflectorClient},
	{"reflector", (*bench).testReflector},
}

// without replaces cells for routers that lack the feature.
var without = map[string]func(*bench, *testing.T){
	"route refresh": (*bench).testSoftReset,
	"GR helper":     (*bench).testManxCrashes,
	"GR restarter":  (*bench).testRouterCrashes,
}

// makers are the columns. lacks has a reason for each cell that the router cannot have.
var makers = []struct {
	name     string
	programs []string
	make     func(site) router
	lacks    map[string]string
}{
	{"BIRD", nil, func(s site) router { return &bird{site: s} }, nil},
	{"FRR", []string{frrFolder + "bgpd", "vtysh"}, func(s site) router { return &frr{site: s} }, nil},
	{"GoBGP", []string{"gobgpd", "gobgp"}, func(s site) router { return &gobgp{site: s} }, map[string]string{
		"BFD":           "has no BFD",
		"2-byte AS":     "always announces AS numbers of four bytes",
		"route refresh": "requests no routes again: it keeps them all",
	}},
	{"OpenBGPD", []string{"bgpd", "bgpctl"}, func(s site) router { return &openbgpd{site: s} }, map[string]string{
		"BFD":               "has no BFD",
		"ADD-PATH received": "announces one path to each network of its own",
		"GR restarter":      "announces graceful restart of no family, so that its routes go at once",
	}},
	{"ExaBGP", []string{"exabgp"}, func(s site) router { return &exabgp{site: s} }, map[string]string{
		"BFD":              "has no BFD",
		"GR helper":        "has no table whose routes it could keep",
		"reflector client": "passes no routes on",
	}},
}

func TestInterop(t *testing.T) {
	results := map[string]map[string]string{}
	for _, m := range makers {
		results[m.name] = map[string]string{}
	}
	t.Cleanup(func() { writeTable(t, results) })
	// Each column has two labs, with every second cell. They mostly wait for timers: eight run side by side, the slow
	// ones first.
	const labs = 2
	turns := make(chan struct{}, 8)
	var mu sync.Mutex // of results
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, m := range makers {
		for lab := range labs {
			turns <- struct{}{}
			wg.Go(func() {
				defer func() { <-turns }()
				t.Run(fmt.Sprintf("%s/%d", m.name, lab+1), func(t *testing.T) {
					name := fmt.Sprintf("%.1s%d", strings.ToLower(m.name), lab)
					b := newBench(t, name, m.make, m.programs...)
					for i := lab; i < len(cells); i += labs {
						word := b.word(t, cells[i].name, cells[i].run, m.lacks)
						mu.Lock()
						results[m.name][cells[i].name] = word
						mu.Unlock()
					}
				})
			})
		}
	}
}

// word runs one cell and returns its result in the table.
func (b *bench) word(t *testing.T, name string, run func(*bench, *testing.T), lacks map[string]string) string {
	result := passed
	if lacks[name] != "" {
		run, result = without[name], none
	}
	if run != nil && !t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) { b.cell(t, run) }) {
		return failed
	}
	return result
}

// cell runs one cell and removes its traces.
func (b *bench) cell(t *testing.T, run func(*bench, *testing.T)) {
	start := time.Now()
	defer func() {
		if t.Failed() {
			t.Logf("sessions of %s:\n%s\nof manxd:\n%s", b.r.name(), b.r.sessions(), b.peers())
		}
		b.removeObjects(t)
		t.Logf("%.1f s", time.Since(start).Seconds())
	}()
	run(b, t)
}

func (b *bench) testIPv4(t *testing.T) { b.establish(t, b.external(), "", "") }

func (b *bench) testIPv6(t *testing.T) {
	p := b.external()
	p.local, p.manx, p.announce = b.addr6, b.n.IP6, []netip.Prefix{theirs6}
	b.establish(t, p, "", "")
}

func (b *bench) testInternal(t *testing.T) {
	b.establish(t, b.internal(), "", "")
	learned(t, b.r, b.own4, b.r.shows(localPref, calicoPriority))
}

func (b *bench) testExternal(t *testing.T) {
	b.establish(t, b.external(), "", "")
	learned(t, b.r, b.own4, b.r.shows(asPath, "64512"))
}

func (b *bench) testMD5(t *testing.T) {
	p := b.external()
	p.password = "s3cret"
	must(t, os.WriteFile(b.passwordFile, []byte("wrong"), 0o600))
	b.r.run(t, p)
	must(t, b.n.Apply(bgpPeer("router", p.local, p.as, "", ", password: {secretKeyRef: {name: bgp, key: router}}")))
	eventually(t, func() error {
		s := b.peer(t, p.local)
		if s.State == "Established" {
			t.Fatal("the session is up with a wrong password")
		}
		if !strings.Contains(s.Reason, "MD5 password") {
			return fmt.Errorf("the session does not name the password: %+v", s)
		}
		return nil
	})
	must(t, os.WriteFile(b.passwordFile, []byte(p.password), 0o600))
	learned(t, b.r, b.own4)
	b.route(t, theirs4, p.local)
}

func (b *bench) testGTSM(t *testing.T) {
	p := b.external()
	p.ttl = true
	b.establish(t, p, "", ", ttlSecurity: 1")
	p.ttl = false // its packets leave with TTL 1, as those of a neighbour without TTL security do
	b.r.run(t, p)
	time.Sleep(4 * time.Second) // the router keeps trying without success
	if s := b.peer(t, p.local); s.State == "Established" {
		t.Fatal("the session is up although the router's packets may come from afar")
	}
}

func (b *bench) testFourByteAS(t *testing.T) {
	p := b.external()
	p.as, p.manxAS = 4200000002, 4200000001
	b.establish(t, p, "", ", localASNumber: 4200000001")
	learned(t, b.r, b.own4, b.r.shows(asPath, "4200000001"))
}

// tagged announces with communities both ways.
func (b *bench) tagged(t *testing.T) {
	must(t, b.n.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: BGPConfiguration\n"+
		"metadata: {name: default}\n"+
		"spec: {prefixAdvertisements: [{cidr: %s, communities: [\"64512:5\", \"64512:6:7\"]}]}\n", pool4)))
	p := b.external()
	p.tagged = true
	b.establish(t, p, "", "")
}

// received waits until manxctl shows a text among the routes that the router sent.
func (b *bench) received(t *testing.T, text string) {
	t.Helper()
	eventually(t, func() error {
		out, err := b.n.Manxctl("routes", "--received-from", b.addr.String(), "-o", "json")
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("no %q in what the node received:\n%s", text, out)
		}
		return err
	})
}

func (b *bench) testCommunities(t *testing.T) {
	b.tagged(t)
	learned(t, b.r, b.own4, b.r.shows(communities, "64512:5"))
	b.received(t, tagStandard)
}

func (b *bench) testLargeCommunities(t *testing.T) {
	b.tagged(t)
	learned(t, b.r, b.own4, b.r.shows(largeCommunities, "64512:6:7"))
	b.received(t, tagLarge)
}

// testAddPath has a BIRD announce a prefix of the pool by two next hops, which the node passes on to the router.
func (b *bench) testAddPath(t *testing.T) {
	feeder := &bird{site: newSite(t, b.Lab, 1)}
	defer feeder.stop()
	hops := []netip.Addr{netip.MustParseAddr("10.200.101.51"), netip.MustParseAddr("10.200.101.52")}
	feeder.run(t, peering{as: 65020, manxAS: 64512, local: b.addr2, manx: b.node2, announce: []netip.Prefix{shared},
		nextHops: hops})
	must(t, b.n.Apply(bgpPeer("feeder", b.addr2, 65020, "", ", sourceAddress: None")))
	b.route(t, shared, hops...)
	b.establish(t, b.internal(), "", "")
	eventually(t, func() error {
		if n := b.r.paths(shared); n != 2 {
			return fmt.Errorf("%s has %d paths to %s, want 2:\n%s", b.r.name(), n, shared, b.r.routes(shared))
		}
		return nil
	})
	learned(t, b.r, shared, hops[0].String(), hops[1].String())
}

// testECMP has both routers announce one prefix.
func (b *bench) testECMP(t *testing.T) {
	p := b.external()
	b.r.run(t, p)
	p.local, p.manx = b.addr2, b.node2
	b.feeder.run(t, p)
	must(t, b.n.Apply(bgpPeer("router", b.addr, p.as, "", "")+bgpPeer("second", b.addr2, p.as, "",
		", sourceAddress: None")))
	b.route(t, theirs4, b.addr, b.addr2)
	b.feeder.stop()
	b.feeder.run(t, peering{as: p.as, manxAS: p.manxAS, local: p.local, manx: p.manx}) // it has the prefix no more
	b.route(t, theirs4, b.addr)
}

// established is the state of a session as the routers print it.
var established = regexp.MustCompile(`(?i)BGP state *[:=] *Established`)

// crashManx kills manxd and waits until the router has noticed.
func (b *bench) crashManx(t *testing.T) {
	t.Helper()
	b.n.Manxd().Kill()
	eventually(t, func() error {
		if text := b.r.sessions(); established.MatchString(text) {
			return fmt.Errorf("%s has not noticed that manxd is gone:\n%s", b.r.name(), text)
		}
		return nil
	})
}

// recoverManx starts manxd and waits until the routes of both sides are there.
func (b *bench) recoverManx(t *testing.T) {
	t.Helper()
	must(t, b.n.StartManxd())
	must(t, b.n.Ready(patience))
	b.established(t, b.addr)
	b.route(t, theirs4, b.addr)
	learned(t, b.r, b.own4)
}

// testHelper restarts manxd: the router helps.
func (b *bench) testHelper(t *testing.T) {
	b.establish(t, b.external(), "", "")
	deleted := watch(t, b.ToRs[0].Namespace)
	b.crashManx(t)
	if b.r.paths(b.own4) == 0 {
		t.Errorf("%s has dropped %s", b.r.name(), b.own4)
	}
	b.recoverManx(t)
	time.Sleep(time.Second) // nothing may be dropped afterwards
	if deleted(b.own4) {
		t.Errorf("%s dropped %s while manxd restarted", b.r.name(), b.own4)
	}
	learned(t, b.r, b.own4)
}

// testManxCrashes restarts manxd: the router drops its routes and gets them again.
func (b *bench) testManxCrashes(t *testing.T) {
	b.establish(t, b.external(), "", "")
	b.crashManx(t)
	b.recoverManx(t)
}

// crashRouter kills the router and waits until Manx has noticed.
func (b *bench) crashRouter(t *testing.T) {
	t.Helper()
	b.r.crash()
	eventually(t, func() error {
		if p := b.peer(t, b.addr); p.State == "Established" {
			return fmt.Errorf("the node has not noticed that %s is gone", b.r.name())
		}
		return nil
	})
}

// recoverRouter starts the router and waits until the routes of both sides are there.
func (b *bench) recoverRouter(t *testing.T) {
	t.Helper()
	b.r.recover(t)
	b.established(t, b.addr)
	learned(t, b.r, b.own4)
	b.route(t, theirs4, b.addr)
}

// testRestarter restarts the router: Manx helps.
func (b *bench) testRestarter(t *testing.T) {
	b.establish(t, b.external(), "", "")
	deleted, deletedThere := watch(t, b.n.Namespace), watch(t, b.ToRs[0].Namespace)
	b.crashRouter(t)
	b.recoverRouter(t)
	time.Sleep(time.Second) // nothing may be dropped afterwards
	if deleted(theirs4) {
		t.Errorf("Manx dropped %s while %s restarted", theirs4, b.r.name())
	}
	if deletedThere(b.own4) {
		t.Errorf("%s dropped %s while it restarted", b.r.name(), b.own4)
	}
}

// testRouterCrashes restarts the router: Manx drops its routes at once and gets them again.
func (b *bench) testRouterCrashes(t *testing.T) {
	b.establish(t, b.external(), "", "")
	b.crashRouter(t)
	b.route(t, theirs4)
	b.recoverRouter(t)
}

func filter(direction string, p netip.Prefix) string {
	return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: BGPFilter\nmetadata: {name: f}\n"+
		"spec: {%s: [{cidr: %s, matchOperator: In, action: Reject}]}\n", direction, p)
}

func (b *bench) testFilters(t *testing.T) {
	must(t, b.n.Apply(filter("exportV4", theirs4))) // meets nothing that is exported
	was := b.establish(t, b.external(), "", ", filters: [f]")
	must(t, b.n.Apply(filter("exportV4", pool4)))
	awaitWithdrawal(t, b.r, b.own4)
	must(t, b.n.Apply(filter("importV4", theirs4)))
	b.route(t, theirs4)
	learned(t, b.r, b.own4)
	if out, err := b.n.Manxctl("delete", "bgpfilter", "f"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.route(t, theirs4, b.addr)
	b.checkNotReset(t, b.addr, was)
}

// A route that an operator adds on the node goes to the router until it is deleted, or a filter keeps it back. One for
// a prefix that the router announces itself does not, although the kernel prefers it, until the router announces it no
// more.
func (b *bench) testKernelRoutes(t *testing.T) {
	static := netip.MustParsePrefix("10.244.97.0/26")
	route := func(words ...string) {
		t.Helper()
		if out := run("ip", append([]string{"-n", b.n.Namespace, "route"}, words...)...); out != "" {
			t.Fatal(out)
		}
	}
	must(t, b.n.Apply(filter("exportV4", theirs4))) // meets nothing that is exported
	p := b.internal()
	p.announce = []netip.Prefix{shared}
	was := b.establish(t, p, "", ", filters: [f]")
	before := b.r.paths(shared)
	route("add", shared.String(), "via", b.addr2.String(), "metric", "99")
	t.Cleanup(func() { run("ip", "-n", b.n.Namespace, "route", "del", shared.String(), "metric", "99") })
	route("add", static.String(), "via", b.addr2.String(), "metric", "50")
	learned(t, b.r, static, b.r.shows(localPref, "2147483597"))
	if n := b.r.paths(shared); n != before {
		t.Errorf("the router has %d paths to its own prefix, and had %d:\n%s", n, before, b.r.routes(shared))
	}
	must(t, b.n.Apply(filter("exportV4", static)))
	awaitWithdrawal(t, b.r, static)
	must(t, b.n.Apply(filter("exportV4", theirs4)))
	learned(t, b.r, static)
	route("del", static.String())
	awaitWithdrawal(t, b.r, static)
	b.checkNotReset(t, b.addr, was)

	b.r.run(t, b.internal()) // without the prefix
	learned(t, b.r, shared, b.r.shows(localPref, "2147483548"))
}

func (b *bench) testBFD(t *testing.T) {
	p := b.external()
	p.bfd = true
	b.establish(t, p, `manx.io/bfd: "true", manx.io/bfd-interval: 100ms`, "")
	bfdUp := func() error {
		out, err := b.n.Manxctl("describe", "peer", b.addr.String())
		if err == nil && !strings.Contains(out, "Up") {
			err = fmt.Errorf("BFD is not up:\n%s", out)
		}
		return err
	}
	eventually(t, bfdUp)
	time.Sleep(time.Second) // the router's end comes up after ours, and has then the short intervals
	port := func(state string) {
		t.Helper()
		if out := run("ip", "-n", b.ToRs[0].Namespace, "link", "set", "p0", state); out != "" {
			t.Fatal(out)
		}
	}
	port("down")
	defer port("up")
	eventually(t, func() error {
		if s := b.peer(t, b.addr); !strings.Contains(s.Reason, "BFD") {
			return fmt.Errorf("the session has not ended because of BFD: %+v", s)
		}
		return nil
	})
	b.route(t, theirs4)
	port("up")
	b.route(t, theirs4, b.addr)
	learned(t, b.r, b.own4)
	eventually(t, bfdUp)
}

// between lets the two routers reach each other through the node.
func (b *bench) between(t *testing.T) {
	t.Helper()
	for i, via := range []netip.Addr{b.n.IP4, b.node2} {
		to := []netip.Addr{b.addr2, b.addr}[i]
		if out := run("ip", "-n", b.ToRs[i].Namespace, "route", "replace", to.String()+"/32", "via",
			via.String()); out != "" {
			t.Fatal(out)
		}
	}
}

// testReflectorClient has the router reflect to the node the routes that the other router announces.
func (b *bench) testReflectorClient(t *testing.T) {
	b.between(t)
	p := b.internal()
	p.client, p.others = true, []netip.Addr{b.addr2}
	b.establish(t, p, "", "")
	b.feeder.run(t, peering{as: 64512, manxAS: 64512, local: b.addr2, manx: b.addr, announce: []netip.Prefix{shared}})
	b.route(t, shared, b.addr2)
	eventually(t, func() error {
		out, err := b.n.Manxctl("routes", "--received-from", b.addr.String(), "-o", "json")
		if err == nil && !strings.Contains(out, shared.String()) {
			err = fmt.Errorf("not received by reflection:\n%s", out)
		}
		return err
	})
	learned(t, b.feeder, b.own4, b.n.IP4.String()) // and the other way round
}

// testReflector makes the node a reflector of the two routers.
func (b *bench) testReflector(t *testing.T) {
	b.between(t)
	node := func(cluster string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Node\nmetadata: {name: n1}\n"+
			"spec: {bgp: {ipv4Address: %s/24, ipv6Address: \"%s/64\"%s}}\n", b.n.IP4, b.n.IP6, cluster)
	}
	must(t, b.n.Apply(node(", routeReflectorClusterID: 10.11.12.13")))
	defer func() { must(t, b.n.Apply(node(""))) }()
	b.feeder.run(t, peering{as: 64512, manxAS: 64512, local: b.addr2, manx: b.node2, announce: []netip.Prefix{shared}})
	must(t, b.n.Apply(bgpPeer("feeder", b.addr2, 64512, "", ", sourceAddress: None")))
	b.establish(t, b.internal(), "", "")
	learned(t, b.r, shared, b.r.shows(originator, b.addr2.String()), b.r.shows(clusterList, "10.11.12.13"))
	b.feeder.stop()
	b.feeder.run(t, peering{as: 64512, manxAS: 64512, local: b.addr2, manx: b.node2})
	awaitWithdrawal(t, b.r, shared)
}
