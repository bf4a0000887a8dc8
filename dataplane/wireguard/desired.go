package wireguard

import (
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/cryptokey"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Desired implements driver.Objects. Until the datastore has been read nothing is desired, and everything stays as it
// is: the last state of an earlier run may lack keys, and packets to those nodes would go in plain.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[key]value {
	want := map[key]value{}
	if h.Last {
		return want
	}
	pools := h.PoolTable()
	for _, s := range t.sides {
		s.needed = slices.ContainsFunc(pools, func(p ippool.Pool) bool {
			return p.CIDR.Addr().Is4() == (s.Family == model.IPv4)
		})
		l := links[s.Device]
		if l.Kind != kernel.KindWireGuard {
			s.have = nil
		}
		s.decideActive(h.Own.PublicKey(s.Family) != "", l, t.config.Now())
		if !s.active {
			s.plan = cryptokey.Plan{}
			clear(s.proving)
			clear(s.renewed)
			clear(s.moved)
			clear(s.leaving)
			s.hosts = newHosts()
			s.had = false
			continue
		}
		inPool := func(p netip.Prefix) bool { return pools.Of(p) != nil }
		in := cryptokey.Input{Node: h.Node, Nodes: h.Keys(s.Family), Places: s.places, InPool: inPool,
			Refuse: t.config.Refuse, RefuseHost: t.refuseHost, EncryptHosts: t.decideHosts(s, t.config.Now())}
		s.own = h.Own.HostAddress(s.Family)
		for _, l := range slices.Concat(t.input.local, t.contested()) {
			if l.Addr().Is4() == (s.Family == model.IPv4) && l.isHere(h, links) {
				in.Local = append(in.Local, l.Prefix)
			}
		}
		if s.have != nil {
			in.OwnKey = s.have.PublicKey
		}
		before := s.plan
		s.plan = cryptokey.Decide(in)
		s.takeLeave(before, t.config.Now())
		s.noteRenewed(before, t.config.Now())
		s.hosts.forget(s.plan)
		t.resumeHosts(s, l.Index, t.config.Now())
		t.decideMoves(s, l.Index)
		if l.Kind == kernel.KindWireGuard {
			s.wantDevice(want)
		}
		if l.Kind == kernel.KindWireGuard || s.had || t.config.Required {
			t.wantRoutes(s, l, want)
			t.wantHosts(s, l, want)
		}
	}
	return want
}

// decideActive decides whether the family is encrypted. When the settings end that, first the key is withdrawn, and
// the device goes when the other nodes had time to hear of it.
func (s *side) decideActive(published bool, l kernel.Link, now time.Time) {
	there := l.Kind == kernel.KindWireGuard
	if !s.On && published && there {
		s.until = now.Add(linger)
	}
	s.active = s.On || there && now.Before(s.until)
}

// decideMoves decides to which nodes packets are encrypted. To one that has become a peer they are once there was a
// handshake: until then it may not know the key of this node. Routes that exist already stay.
func (t *Target) decideMoves(s *side, device int) {
	for name := range s.moved {
		if _, still := s.plan.Peers[name]; !still {
			delete(s.moved, name)
		}
	}
	for name := range s.proving {
		if _, still := s.plan.Peers[name]; !still {
			delete(s.proving, name)
		}
	}
	for name := range s.plan.Peers {
		if _, known := s.proving[name]; !known && !s.moved[name] {
			s.proving[name] = t.config.Now()
		}
		if t.config.Required {
			delete(s.proving, name)
			s.moved[name] = true
		}
	}
	if len(s.proving) == 0 || device == 0 {
		return
	}
	for p, w := range s.plan.Ways {
		if _, proving := s.proving[w.Node]; proving && t.leadsTo(s.routeKey(p), device) {
			s.moved[w.Node] = true
			delete(s.proving, w.Node)
		}
	}
}

// noteRenewed remembers the peers of the plan before that have another key now. Handshakes that such a node began
// before this host knew the key were dropped, and it begins one in 5 s at most (REKEY_TIMEOUT): this host does so at
// once.
func (s *side) noteRenewed(before cryptokey.Plan, now time.Time) {
	for name, n := range s.plan.Peers {
		if old, was := before.Peers[name]; was && old.Key != n.Key {
			s.renewed[name] = now
		}
	}
	for name := range s.renewed {
		if _, still := s.plan.Peers[name]; !still {
			delete(s.renewed, name)
		}
	}
}

