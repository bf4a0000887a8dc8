package bgp

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// Groups of requests for one address, the strongest first, as in calico/node: a request about this node goes before the
// reverse of a request about another.
const (
	groupGlobal  = iota // a BGPPeer for all nodes
	groupNode           // a BGPPeer for this node
	groupReverse        // the reverse of a BGPPeer that applies to the peer
	groupMesh
)

// peering is a compiled BGPPeer.
type peering struct {
	object string // "BGPPeer/x"
	group  int    // of its forward direction: groupGlobal or groupNode
	spec   model.BGPPeerSpec

	local func(*node) bool // the nodes that it applies to

	// The far side is either one address ...
	addr netip.Addr
	port uint16
	as   uint32 // 0: that of the node with the address
	// ... or a set of nodes ...
	remote func(*node) bool
	// ... or workloads of each node that it applies to.
	workloads func(model.Key, *model.Workload) bool

	via                netip.Addr // gateway to addr (reachableBy); invalid: none
	restart, keepalive uint32     // seconds
	maxPrefixes        uint32     // 0: the speaker's default
	filters            []string   // those that exist
	bfd                bfdSetting
	reverse            bool // the far side, if it is a Calico node, peers back
}

// peerings compiles all BGPPeers, and adds notices about those that cannot be used.
func (c *cluster) peerings(r model.Reader) []*peering {
	var ps []*peering
	for k, v := range model.All[model.BGPPeer](r, model.KindBGPPeer) {
		p := &peering{object: "BGPPeer/" + k.Name, spec: v.Spec}
		c.noteUnknownAnnotations(p.object, model.KindBGPPeer, v.Annotations)
		if err := p.read(); err != nil {
			c.note(p.object, "is skipped: "+err.Error())
			continue
		}
		p.restart = c.seconds(p.object, "spec.maxRestartTime", p.spec.MaxRestartTime, maxRestartSeconds,
			defaultRestartSeconds)
		p.keepalive = c.seconds(p.object, "spec.keepaliveTime", p.spec.KeepaliveTime, maxKeepaliveSeconds, 0)
		if p.keepalive > holdSeconds/3 {
			c.note(p.object, fmt.Sprintf("spec.keepaliveTime = %s is limited to a third of the hold time, %ds",
				p.spec.KeepaliveTime.Duration, holdSeconds/3))
		}
		p.maxPrefixes = c.numberAnnotation(p.object, v.Annotations, annotationMaxPrefixes, math.MaxInt32, 0)
		p.bfd = c.bfd(p.object, v.Annotations)
		p.filters = c.existing(p.object, p.spec.Filters)
		p.noteWithoutEffect(c)
		ps = append(ps, p)
	}
	return ps
}

func (p *peering) read() (err error) {
	s := p.spec
	far := 0
	for _, field := range []string{s.PeerIP, s.PeerSelector, s.LocalWorkloadSelector} {
		if field != "" {
			far++
		}
	}
	switch {
	case s.Node != "" && s.NodeSelector != "":
		return errors.New("spec.node and spec.nodeSelector are both set: want at most one")
	case far != 1:
		return errors.New("want exactly one of spec.peerIP, spec.peerSelector and spec.localWorkloadSelector")
	case s.LocalWorkloadSelector != "" && s.ASNumber == 0:
		return errors.New("spec.asNumber is missing: spec.localWorkloadSelector needs the workloads' AS number")
	case s.ReachableBy != "" && s.PeerIP == "":
		return fmt.Errorf("spec.reachableBy = %s does not go without spec.peerIP", s.ReachableBy)
	case s.PeerSelector != "" && s.ASNumber != 0:
		return fmt.Errorf("spec.asNumber = %d does not go with spec.peerSelector: each node has its own", s.ASNumber)
	case s.KeepOriginalNextHop && s.NextHopMode != nil:
		return errors.New("spec.keepOriginalNextHop and spec.nextHopMode are both set: want at most one")
	}
	if p.local, p.group, err = localSide(s); err != nil {
		return err
	}
	p.reverse = s.ReversePeering == nil || *s.ReversePeering != v3.ReversePeeringManual
	if s.PeerSelector != "" {
		p.remote, err = nodesMatching("spec.peerSelector", s.PeerSelector)
		return err
	}
	p.as = uint32(s.ASNumber)
	if s.LocalWorkloadSelector != "" {
		p.reverse = false
		p.workloads, err = workloadsMatching("spec.localWorkloadSelector", s.LocalWorkloadSelector)
		return err
	}
	if p.addr, p.port, err = parsePeerIP(s.PeerIP); err != nil || s.ReachableBy == "" {
		return err
	}
	p.via, err = parseGateway(s.ReachableBy, p.addr)
	return err
}

