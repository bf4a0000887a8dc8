package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire"
)

// sendMany announces n prefixes, as many per UPDATE as a peer would pack.
func sendMany(p *fakePeer, n int) {
	list := manyPrefixes(n)
	for len(list) > 0 {
		k := min(500, len(list))
		p.send(update("10.0.0.2", 0, 100, list[:k]...))
		list = list[k:]
	}
}

func TestManyUnexpectedRoutes(t *testing.T) {
	t.Parallel()
	const many = 60_000 // between the limits that a Config without values has
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.50"), passive("127.0.1.51")}
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1}}
	mustSet(t, s, d)
	noisy := dialFake(t, "127.0.1.50", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.50"})
	quiet := dialFake(t, "127.0.1.51", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.51"})
	awaitSession(t, s, "127.0.1.50", "Established", established)
	awaitSession(t, s, "127.0.1.51", "Established", established)
	go sendMany(noisy, many)
	table := routeTable{}
	awaitRoutes(t, s, table, "all routes", func() bool { return len(table) == many })
	st := awaitSession(t, s, "127.0.1.50", "the warning", func(st SessionStatus) bool { return st.Warning != "" })
	if !established(st) || !strings.Contains(st.Warning, "more than 50000 prefixes; above 500000 the session "+
		"is shut down") {
		t.Errorf("%s, warning %q", st.Phase, st.Warning)
	}
	quiet.await("our route", func() bool { return quiet.routes[pfx("10.244.0.0/26")] != nil })
	if noisy.isClosed() || quiet.isClosed() {
		t.Error("a session was lost")
	}
}

func TestMaxPrefixesHoldsTheSessionDown(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{WarnPrefixes: 500, MaxPrefixes: 1000, PrefixHold: 2 * time.Second})
	d.Sessions = []bgp.Session{passive("127.0.1.52")}
	mustSet(t, s, d)
	o := fakeOptions{as: 64512, id: "10.99.0.52", graceful: true}
	p := dialFake(t, "127.0.1.52", listenOf(d), o)
	awaitSession(t, s, "127.0.1.52", "Established", established)
	sendMany(p, 3000)
	if n := p.awaitClosed(); n == nil || n.ErrorCode != 6 || n.ErrorSubcode != 1 {
		t.Errorf("got %+v, want NOTIFICATION 6/1", n)
	}
	awaitSession(t, s, "127.0.1.52", "the reason", func(st SessionStatus) bool {
		return st.Phase == PhaseFailed &&
			strings.Contains(st.Reason, "announced more than 1000 prefixes; the session is held down for 2s")
	})
	p = dialFake(t, "127.0.1.52", listenOf(d), o)
	awaitSession(t, s, "127.0.1.52", "Established again", established)
	p.send(update("10.0.0.2", 0, 100, pfx("10.1.0.0/24")))
	table := routeTable{}
	awaitRoutes(t, s, table, "only the new route", func() bool {
		return len(table) == 1 &&
			len(table[pfx("10.1.0.0/24")].Paths) == 1
	})
}

