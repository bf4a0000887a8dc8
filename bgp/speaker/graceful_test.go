package speaker

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

var writeGraceful = flag.Bool("write-graceful", false, "write the cases into docs/graceful-restart.md")

// gracefulCase is a row of the table in docs/graceful-restart.md, with the test that shows it.
type gracefulCase struct {
	name    string
	happens string // to the session, in order
	result  string // for the routes, or for the messages of Manx
	rfc     string
	run     func(*testing.T)
}

// gracefulGroup is a table of docs/graceful-restart.md.
type gracefulGroup struct {
	name, intro string
	columns     [2]string // of happens and result
	cases       []gracefulCase
}

func gracefulGroups() []gracefulGroup {
	helper := gracefulGroup{name: "A peer is lost", columns: [2]string{"the peer", "its routes"}, intro: "" +
		"The peer announces P1 and P2, is lost, and announces P1 alone when it is back. \"GR\" is the capability\n" +
		"with the family of the session. A restart time is always that of the peer's OPEN.\n"}
	for _, l := range losses {
		helper.cases = append(helper.cases, gracefulCase{l.name, l.happens(), l.keep.words(), l.rfc, l.run})
	}
	return []gracefulGroup{
		helper,
		{"A peer is lost again, or connects twice", "", [2]string{"the peer", "its routes"}, repeatedLosses},
		{"Manx restarts", "A and B are peers with GR, unless the row says otherwise.\n",
			[2]string{"after the start of Manx", "Manx"}, ownRestarts},
		{"Other programs", "BIRD is an internal peer, FRR an external one. They announce P1 and P2, and P1 alone " +
			"after\ntheir restart.\n",
			[2]string{"the peer", "its routes"}, routerRestarts},
	}
}

// TestGracefulRestart runs the cases of the table in docs/graceful-restart.md.
func TestGracefulRestart(t *testing.T) {
	t.Parallel()
	// Rows mostly wait for timers: more of them run at once than the flag -parallel lets in.
	slots := make(chan struct{}, 12)
	var wg sync.WaitGroup
	for _, g := range gracefulGroups() {
		for _, c := range g.cases {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				t.Run(g.name+"/"+c.name, c.run)
			})
		}
	}
	wg.Wait()
}

const (
	gracefulPage = "../../docs/graceful-restart.md"
	gracefulHead = "<!-- cases of graceful restart -->\n"
	gracefulEnd  = "<!-- end of the cases -->\n"
)

func gracefulText() string {
	var b strings.Builder
	b.WriteString("Written by `make graceful` from `bgp/speaker`, where a test shows each row.\n")
	for _, g := range gracefulGroups() {
		fmt.Fprintf(&b, "\n### %s\n\n", g.name)
		if g.intro != "" {
			b.WriteString(g.intro + "\n")
		}
		fmt.Fprintf(&b, "| case | %s | %s | RFC |\n|---|---|---|---|\n", g.columns[0], g.columns[1])
		for _, c := range g.cases {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.name, c.happens, c.result, c.rfc)
		}
	}
	return b.String()
}

