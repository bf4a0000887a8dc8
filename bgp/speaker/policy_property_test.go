package speaker

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgppolicy"
	"github.com/manxnet/manx/datastore/model"
)

// policyLab has two peers that announce and two that listen, one of each in another AS. Every prefix comes from one
// side only, so that best path selection has no effect.
type policyLab struct {
	t         *testing.T
	rnd       *rand.Rand
	s         *Speaker
	d         bgp.Desired
	senders   map[netip.Addr]*fakePeer
	receivers map[netip.Addr]*fakePeer
	sent      map[netip.Addr]map[netip.Prefix]bgp.Candidate
}

func newPolicyLab(t *testing.T, seed uint64, base int) *policyLab {
	l := &policyLab{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), senders: map[netip.Addr]*fakePeer{},
		receivers: map[netip.Addr]*fakePeer{},
		sent:      map[netip.Addr]map[netip.Prefix]bgp.Candidate{}}
	l.s, l.d = testSpeaker(t, Config{InterfaceOf: func(hop netip.Addr) string { return hopOf[hop] }})
	l.d.ExportPrefixes = []netip.Prefix{pfx("10.0.0.0/8")}
	l.d.NoExportPrefixes = []netip.Prefix{pfx("10.2.1.0/24"), pfx("10.3.0.0/16")}
	l.d.OwnBlocks, l.d.Elevated = []netip.Prefix{pfx("10.2.1.0/24")}, [2][]uint32{{7, 512}, {}}
	type peer struct {
		as     uint32
		client bool
		into   map[netip.Addr]*fakePeer
	}
	peers := []peer{{64512, false, l.senders}, {64601, false, l.senders}, {64512, true, l.receivers},
		{64602, false, l.receivers}}
	for i, p := range peers {
		session := passive(fmt.Sprintf("127.0.2.%d", base+i))
		session.PeerAS, session.ReflectorClient, session.Outsider = p.as, p.client, p.as != 64512
		if p.client {
			session.ReflectorClusterID = ip("10.99.0.1")
		}
		l.d.Sessions = append(l.d.Sessions, session)
	}
	mustSet(t, l.s, l.d)
	for i, p := range peers {
		addr := l.d.Sessions[i].Address
		p.into[addr] = dialFake(t, addr.String(), listenOf(l.d),
			fakeOptions{as: p.as, id: fmt.Sprintf("10.99.6.%d", i+1)})
		awaitSession(t, l.s, addr.String(), "Established", established)
	}
	return l
}

var (
	someCommunities = []uint32{65000<<16 | 1, 65000<<16 | 2, 65000<<16 | 11,
		gobgppolicy.GracefulShutdown, gobgppolicy.NoExport, gobgppolicy.NoAdvertise}
	someLarge      = [][3]uint32{{65000, 0, 1}, {65000, 0, 2}, {4200000000, 1, 11}}
	somePaths      = [][]uint32{{}, {65000}, {65000, 65001}, {65001, 65000}, {650001, 65000}, {65000, 65000, 65001}}
	someInterfaces = []string{"", "cali1", "eth0"}
	hopOf          = map[netip.Addr]string{ip("10.0.0.70"): "", ip("10.0.0.71"): "cali1", ip("10.0.0.72"): "eth0"}
	someCIDRs      = []string{"10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.1.1.0/24", "10.2.2.0/24",
		"0.0.0.0/0"}
	somePriorities = []uint32{1024, 512, bgp.MaxPriority - 100, 7}
)

func pick[T any](l *policyLab, list []T) T { return list[l.rnd.IntN(len(list))] }

func (l *policyLab) often(percent int) bool { return l.rnd.IntN(100) < percent }

func (l *policyLab) subset(list []uint32) (kept []uint32) {
	for _, v := range list {
		if l.often(20) {
			kept = append(kept, v)
		}
	}
	return kept
}

func (l *policyLab) attributes(c bgp.Candidate) bgp.Candidate {
	c.Communities = l.subset(someCommunities)
	c.LargeCommunities = nil
	for _, v := range someLarge {
		if l.often(25) {
			c.LargeCommunities = append(c.LargeCommunities, v)
		}
	}
	return c
}