// awaits reports whether a handshake is expected soon.
func (s *side) awaits() bool { return len(s.proving)+len(s.renewed) > 0 }

func (t *Target) leadsTo(k kernel.RouteKey, device int) bool {
	hops := t.routes[k].NextHops
	return len(hops) == 1 && hops[0].Link == device
}

// routeKey is the kernel's identity of the route to a prefix.
func (s *side) routeKey(p netip.Prefix) kernel.RouteKey {
	k := kernel.RouteKey{Dst: p, Table: kernel.Table(s.Table)}
	if s.Family == model.IPv6 {
		k.Metric = kernel.RouteMetric6
	}
	return k
}

// wantDevice adds the objects on the device.
func (s *side) wantDevice(want map[key]value) {
	want[key{Kind: presence, Device: s.Device}] = value{}
	want[key{Kind: settings, Device: s.Device}] = value{Port: s.Port, Mark: s.Mark, Keyed: true}
	if s.Threaded != nil && s.threadable() {
		v := value{Threads: wireguard.ThreadsOff}
		if *s.Threaded {
			v.Threads = wireguard.ThreadsOn
		}
		want[key{Kind: threads, Device: s.Device}] = v
	}
	s.wantLeaving(want)
	for name, n := range s.plan.Peers {
		v := value{Endpoint: netip.AddrPortFrom(n.Address, s.Port), Keepalive: s.Keepalive}
		_, proving := s.proving[name]
		if _, renewed := s.renewed[name]; proving || renewed {
			v.Keepalive = proofKeepalive
		} else if s.hosts.on && (s.peerOf(name).Handshake.IsZero() || s.hosts.dead[name]) {
			v.Keepalive = lookout
		}
		want[key{Kind: peer, Device: s.Device, Peer: n.Key}] = v
	}
	for p, k := range s.plan.Hosts {
		want[key{Kind: allowed, Device: s.Device, Prefix: p}] = value{Peer: k}
	}
	for p, w := range s.plan.Ways {
		if !w.Peer.IsZero() {
			want[key{Kind: allowed, Device: s.Device, Prefix: p}] = value{Peer: w.Peer}
		}
	}
}

// threadable reports whether threads can be switched: before the device has a peer the kernel refuses that.
func (s *side) threadable() bool {
	return s.have != nil && len(s.have.Peers) > 0 && s.have.Threads != wireguard.NoThreads
}

// wantRoutes adds the routes, and the rule that leads to them. Packets that are not encrypted go the way of the main
// table, unless encryption is required: those to other nodes are refused then.
func (t *Target) wantRoutes(s *side, l kernel.Link, want map[key]value) {
	covered := s.plan.Covered()
	for p, w := range s.plan.Ways {
		v := value{Type: kernel.Throw}
		switch {
		case w.Node == t.input.node || !s.On:
		case !w.Peer.IsZero() && s.moved[w.Node] && l.Kind == kernel.KindWireGuard && l.Up:
			v = value{Type: kernel.Unicast, Link: l.Index}
		case t.config.Required:
			v.Type = kernel.Unreachable
		}
		// Without a shorter prefix around it, nothing differs without the route. To the packet filter of Linux 7.3 an
		// IPv6 address with such a route has none: the check of pods' sources would drop their packets.
		if v.Type == kernel.Throw && s.Family == model.IPv6 && !covered(p) {
			continue
		}
		want[key{Kind: way, Device: s.Device, Prefix: p, Table: kernel.Table(s.Table)}] = v
	}
	if t.synced {
		want[key{Kind: rule, Device: s.Device, Rule: s.rule()}] = value{}
	}
}

// rule is that of the family, without its protocol.
func (s *side) rule() kernel.Rule {
	return kernel.Rule{IPv6: s.Family == model.IPv6, Priority: s.Priority, Mark: s.Mark, Mask: s.Mark, Not: true,
		Table: kernel.Table(s.Table)}
}