// TestGracefulCasesInTheDocumentation fails when the page has another table; -write-graceful corrects it.
func TestGracefulCasesInTheDocumentation(t *testing.T) {
	names := map[string]bool{}
	for _, g := range gracefulGroups() {
		for _, c := range g.cases {
			if names[c.name] || c.name == "" || c.happens == "" || c.result == "" || c.rfc == "" || c.run == nil {
				t.Errorf("%s: the row %+v has a name that is not unique, or an empty field", g.name, c)
			}
			names[c.name] = true
		}
	}
	b, err := os.ReadFile(gracefulPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), gracefulHead)
	have, after, ok2 := strings.Cut(rest, gracefulEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks %q and %q", gracefulPage, gracefulHead, gracefulEnd)
	}
	switch want := gracefulText(); {
	case have == want:
	case *writeGraceful:
		if err := os.WriteFile(gracefulPage, []byte(before+gracefulHead+want+gracefulEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table of %s is not that of this test; `make graceful` writes it anew", gracefulPage)
	}
}

const (
	restartLong  = 120 // seconds: routes that go earlier do not go because of it
	restartShort = 6
	soon         = 20 * time.Second // far less than restartLong, and enough for a busy machine
)

var p1, p2, p3, p4 = pfx("10.244.1.0/26"), pfx("10.244.2.0/26"), pfx("10.244.3.0/26"), pfx("10.244.4.0/26")

// gr is the capability of graceful restart in an OPEN.
type gr struct {
	absent   bool
	families []gobgp.Family // nil: that of the session
	F        []bool         // of each family; nil: all as f
	r, f, n  bool
	time     uint16 // 0: restartLong
	zero     bool   // a restart time of 0
	hold     uint16 // of the OPEN
}

func (g gr) options() fakeOptions {
	o := fakeOptions{as: 64512, id: "10.99.0.30", hold: g.hold}
	o.caps = []gobgp.ParameterCapabilityInterface{gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_UC),
		gobgp.NewCapRouteRefresh(), gobgp.NewCapFourOctetASNumber(o.as)}
	if g.absent {
		return o
	}
	var tuples []*gobgp.CapGracefulRestartTuple
	for i, family := range g.announced() {
		f := g.f
		if g.F != nil {
			f = g.F[i]
		}
		tuples = append(tuples, gobgp.NewCapGracefulRestartTuple(family, f))
	}
	o.caps = append(o.caps, gobgp.NewCapGracefulRestart(g.r, g.n, g.seconds(), tuples))
	return o
}

func (g gr) announced() []gobgp.Family {
	if g.families == nil {
		return []gobgp.Family{gobgp.RF_IPv4_UC}
	}
	return g.families
}

func (g gr) seconds() uint16 {
	switch {
	case g.zero:
		return 0
	case g.time == 0:
		return restartLong
	}
	return g.time
}

func (g gr) words() string {
	bit := map[bool]string{false: "0", true: "1"}
	flags := " R=" + bit[g.r]
	if g.families == nil {
		flags += " F=" + bit[g.f]
	}
	if g.n {
		flags += " N=1"
	}
	switch {
	case g.absent:
		return "without GR"
	case g.families == nil:
		return "with GR" + flags + map[bool]string{true: " and restart time 0"}[g.zero]
	case len(g.families) == 0:
		return "with GR" + flags + " for no family"
	case len(g.families) > 1:
		return "with GR" + flags + ", F=0 for the family of the session, F=1 for another one"
	}
	return "with GR" + flags + " for another family alone"
}

// gracefulLab is a speaker with peers that restart.
type gracefulLab struct {
	t     *testing.T
	s     *Speaker
	d     bgp.Desired
	table routeTable
	lost  time.Time // shortly before the last loss
}

// restartingPeer is one of the peers; each connect begins a new session.
type restartingPeer struct {
	*fakePeer
	lab  *gracefulLab
	addr string
}

func newGracefulLab(t *testing.T, cfg Config, count int) (*gracefulLab, []*restartingPeer) {
	t.Helper()
	l := &gracefulLab{t: t, table: routeTable{}}
	l.s, l.d = testSpeaker(t, cfg)
	var peers []*restartingPeer
	for range count {
		p := &restartingPeer{lab: l, addr: uniqueLoopback(t)}
		l.d.Sessions = append(l.d.Sessions, passive(p.addr))
		peers = append(peers, p)
	}
	l.d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1000}}
	mustSet(t, l.s, l.d)
	return l, peers
}

// helperLab is a speaker whose own restart is over as soon as its peer is up.
func helperLab(t *testing.T) *restartingPeer {
	t.Helper()
	_, peers := newGracefulLab(t, Config{RestartDeferral: time.Second}, 1)
	return peers[0]
}

func (p *restartingPeer) connect(g gr) {
	p.t().Helper()
	p.fakePeer = dialFake(p.t(), p.addr, listenOf(p.lab.d), g.options())
	awaitSession(p.t(), p.lab.s, p.addr, "Established", established)
}

func (p *restartingPeer) t() *testing.T { return p.lab.t }