// announce sends new attributes for some prefixes of both senders.
func (l *policyLab) announce() {
	l.t.Helper()
	for i, addr := range slices.SortedFunc(maps.Keys(l.senders), netip.Addr.Compare) {
		if l.sent[addr] == nil {
			l.sent[addr] = map[netip.Prefix]bgp.Candidate{}
		}
		for n := range 12 {
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n % 5), byte(n % 3), byte(128 * i)}), 25+n%3)
			if l.sent[addr][prefix].Prefix.IsValid() && l.often(70) {
				continue
			}
			c := l.attributes(bgp.Candidate{Prefix: prefix, Source: bgp.SourceInternal, ASPath: pick(l, somePaths),
				Interface: pick(l, someInterfaces), LocalPref: bgp.MaxPriority - pick(l, somePriorities)})
			if i == 1 {
				c.Source, c.LocalPref = bgp.SourceExternal, bgp.DefaultLocalPref
				c.ASPath = append([]uint32{64601}, c.ASPath...)
			}
			l.sent[addr][prefix] = c
			l.senders[addr].send(updateOf(c))
		}
	}
}

func updateOf(c bgp.Candidate) *gobgp.BGPMessage {
	hop := fmt.Sprintf("10.0.0.7%d", slices.Index(someInterfaces, c.Interface))
	m := update(hop, 0, 0, c.Prefix)
	u := m.Body.(*gobgp.BGPUpdate)
	if len(c.ASPath) > 0 {
		u.PathAttributes[1] = gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{
			gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, c.ASPath)})
	}
	if c.Source == bgp.SourceInternal {
		u.PathAttributes = append(u.PathAttributes, gobgp.NewPathAttributeLocalPref(c.LocalPref))
	}
	if len(c.Communities) > 0 {
		u.PathAttributes = append(u.PathAttributes, gobgp.NewPathAttributeCommunities(c.Communities))
	}
	var large []*gobgp.LargeCommunity
	for _, v := range c.LargeCommunities {
		large = append(large, gobgp.NewLargeCommunity(v[0], v[1], v[2]))
	}
	if len(large) > 0 {
		u.PathAttributes = append(u.PathAttributes, gobgp.NewPathAttributeLargeCommunities(large))
	}
	return m
}

func (l *policyLab) rule(name string, export bool) bgp.Rule {
	r := bgp.Rule{Name: name, Accept: l.often(60)}
	if l.often(40) {
		p := pfx(pick(l, someCIDRs))
		r.Prefix = &bgp.PrefixMatch{CIDR: p, Min: p.Bits() + l.rnd.IntN(33-p.Bits()), Not: l.often(30)}
		r.Prefix.Max = r.Prefix.Min + l.rnd.IntN(33-r.Prefix.Min)
	}
	if l.often(30) {
		r.Community = new(pick(l, someCommunities))
	}
	if l.often(30) {
		r.Large = new(pick(l, someLarge))
	}
	if l.often(20) {
		r.ASPathPrefix = pick(l, somePaths)
	}
	if l.often(15) {
		r.Priority = pick(l, somePriorities)
	}
	if l.often(15) {
		r.PeerType = pick(l, []string{"eBGP", "iBGP"})
	}
	r.RemotePeers = l.often(10)
	if l.often(10) {
		r.Interface = pick(l, []string{"cali*", "eth?", "*"})
	}
	if r.Accept {
		for range l.rnd.IntN(5) {
			r.Operations = append(r.Operations, l.operation(export))
		}
	}
	return r
}

func (l *policyLab) operation(export bool) bgp.Operation {
	switch l.rnd.IntN(4) {
	case 0:
		return bgp.Operation{AddCommunity: new(pick(l, someCommunities))}
	case 1:
		return bgp.Operation{AddLarge: new(pick(l, someLarge))}
	case 2:
		list := []uint32{65010, 65011}
		if export {
			list = append(list, 64512)
		}
		op := bgp.Operation{}
		for range 1 + l.rnd.IntN(4) {
			op.PrependASPath = append(op.PrependASPath, pick(l, list))
		}
		return op
	}
	return bgp.Operation{SetPriority: pick(l, somePriorities)}
}