// All routes that a peer sends count: those for which another peer is better, those that a filter or a refusal rejects,
// and those with our own AS in the path. The warning comes before the limit, also when both are exceeded at once.
func TestMaxPrefixesCountsWhatIsSent(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		name  string
		send  func(prefixes ...netip.Prefix) *gobgp.BGPMessage
		usual func(d *bgp.Desired)
	}{
		{"another peer is better", func(p ...netip.Prefix) *gobgp.BGPMessage { return update("10.0.0.3", 0, 50, p...) },
			nil},
		{"a filter rejects all", func(p ...netip.Prefix) *gobgp.BGPMessage { return update("10.0.0.3", 0, 100, p...) },
			func(d *bgp.Desired) {
				d.Filters = []bgp.Filter{{Name: "none", ImportV4: []bgp.Rule{{Name: "none"}}}}
				d.Sessions[0].Filters = []string{"none"}
			}},
		{"all are refused", func(p ...netip.Prefix) *gobgp.BGPMessage { return update("10.0.0.3", 0, 100, p...) },
			func(d *bgp.Desired) {
				d.Refusals = bgp.Refusals{{Class: bgp.RefusedLong, Reason: "too long",
					Match: bgp.PrefixMatch{CIDR: pfx("0.0.0.0/0"), Min: 25, Max: 32}}}
			}},
		{"our own AS is in the path", func(p ...netip.Prefix) *gobgp.BGPMessage {
			return update("10.0.0.3", 64512, 100, p...)
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			core, logs := observer.New(zap.WarnLevel)
			s, d := testSpeaker(t, Config{Logger: zap.New(core), PrefixHold: time.Hour})
			addr, better := fmt.Sprintf("127.0.5.%d", 50+2*i), fmt.Sprintf("127.0.5.%d", 51+2*i)
			d.Sessions = []bgp.Session{passive(addr), passive(better)}
			d.Sessions[0].MaxPrefixes = 100
			if c.usual != nil {
				c.usual(&d)
			}
			mustSet(t, s, d)
			first := dialFake(t, better, listenOf(d), fakeOptions{as: 64512, id: "10.99.5.51"})
			awaitSession(t, s, better, "Established", established)
			list := manyPrefixes(300)
			first.send(update("10.0.0.2", 0, 200, list[:90]...))
			p := dialFake(t, addr, listenOf(d), fakeOptions{as: 64512, id: "10.99.5.50"})
			awaitSession(t, s, addr, "Established", established)
			p.send(c.send(list[:60]...))
			for range 5 { // the same again is not more
				p.send(c.send(list[:60]...))
			}
			p.send(c.send(list[60:90]...))
			awaitSession(t, s, addr, "the warning", func(st SessionStatus) bool {
				return established(st) && strings.Contains(st.Warning,
					"more than 80 prefixes; above 100 the session is shut down")
			})
			p.send(withdrawal(list[20:90]...))
			awaitSession(t, s, addr, "no warning",
				func(st SessionStatus) bool { return established(st) && st.Warning == "" })
			logs.TakeAll()
			p.send(c.send(list...))
			if n := p.awaitClosed(); n == nil || n.ErrorCode != 6 || n.ErrorSubcode != 1 {
				t.Errorf("got %+v, want NOTIFICATION 6/1", n)
			}
			awaitSession(t, s, addr, "the reason", func(st SessionStatus) bool {
				return st.Phase == PhaseFailed && st.Warning == "" &&
					strings.Contains(st.Reason, "announced more than 100 prefixes; the session is held down for 1h0m0s")
			})
			if warnings := logs.FilterMessage("bgp session").Filter(func(e observer.LoggedEntry) bool {
				return e.ContextMap()["key"] == addr
			}).All(); len(warnings) == 0 ||
				!strings.Contains(fmt.Sprint(warnings[0].ContextMap()["reason"]), "more than 80 prefixes") {
				t.Errorf("logged %v, want the warning first", warnings)
			}
			if first.isClosed() {
				t.Error("the session of the other peer was lost")
			}
		})
	}
}

// The warning comes before the limit for any values of the two settings.
func TestWarningComesBeforeTheLimit(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		own  uint32
		want wire.Limit
	}{
		{Config{WarnPrefixes: 50_000, MaxPrefixes: 500_000}, 0, wire.Limit{Warn: 50_000, Most: 500_000}},
		{Config{WarnPrefixes: 50_000, MaxPrefixes: 1000}, 0, wire.Limit{Warn: 800, Most: 1000}},
		{Config{WarnPrefixes: 50_000, MaxPrefixes: 500_000}, 10, wire.Limit{Warn: 8, Most: 10}},
		{Config{WarnPrefixes: 50_000, MaxPrefixes: 1}, 0, wire.Limit{Warn: 0, Most: 1}},
	} {
		if got := c.cfg.limit(bgp.Session{MaxPrefixes: c.own}); got != c.want {
			t.Errorf("%+v, %d: %+v, want %+v", c.cfg, c.own, got, c.want)
		}
	}
}

