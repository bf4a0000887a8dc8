package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// drain returns the drain state of the own node, from its annotations.
func (c *cluster) drain() Drain {
	switch c.me.object.DrainPhase() {
	case model.Draining, model.Returning:
		return DrainDraining
	case model.Drained:
		return DrainWithdrawn
	}
	return DrainNone
}

// drainPeers notes in sessions that their peers are drained, from the annotations of the own node.
func (c *cluster) drainPeers(sessions []Session) {
	requested, err := c.me.object.DrainPeers()
	if err != nil {
		c.note("Node/"+c.me.name, err.Error())
	}
	for _, a := range requested {
		i := slices.IndexFunc(sessions, func(s Session) bool { return s.drainable() && s.Address.Unmap() == a })
		if i < 0 {
			c.note("Node/"+c.me.name, fmt.Sprintf("%s is to be drained, but is no peer of this node: manxctl node "+
				"undrain %s --peer %s ends that", a, c.me.name, a))
			continue
		}
		sessions[i].Drain = c.me.object.PeerDrainPhase(a)
	}
}

// IsDrained reports whether the peer is drained, or on its way there: the routes of both directions are the last
// choice.
func (s *Session) IsDrained() bool { return s.Drain != model.InService }

// drainable reports whether the peer can be drained: a workload has no other way, and leaves with its interface.
func (s *Session) drainable() bool { return s.Workload == "" }

// PeersToDrain returns the addresses of the peers that names mean, sorted: an address is that of a session, any other
// name that of a BGPPeer, for all its sessions. The error of an unknown name lists the peers.
func PeersToDrain(sessions []Session, names []string) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, name := range names {
		found := false
		address, _ := netip.ParseAddr(name)
		for i := range sessions {
			s := &sessions[i]
			if s.drainable() && (s.Address.Unmap() == address.Unmap() || slices.Contains(s.From, "BGPPeer/"+name)) {
				list, found = append(list, s.Address.Unmap()), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no peer %q: the peers are %s", name, cmp.Or(peerList(sessions), "none"))
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), nil
}

// PeersToUndrain is PeersToDrain, but takes also the address of a drained peer without a session.
func PeersToUndrain(sessions []Session, drained []netip.Addr, names []string) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil && slices.Contains(drained, a.Unmap()) {
			list = append(list, a.Unmap())
			continue
		}
		more, err := PeersToDrain(sessions, []string{name})
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

// mostListed bounds a list of peers in an error.
const mostListed = 20

func peerList(sessions []Session) string {
	var texts []string
	for i := range sessions {
		s := &sessions[i]
		if !s.drainable() {
			continue
		}
		if len(texts) == mostListed {
			texts = append(texts, "...")
			break
		}
		from := strings.ReplaceAll(strings.Join(s.From, ", "), "BGPPeer/", "")
		if s.Type == SessionMesh {
			from = "mesh"
		}
		texts = append(texts, fmt.Sprintf("%s (%s)", s.Address, from))
	}
	return strings.Join(texts, ", ")
}
