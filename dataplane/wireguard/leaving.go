package wireguard

import (
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/cryptokey"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
)

// leaving is a former peer, which may still encrypt: it learns of a change later than this host. Nothing is sent to it.
type leaving struct {
	node     cryptokey.Node
	prefixes []netip.Prefix // its AllowedIPs
	until    time.Time
}

// takeLeave remembers the peers of the plan before whose nodes are no peers any more, and forgets those whose time is
// over.
func (s *side) takeLeave(before cryptokey.Plan, now time.Time) {
	for name, n := range before.Peers {
		if _, still := s.plan.Peers[name]; !still {
			s.leaving[n.Key] = leaving{node: n, prefixes: prefixesOf(before, n.Key), until: now.Add(linger)}
		}
	}
	for k, l := range s.leaving {
		if !now.Before(l.until) {
			delete(s.leaving, k)
		}
	}
	for _, n := range s.plan.Peers { // it is back, or its key is another node's now
		delete(s.leaving, n.Key)
	}
}

func prefixesOf(p cryptokey.Plan, k wireguard.Key) (list []netip.Prefix) {
	for prefix, w := range p.Ways {
		if w.Peer == k {
			list = append(list, prefix)
		}
	}
	for prefix, holder := range p.Hosts {
		if holder == k {
			list = append(list, prefix)
		}
	}
	return list
}

// wantLeaving adds the former peers, with the addresses that no other node has by now.
func (s *side) wantLeaving(want map[key]value) {
	for k, l := range s.leaving {
		want[key{Kind: peer, Device: s.Device, Peer: k}] = value{Endpoint: netip.AddrPortFrom(l.node.Address, s.Port),
			Keepalive: s.Keepalive}
		for _, p := range l.prefixes {
			_, host := s.plan.Hosts[p]
			if w, has := s.plan.Ways[p]; !host && (!has || w.Node == l.node.Name && w.Peer.IsZero()) {
				want[key{Kind: allowed, Device: s.Device, Prefix: p}] = value{Peer: k}
			}
		}
	}
}

// leavingEnds returns when the first former peer has to go; ok is false if there is none.
func (s *side) leavingEnds() (at time.Time, ok bool) {
	for _, l := range s.leaving {
		if !ok || l.until.Before(at) {
			at, ok = l.until, true
		}
	}
	return at, ok
}