// first brings up the first session, announces routes and waits until the restart of the speaker itself is over.
func (p *restartingPeer) first(g gr) {
	p.t().Helper()
	p.connect(g)
	p.announce(p1, p2)
	if !g.absent {
		p.endOfRIB()
	}
	p.lab.awaitSynced()
}

func (l *gracefulLab) awaitSynced() {
	l.t.Helper()
	awaitRoutes(l.t, l.s, l.table, "the end of the speaker's own restart", func() bool {
		synced, _ := l.s.Synced()
		return synced
	})
}

// announce sends routes and waits for the last one, which must be new: it shows that the others have arrived.
func (p *restartingPeer) announce(prefixes ...netip.Prefix) {
	p.t().Helper()
	p.send(update("10.0.0.30", 0, 100, prefixes...))
	last := prefixes[len(prefixes)-1]
	awaitRoutes(p.t(), p.lab.s, p.lab.table, "route "+last.String(), func() bool { return p.lab.has(last) })
}

func (p *restartingPeer) endOfRIB() { p.send(gobgp.NewEndOfRib(gobgp.RF_IPv4_UC)) }

func (l *gracefulLab) has(prefix netip.Prefix) bool {
	_, ok := l.table[prefix]
	return ok
}

// have fails unless these routes are in the table now.
func (l *gracefulLab) have(when string, prefixes ...netip.Prefix) {
	l.t.Helper()
	awaitRoutes(l.t, l.s, l.table, "nothing", func() bool { return true })
	for _, prefix := range prefixes {
		if !l.has(prefix) {
			l.t.Fatalf("%s, route %s is gone", when, prefix)
		}
	}
}

// gone waits until routes are gone, for a limited time.
func (l *gracefulLab) gone(within time.Duration, when string, prefixes ...netip.Prefix) {
	l.t.Helper()
	awaitRoutesFor(l.t, l.s, l.table, within, "the routes to go "+when, func() bool {
		for _, prefix := range prefixes {
			if l.has(prefix) {
				return false
			}
		}
		return true
	})
}

// goneAfter waits until routes are gone, which may not happen before a restart time has passed since start.
func (l *gracefulLab) goneAfter(start time.Time, seconds uint16, prefixes ...netip.Prefix) {
	l.t.Helper()
	restart := time.Duration(seconds) * time.Second
	l.gone(time.Until(start.Add(restart))+soon, "after the restart time", prefixes...)
	// One second less: how the timers of the two sides round does not matter.
	if took := time.Since(start); took < restart-time.Second {
		l.t.Fatalf("routes went after %s, before the restart time of %s was over", took, restart)
	}
}

// lose ends the session and waits until the speaker has noticed.
func (p *restartingPeer) lose(end func(*restartingPeer)) {
	p.t().Helper()
	st, _ := p.lab.s.Session(ip(p.addr))
	end(p)
	awaitSession(p.t(), p.lab.s, p.addr, "the loss", func(now SessionStatus) bool {
		return now.Flaps > st.Flaps
	})
}

// dial opens one connection more, sends an OPEN and reads.
func (p *restartingPeer) dial(g gr) *fakePeer {
	p.t().Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(p.addr)}, Timeout: soon}
	conn, err := d.Dial("tcp", listenOf(p.lab.d))
	if err != nil {
		p.t().Fatal(err)
	}
	p.t().Cleanup(func() { conn.Close() })
	f := &fakePeer{t: p.t(), conn: conn, routes: map[netip.Prefix]*gobgp.BGPUpdate{}}
	f.changed = sync.NewCond(&f.mu)
	f.send(g.options().open())
	go f.receive(g.options())
	return f
}

// wantRestartBits checks the capability in the speaker's last OPEN.
func (p *restartingPeer) wantRestartBits(want bool) {
	p.t().Helper()
	if r, f := gracefulBits(p.open); r != want || !f {
		p.t().Errorf("our OPEN to %s has R=%t F=%t, want R=%t F=true", p.addr, r, f, want)
	}
	if c := gracefulCapability(p.open); c == nil || c.Flags&0x04 != 0 {
		p.t().Errorf("our OPEN has the capability %+v, want one without N", c)
	}
}