// parseGateway reads the address of a gateway to a peer, which has to be of the peer's family.
func parseGateway(text string, peer netip.Addr) (netip.Addr, error) {
	via, err := netip.ParseAddr(text)
	via = via.Unmap()
	if err != nil || via.Zone() != "" || via.IsUnspecified() || via.IsMulticast() || via.IsLoopback() {
		return netip.Addr{}, fmt.Errorf("spec.reachableBy = %q: want the address of the gateway to spec.peerIP", text)
	}
	if via.Is4() != peer.Is4() {
		return netip.Addr{}, fmt.Errorf("spec.reachableBy = %s: want an %s address, as spec.peerIP %s is one", text,
			familyNames[familyOf(peer)], peer)
	}
	return via, nil
}

func localSide(s model.BGPPeerSpec) (local func(*node) bool, group int, err error) {
	switch {
	case s.Node != "":
		return func(n *node) bool { return n.name == s.Node }, groupNode, nil
	case s.NodeSelector != "":
		local, err = nodesMatching("spec.nodeSelector", s.NodeSelector)
		return local, groupNode, err
	}
	return func(*node) bool { return true }, groupGlobal, nil
}

// parsePeerIP parses spec.peerIP, which must be the address of one host. The port is 0 if there is none.
func parsePeerIP(text string) (addr netip.Addr, port uint16, err error) {
	peer, err := model.ParsePeerIP(text)
	switch {
	case err != nil:
		return addr, 0, fmt.Errorf("spec.peerIP = %q: %w", text, err)
	case peer.Addr().IsUnspecified() || peer.Addr().IsMulticast():
		return addr, 0, fmt.Errorf("spec.peerIP = %q: must be the address of one host", text)
	}
	return peer.Addr(), peer.Port(), nil
}

// Limits of the fields of a message: RFC 4724 section 3, RFC 4271 section 4.2.
const (
	maxRestartSeconds   = 1<<12 - 1
	maxKeepaliveSeconds = 1<<16 - 1
)

// seconds rounds a duration half away from zero. One that is absent or cannot be used counts as otherwise.
func (c *cluster) seconds(object, field string, d *metav1.Duration, limit, otherwise uint32) uint32 {
	if d == nil {
		return otherwise
	}
	s := math.Round(d.Seconds())
	if s < 0 || s > float64(limit) {
		c.note(object, fmt.Sprintf("%s = %s is ignored: want 0s to %ds", field, d.Duration, limit))
		return otherwise
	}
	return uint32(s)
}

// noteWithoutEffect adds notices about fields that have no effect.
func (p *peering) noteWithoutEffect(c *cluster) {
	if p.remote != nil && p.spec.LocalASNumber != nil {
		c.note(p.object, "spec.localASNumber has no effect: it goes with spec.peerIP and "+
			"spec.localWorkloadSelector only")
	}
	if !p.addr.IsValid() && p.spec.NumAllowedLocalASNumbers != nil {
		c.note(p.object, "spec.numAllowedLocalASNumbers has no effect: it goes with spec.peerIP only")
	}
}

// isRemote reports whether n is on the far side, in one address family.
func (p *peering) isRemote(c *cluster, n *node, family int) bool {
	if p.remote != nil {
		return p.remote(n)
	}
	return n.addrs[family] == p.addr && (p.as == 0 || p.as == n.as) && c.listensOn(n, p.port)
}

// portOf is the port that a BGPPeer with an address connects to; n is the node with the address, nil if there is none.
// Only a node whose AS is the wanted one is taken for the peer.
func (p *peering) portOf(n *node) uint16 {
	switch {
	case p.port != 0:
		return p.port
	case n != nil && (p.as == 0 || p.as == n.as):
		return n.port
	}
	return DefaultPort
}
