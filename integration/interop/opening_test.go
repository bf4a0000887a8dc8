package interop

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// filter replaces the packet filter in the router's namespace until the end of the test. The rules of the chains see
// what arrives and what leaves; each chain has a counter.
func (b *bench) filter(t *testing.T, arriving, leaving string) {
	t.Helper()
	ns := b.ToRs[0].Namespace
	t.Cleanup(func() { _ = namespace.Command(ns, "nft", "flush", "ruleset").Run() })
	cmd := namespace.Command(ns, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf("flush ruleset\ntable inet dialled {\n"+
		"counter there {}\ncounter back {}\n"+
		"chain i { type filter hook input priority 0;\n%s\n}\n"+
		"chain o { type filter hook output priority 0;\n%s\n}\n}\n", arriving, leaving))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// counted waits until so many counters of the filter have seen a packet.
func (b *bench) counted(t *testing.T, want int) {
	t.Helper()
	eventually(t, func() error {
		out, err := namespace.Command(b.ToRs[0].Namespace, "nft", "list", "counters").CombinedOutput()
		if n := 2 - strings.Count(string(out), "packets 0 "); err == nil && n < want {
			err = fmt.Errorf("%d counters have seen a packet, want %d: %s", n, want, out)
		}
		return err
	})
}

// connections lists the router's TCP connections with Manx; its own port ("sport") or the other one ("dport") is 179.
func (b *bench) connections(t *testing.T, port string) (list []string) {
	t.Helper()
	out, err := namespace.Command(b.ToRs[0].Namespace, "ss", "-Htn", "state", "established", port+" = :179 and dst "+
		b.n.IP4.String()).Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		list = append(list, line)
	}
	return list
}

const refuse = "tcp dport 179 reject with tcp reset"

func (b *bench) testDialledByManx(t *testing.T) {
	b.filter(t, "", refuse)
	b.establish(t, b.external(), "", "")
	b.oneConnection(t, "sport")
}

func (b *bench) testDialledByRouter(t *testing.T) {
	b.filter(t, refuse, "")
	b.establish(t, b.external(), "", "")
	b.oneConnection(t, "dport")
}

// oneConnection waits until Manx and the router have one connection, in one of these directions.
func (b *bench) oneConnection(t *testing.T, ports ...string) {
	t.Helper()
	eventually(t, func() error {
		var list []string
		for _, port := range ports {
			list = append(list, b.connections(t, port)...)
		}
		if len(list) != 1 {
			return fmt.Errorf("connections between both, by %s: %q", ports, list)
		}
		return nil
	})
}

// testDialledByBoth makes a collision (RFC 4271, section 6.8): both ends dial before a connection can open, and the
// OPENs are held back until both connections are open; one, if the router takes that for its own and dials no more.
func (b *bench) testDialledByBoth(t *testing.T) {
	const dial = "tcp dport 179 counter name %s drop"
	b.filter(t, fmt.Sprintf(dial, "there"), fmt.Sprintf(dial, "back"))
	p := b.external()
	b.r.run(t, p)
	must(t, b.n.Apply(bgpPeer("router", p.local, p.as, "", "")))
	b.counted(t, 2)
	// A packet of a handshake has at most 60 bytes, an OPEN at least 69.
	const handshake = "tcp sport 179 tcp flags & (syn | ack) == (syn | ack) counter name %s\n" +
		"tcp sport 179 meta length > 60 drop\ntcp dport 179 meta length > 60 drop"
	b.filter(t, fmt.Sprintf(handshake, "there"), fmt.Sprintf(handshake, "back"))
	open := 2
	if slices.Contains([]string{"OpenBGPD", "GoBGP", "ExaBGP"}, b.r.name()) {
		open = 1
	}
	b.counted(t, open)
	b.filter(t, "", "")
	learned(t, b.r, b.own4)
	b.route(t, theirs4, p.local)
	was := b.established(t, p.local)
	b.oneConnection(t, "sport", "dport")
	b.checkNotReset(t, p.local, was)
}