// change makes new filters, lists of filters and own routes.
func (l *policyLab) change() {
	l.d.Filters, l.d.Originated = nil, nil
	for i := range 4 {
		f := bgp.Filter{Name: fmt.Sprintf("f%d", i)}
		for n := range l.rnd.IntN(4) {
			f.ImportV4 = append(f.ImportV4, l.rule(fmt.Sprintf("%s in %d", f.Name, n), false))
		}
		for n := range l.rnd.IntN(4) {
			f.ExportV4 = append(f.ExportV4, l.rule(fmt.Sprintf("%s out %d", f.Name, n), true))
		}
		l.d.Filters = append(l.d.Filters, f)
	}
	l.d.Sessions = slices.Clone(l.d.Sessions)
	for i := range l.d.Sessions {
		l.d.Sessions[i].Filters = nil
		l.d.Sessions[i].Drain = pick(l, []model.DrainPhase{model.InService, model.InService, model.Draining,
			model.Drained})
		for _, n := range l.rnd.Perm(4)[:l.rnd.IntN(4)] {
			l.d.Sessions[i].Filters = append(l.d.Sessions[i].Filters, fmt.Sprintf("f%d", n))
		}
	}
	for n := range 8 {
		if l.often(20) {
			continue
		}
		c := l.attributes(bgp.Candidate{})
		o := bgp.Origin{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n % 5), 9, byte(n * 16)}), 28),
			LocalPref: bgp.MaxPriority - pick(l, somePriorities),
			Interface: pick(l, someInterfaces), FilterOnly: l.often(30), Withheld: l.often(10),
			Communities: c.Communities, LargeCommunities: c.LargeCommunities}
		l.d.Originated = append(l.d.Originated, o)
	}
	l.d.Tags = nil
	for range l.rnd.IntN(3) {
		c := l.attributes(bgp.Candidate{})
		l.d.Tags = append(l.d.Tags, bgp.Tag{Prefix: pfx(pick(l, someCIDRs)), Communities: c.Communities,
			LargeCommunities: c.LargeCommunities})
	}
	l.refuse()
	l.d.Drain = pick(l, []bgp.Drain{bgp.DrainNone, bgp.DrainNone, bgp.DrainNone, bgp.DrainDraining, bgp.DrainWithdrawn})
}

// refuse makes new refusals. Those of outsiders all have the same exceptions, as far as they match.
func (l *policyLab) refuse() {
	l.d.Refusals = nil
	var blocks []netip.Prefix
	for _, prefixes := range l.sent {
		for p := range prefixes {
			if l.often(30) {
				blocks = append(blocks, p)
			}
		}
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	for range l.rnd.IntN(4) {
		p := pfx(pick(l, someCIDRs[1:]))
		r := bgp.Refusal{Match: bgp.PrefixMatch{CIDR: p, Min: p.Bits() + l.rnd.IntN(33-p.Bits())},
			Outsiders: l.often(50)}
		r.Match.Max = r.Match.Min + l.rnd.IntN(33-r.Match.Min)
		if r.Outsiders {
			r.Except = blocks
		} else if l.often(30) {
			r.Also = blocks
			r.Match.Max = r.Match.Min - 1
		}
		l.d.Refusals = append(l.d.Refusals, r)
	}
}

// want computes the expected routes of each listener and of the kernel from the rules.
func (l *policyLab) want() (out map[netip.Addr]map[netip.Prefix]string, fib map[netip.Prefix]uint32) {
	out, fib = map[netip.Addr]map[netip.Prefix]string{}, map[netip.Prefix]uint32{}
	var learned, own []bgp.Candidate
	for _, session := range l.d.Sessions[:2] {
		for prefix, c := range l.sent[session.Address] {
			if v := importVerdict(l.d, session, &TablePath{}, c); v.Accept {
				learned = append(learned, v.Route)
				fib[prefix] = bgp.MaxPriority - v.Route.LocalPref
			}
		}
	}
	for _, o := range l.d.Originated {
		if !o.Withheld {
			own = append(own, o.Candidate())
		}
	}
	for _, session := range l.d.Sessions[2:] {
		routes := map[netip.Prefix]string{}
		for _, c := range slices.Concat(learned, own) {
			if c.Source != bgp.SourceOwn && forbidden(session, c.Communities) {
				continue
			}
			if v := exportVerdict(l.d, session, c); v.Accept {
				routes[c.Prefix] = onWire(session, c, v.Route)
			}
		}
		out[session.Address] = routes
	}
	return out, fib
}

// onWire returns the attributes of an accepted route as the peer receives it.
func onWire(session bgp.Session, before, after bgp.Candidate) string {
	path, pref, med := after.ASPath, fmt.Sprint(after.LocalPref), ""
	if session.PeerAS != session.LocalAS {
		prepended := after.ASPath[:len(after.ASPath)-len(before.ASPath)]
		path = slices.Concat(gobgppolicy.BehindOwnAS(session.LocalAS, prepended), []uint32{session.LocalAS},
			before.ASPath)
		pref = ""
		if before.Source != bgp.SourceOwn {
			med = fmt.Sprint(gobgppolicy.RelayMED)
		}
	}
	return wireText(path, pref, med, after.Communities, after.LargeCommunities)
}

func wireText(path []uint32, pref, med string, communities []uint32, large [][3]uint32) string {
	communities, large = slices.Clone(communities), slices.Clone(large)
	slices.Sort(communities)
	slices.SortFunc(large, func(a, b [3]uint32) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]), cmp.Compare(a[2], b[2]))
	})
	return fmt.Sprintf("path %v pref %s med %s communities %v large %v", path, pref, med, communities, large)
}