// The limit of one peer: a warning before it, the session held down above it. A higher limit takes effect at once.
func TestMaxPrefixesOfOnePeer(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{PrefixHold: time.Hour})
	d.Sessions = []bgp.Session{passive("127.0.1.54"), passive("127.0.1.55")}
	d.Sessions[0].MaxPrefixes = 100
	mustSet(t, s, d)
	o := fakeOptions{as: 64512, id: "10.99.0.54"}
	p, free := dialFake(t, "127.0.1.54", listenOf(d), o),
		dialFake(t, "127.0.1.55", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.55"})
	awaitSession(t, s, "127.0.1.54", "Established", established)
	awaitSession(t, s, "127.0.1.55", "Established", established)
	warned := func(text string) func(SessionStatus) bool {
		return func(st SessionStatus) bool { return established(st) && strings.Contains(st.Warning, text) }
	}
	sendMany(p, 90)
	awaitSession(t, s, "127.0.1.54", "the warning", warned("more than 80 prefixes; above 100 the session is shut down"))
	set := func(limit uint32) {
		d.Sessions = slices.Clone(d.Sessions)
		d.Sessions[0].MaxPrefixes = limit
		mustSet(t, s, d)
	}
	set(110) // live
	awaitSession(t, s, "127.0.1.54", "the warning with new numbers",
		warned("more than 88 prefixes; above 110 the session is shut down"))
	sendMany(free, 3000)
	table := routeTable{}
	awaitRoutes(t, s, table, "the routes of the other", func() bool { return len(table) == 3000 })
	if st := awaitSession(t, s, "127.0.1.55", "Established", established); st.Warning != "" {
		t.Errorf("the other is warned of a limit that is not its own: %q", st.Warning)
	}
	set(80) // also a limit that is exceeded already counts
	if n := p.awaitClosed(); n == nil || n.ErrorCode != 6 || n.ErrorSubcode != 1 {
		t.Errorf("got %+v, want NOTIFICATION 6/1", n)
	}
	awaitSession(t, s, "127.0.1.54", "the reason", func(st SessionStatus) bool {
		return st.Phase == PhaseFailed &&
			strings.Contains(st.Reason, "announced more than 80 prefixes; the session is held down for 1h0m0s")
	})
	set(0) // the limit of all peers: held down no more
	p = dialFake(t, "127.0.1.54", listenOf(d), o)
	awaitSession(t, s, "127.0.1.54", "Established again", established)
	sendMany(p, 200)
	if st := awaitSession(t, s, "127.0.1.54", "Established", established); st.Warning != "" || p.isClosed() {
		t.Errorf("warning %q, closed %v", st.Warning, p.isClosed())
	}
}

func TestRoutesForOwnBlocks(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.53")}
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1, Blackhole: true}}
	mustSet(t, s, d)
	p := dialFake(t, "127.0.1.53", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.53"})
	awaitSession(t, s, "127.0.1.53", "Established", established)
	p.send(update("10.0.0.2", 0, 4000000000, pfx("10.244.0.0/26"), pfx("10.244.0.1/32")))
	p.send(update("127.0.0.1", 0, 100, pfx("10.3.0.0/24")))
	table := routeTable{}
	awaitRoutes(t, s, table, "the borrowed address", func() bool { return len(table) == 1 })
	if r := table[pfx("10.244.0.1/32")]; r.Metric != 0 || len(r.Paths) != 1 {
		t.Errorf("route %+v; a LOCAL_PREF above 2147483647 is metric 0", r)
	}
	deadline := time.Now().Add(20 * time.Second)
	for len(s.Rejected()) < 2 {
		if time.Now().After(deadline) {
			t.Fatalf("rejected %v, want two", s.Rejected())
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, r := range s.Rejected() {
		if r.Path.Peer != ip("127.0.1.53") || r.Reason == "" {
			t.Errorf("%+v", r)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count(gobgp.BGP_MSG_NOTIFICATION) != 0 {
		t.Error("the session was reset")
	}
}