// testTwoByteAS has a router without the capability for AS numbers of four bytes between AS numbers that need them
// (RFC 6793), with an AS of Manx below and above 65535.
func (b *bench) testTwoByteAS(t *testing.T) {
	feeder := &bird{site: newSite(t, b.Lab, 1)}
	defer feeder.stop()
	feeder.run(t, peering{as: 4200000002, manxAS: 64512, local: b.addr2, manx: b.node2,
		announce: []netip.Prefix{shared}})
	must(t, b.n.Apply(bgpPeer("feeder", b.addr2, 4200000002, "", ", sourceAddress: None")))
	p := b.external()
	p.twoByte, p.announce = true, []netip.Prefix{theirs4, passedOn}
	p.behind = 4200000009
	path := fmt.Sprint(p.as, " ", p.behind)
	ases := []uint32{64512, 4200000001}
	shown := func(path ...any) string { return b.r.shows(asPath, strings.TrimSpace(fmt.Sprintln(path...))) }
	switch b.r.name() {
	case "BIRD": // it refuses a neighbour's AS above 65535, and AS_TRANS since it reads our capability
		ases = ases[:1]
	case "OpenBGPD": // its own routes cannot have an AS behind it
		path = fmt.Sprint(p.as)
	case "FRR": // it takes AS4_PATH from peers without the capability only
		long := regexp.MustCompile(`\b42\d{8}\b`)
		merged := shown
		shown = func(path ...any) string { return long.ReplaceAllString(merged(path...), "23456") }
	}
	for _, as := range ases {
		p.manxAS = as
		b.establish(t, p, "", fmt.Sprintf(", localASNumber: %d", as))
		learned(t, b.r, b.own4, shown(as))
		learned(t, b.r, shared, shown(as, 4200000002))
		learned(t, feeder, passedOn, feeder.shows(asPath, fmt.Sprint("64512 ", path)))
		eventually(t, func() error {
			out, err := b.n.Manxctl("routes", "--received-from", b.addr.String(), "-o", "wide")
			if err == nil && !strings.Contains(out, " "+path+" ") {
				err = fmt.Errorf("no path %q in the received routes:\n%s", path, out)
			}
			return err
		})
	}
}

// testAddPathReceived has the router announce a prefix by two next hops.
func (b *bench) testAddPathReceived(t *testing.T) {
	p := b.internal()
	p.nextHops = []netip.Addr{netip.MustParseAddr("10.200.1.51"), netip.MustParseAddr("10.200.1.52")}
	b.r.run(t, p)
	must(t, b.n.Apply(bgpPeer("router", p.local, p.as, "", "")))
	b.route(t, theirs4, p.nextHops...)
	learned(t, b.r, b.own4)
	eventually(t, func() error {
		if s := b.peer(t, p.local); s.Prefixes.Received != 2 || s.Prefixes.Accepted != 2 {
			return fmt.Errorf("the status counts %+v, want both paths", s.Prefixes)
		}
		return nil
	})
}

var updatesOut = regexp.MustCompile(`out \((\d+) updates\)`)

// updatesOut is the count of UPDATEs that Manx has sent to the router.
func (b *bench) updatesOut(t *testing.T) (n int) {
	t.Helper()
	out, err := b.n.Manxctl("describe", "peer", b.addr.String())
	must(t, err)
	m := updatesOut.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no count of UPDATEs in\n%s", out)
	}
	n, err = strconv.Atoi(m[1])
	must(t, err)
	return n
}

// testRouteRefresh has the router request the routes again (RFC 2918), and Manx send them again by itself.
func (b *bench) testRouteRefresh(t *testing.T) { b.sentAgain(t, b.r.refresh, b.reset(t, "--soft")) }

func (b *bench) testSoftReset(t *testing.T) { b.sentAgain(t, b.reset(t, "--soft")) }

// reset returns a function that resets the session on Manx's side.
func (b *bench) reset(t *testing.T, how string) func() {
	return func() {
		t.Helper()
		if out, err := b.n.Manxctl("reset", "peer", b.addr.String(), how); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// sentAgain checks that each of the functions makes Manx send its routes again, in the same session.
func (b *bench) sentAgain(t *testing.T, causes ...func()) {
	t.Helper()
	was := b.establish(t, b.external(), "", "")
	time.Sleep(1500 * time.Millisecond) // Manx sends its routes again after a session came up, which would hide a fault
	for _, cause := range causes {
		before := b.updatesOut(t)
		cause()
		eventually(t, func() error {
			if now := b.updatesOut(t); now <= before {
				return fmt.Errorf("Manx has sent %d UPDATEs, no more than before", now)
			}
			return nil
		})
	}
	learned(t, b.r, b.own4)
	b.route(t, theirs4, b.addr)
	b.checkNotReset(t, b.addr, was)
}

// testHardReset ends the session from each side: it comes up again with the routes of both.
func (b *bench) testHardReset(t *testing.T) {
	was := b.establish(t, b.external(), "", "")
	for _, reset := range []func(){b.reset(t, "--hard"), b.r.reset} {
		reset()
		eventually(t, func() error {
			now := b.peer(t, b.addr)
			if now.State != "Established" || now.Flaps == was.Flaps {
				return fmt.Errorf("not reset and established again: was %+v, is %+v", was, now)
			}
			was = now
			return nil
		})
		learned(t, b.r, b.own4)
		b.route(t, theirs4, b.addr)
	}
}