func (p *fakePeer) wire() map[netip.Prefix]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	routes := map[netip.Prefix]string{}
	for prefix, u := range p.routes {
		var path, communities []uint32
		var large [][3]uint32
		pref, med := "", ""
		for _, a := range u.PathAttributes {
			switch a := a.(type) {
			case *gobgp.PathAttributeAsPath:
				for _, segment := range a.Value {
					path = append(path, segment.GetAS()...)
				}
			case *gobgp.PathAttributeLocalPref:
				pref = fmt.Sprint(a.Value)
			case *gobgp.PathAttributeMultiExitDisc:
				med = fmt.Sprint(a.Value)
			case *gobgp.PathAttributeCommunities:
				communities = a.Value
			case *gobgp.PathAttributeLargeCommunities:
				for _, v := range a.Values {
					large = append(large, [3]uint32{v.ASN, v.LocalData1, v.LocalData2})
				}
			}
		}
		routes[prefix] = wireText(path, pref, med, communities, large)
	}
	return routes
}

// difference describes a deviation from the expected state, or nothing.
func (l *policyLab) difference() string {
	out, fib := l.want()
	var b strings.Builder
	for addr, want := range out {
		compareMaps(&b, addr.String(), l.receivers[addr].wire(), want)
	}
	have := map[netip.Prefix]uint32{}
	for _, r := range l.s.Snapshot() {
		have[r.Prefix] = r.Metric
	}
	compareMaps(&b, "kernel", have, fib)
	return b.String()
}

func compareMaps[V comparable](b *strings.Builder, where string, have, want map[netip.Prefix]V) {
	for p, w := range want {
		if h, ok := have[p]; !ok || h != w {
			fmt.Fprintf(b, "%s %s:\n  have %v %v\n  want %v\n", where, p, ok, h, w)
		}
	}
	for p, h := range have {
		if _, ok := want[p]; !ok {
			fmt.Fprintf(b, "%s %s: have %v, want none\n", where, p, h)
		}
	}
}

// TestPolicyDoesWhatTheRulesSay: after any sequence of filters, sessions and routes, peers and the kernel have exactly
// the routes of bgp.Desired, with the same attributes.
func TestPolicyDoesWhatTheRulesSay(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for n := range 2 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			seed := seed + uint64(n)
			l := newPolicyLab(t, seed, 10+10*n)
			for round := range 40 {
				l.change()
				if l.often(50) {
					l.announce()
					mustSet(t, l.s, l.d)
				} else {
					mustSet(t, l.s, l.d)
					l.announce()
				}
				deadline := time.Now().Add(20 * time.Second)
				diff := l.difference()
				for diff != "" && time.Now().Before(deadline) {
					time.Sleep(5 * time.Millisecond)
					diff = l.difference()
				}
				if diff != "" {
					t.Fatalf("seed %d, round %d: drain %q, filters of sessions %v:\n%s\nfilters %s", seed, round,
						l.d.Drain, l.listed(), diff, describe(l.d.Filters))
				}
			}
			for addr, p := range l.receivers {
				if p.isClosed() {
					t.Errorf("the session with %s ended", addr)
				}
			}
		})
	}
}

func (l *policyLab) listed() (names [][]string) {
	for _, s := range l.d.Sessions {
		names = append(names, s.Filters)
	}
	return names
}

func describe(filters []bgp.Filter) string {
	var b strings.Builder
	for _, f := range filters {
		for _, r := range slices.Concat(f.ImportV4, f.ExportV4) {
			fmt.Fprintf(&b, "%s: accept %v", r.Name, r.Accept)
			if r.Prefix != nil {
				fmt.Fprintf(&b, " prefix %+v", *r.Prefix)
			}
			if r.Community != nil {
				fmt.Fprintf(&b, " community %s", gobgppolicy.CommunityText(*r.Community))
			}
			if r.Large != nil {
				fmt.Fprintf(&b, " large %v", *r.Large)
			}
			fmt.Fprintf(&b, " path %v priority %d peer %q remote %v interface %q;", r.ASPathPrefix, r.Priority,
				r.PeerType, r.RemotePeers, r.Interface)
			for _, op := range r.Operations {
				switch {
				case op.AddCommunity != nil:
					fmt.Fprintf(&b, " add %s", gobgppolicy.CommunityText(*op.AddCommunity))
				case op.AddLarge != nil:
					fmt.Fprintf(&b, " add %v", *op.AddLarge)
				default:
					fmt.Fprintf(&b, " prepend %v priority %d", op.PrependASPath, op.SetPriority)
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
