package bgp

import (
	"errors"
	"fmt"
	"net/netip"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// Values that BIRD in calico/node sends when nothing is configured.
const (
	holdSeconds           = 240
	defaultRestartSeconds = 120
	multihopTTL           = 64
)

const meshObject = "BGPConfiguration/default"

// request is a session that one object requests.
type request struct {
	Session
	object string
	group  int
	text   string // the address, to sort by
}

// planner makes requests for sessions of this node from peerings.
type planner struct {
	*cluster
	reader    model.Reader
	passwords PasswordSource
	secrets   map[[2]string]secret // those that were read, by name and key
}

type secret struct {
	password string
	err      error
}

func (p *planner) requests(peerings []*peering) []request {
	ws := p.mesh()
	for _, peering := range peerings {
		ws = append(ws, p.forward(peering)...)
		ws = append(ws, p.reverse(peering)...)
	}
	return ws
}

// mesh peers with every node, unless one of the two is a route reflector.
//
// A peer without AS number of its own counts as having the cluster's, because it sends that one in its OPEN.
// (calico/node takes the own AS instead; such a session can never come up when the own AS is set on the Node.)
func (p *planner) mesh() []request {
	if !p.meshed() {
		return nil
	}
	restart := p.seconds(meshObject, "spec.nodeMeshMaxRestartTime", p.config.NodeMeshMaxRestartTime, maxRestartSeconds,
		defaultRestartSeconds)
	password := p.password(meshObject, p.config.NodeMeshPassword)
	ws := make([]request, 0, len(p.nodes))
	for _, n := range p.nodes {
		if n == p.me || n.clusterID != "" {
			continue
		}
		for f, addr := range n.addrs {
			if !p.canPeer(f, addr) {
				continue
			}
			ws = append(ws, request{Session: p.session(addr, n.port, p.me.as, n.as), object: meshObject,
				group: groupMesh})
			s := &ws[len(ws)-1].Session
			s.Type, s.RestartSeconds = SessionMesh, restart
			password.of(s)
			s.BFD = p.watch(p.meshBFD, s.Address)
		}
	}
	return ws
}

// meshed reports whether this node takes part in the mesh.
func (p *planner) meshed() bool {
	enabled := p.config.NodeToNodeMeshEnabled
	return (enabled == nil || *enabled) && p.me.clusterID == ""
}

// canPeer reports whether addr is another host's and we have an address of its family.
func (p *planner) canPeer(family int, addr netip.Addr) bool {
	return addr.IsValid() && p.me.addrs[family].IsValid() && addr != p.me.addrs[family]
}

// forward lists the sessions of a BGPPeer that applies to us.
func (p *planner) forward(b *peering) []request {
	if !b.local(p.me) {
		return nil
	}
	switch {
	case b.workloads != nil:
		return p.forwardWorkloads(b)
	case b.remote == nil:
		return p.forwardAddr(b)
	}
	var ws []request
	for _, n := range p.nodes {
		if n == p.me || !b.remote(n) {
			continue
		}
		for f, addr := range n.addrs {
			if p.canPeer(f, addr) {
				ws = append(ws, p.peer(b, p.session(addr, n.port, p.me.as, n.as)))
			}
		}
	}
	return ws
}

func (p *planner) forwardAddr(b *peering) []request {
	f := familyOf(b.addr)
	switch {
	case !p.me.addrs[f].IsValid():
		p.note(b.object, fmt.Sprintf("is skipped: this node has no %s address to peer with %s", familyNames[f], b.addr))
		return nil
	case b.addr == p.me.addrs[f]:
		if b.group != groupGlobal { // a global one applies to the others
			p.note(b.object, fmt.Sprintf("is skipped: spec.peerIP %s is this node's own address", b.addr))
		}
		return nil
	}
	n, as := p.byAddr[b.addr], b.as
	if as == 0 {
		if n == nil {
			p.note(b.object, fmt.Sprintf("is skipped: spec.asNumber is missing and cannot be derived, as %s is no "+
				"Calico node; set it to the peer's AS number", b.addr))
			return nil
		}
		as = n.as
	}
	w := p.peer(b, p.session(b.addr, b.portOf(n), p.localAS(b), as))
	w.Via = b.via
	if n := b.spec.NumAllowedLocalASNumbers; n != nil && *n > 0 {
		w.AllowOwnAS = uint32(*n)
	}
	return []request{w}
}

// localAS is the AS number that we have towards the peer.
func (p *planner) localAS(b *peering) uint32 {
	if l := b.spec.LocalASNumber; l != nil && *l != 0 {
		return uint32(*l)
	}
	return p.me.as
}

// reverse lists the sessions of a BGPPeer whose far side we are: with every node that it applies to.
func (p *planner) reverse(b *peering) []request {
	if !b.reverse {
		return nil
	}
	var ws []request
	for f := range families {
		if !p.me.addrs[f].IsValid() || !b.isRemote(p.cluster, p.me, f) {
			continue
		}
		for _, n := range p.nodes {
			if n == p.me || !p.canPeer(f, n.addrs[f]) || !b.local(n) {
				continue
			}
			as := n.as
			if l := b.spec.LocalASNumber; l != nil && *l != 0 && b.remote == nil {
				as = uint32(*l) // the AS that the peer sends in its OPEN
			}
			w := p.peer(b, p.session(n.addrs[f], n.port, p.me.as, as))
			w.Type, w.group = SessionNode, groupReverse
			ws = append(ws, w)
		}
	}
	return ws
}

// session has all that follows from who the two sides are.
func (p *planner) session(addr netip.Addr, port uint16, localAS, peerAS uint32) Session {
	own := p.me.addrs[familyOf(addr)]
	s := Session{
		Address: addr, Port: port, LocalAS: localAS, PeerAS: peerAS, Source: own,
		MultihopTTL: multihopTTL, HoldSeconds: holdSeconds, RestartSeconds: defaultRestartSeconds,
		NextHop: NextHopAuto, PasswordFrom: "none",
	}
	peer := p.byAddr[addr]
	s.Outsider = peer == nil && localAS != peerAS
	// Between two Calico nodes exactly one side connects: that with the greater address, as text, unless chooseSide
	// finds that it could not get through. calico/node has this rule for the mesh and for global peers only and
	// connects from both sides otherwise. We have it for all, because two GoBGP speakers that connect to each other at
	// the same moment may close both connections, or leave one half open for good (RFC 4271 section 6.8 collisions).
	// Towards BIRD it changes nothing: the one that waits is connected to.
	s.Passive = peer != nil && textAfter(addr, own)
	if id := p.me.reflects(); id.IsValid() && localAS == peerAS && (peer == nil || peer.clusterID != p.me.clusterID) {
		s.ReflectorClient, s.ReflectorClusterID = true, id
	}
	return s
}

// textAfter reports whether the text of an address is greater than the text of another one.
func textAfter(a, b netip.Addr) bool {
	var x, y [64]byte
	return string(a.AppendTo(x[:0])) > string(b.AppendTo(y[:0]))
}

// peer adds the settings of the BGPPeer that apply in both directions.
func (p *planner) peer(b *peering, s Session) request {
	s.Type = SessionGlobal
	if b.group != groupGlobal {
		s.Type = SessionNode
	}
	s.RestartSeconds, s.KeepaliveSeconds, s.MaxPrefixes = b.restart, b.keepalive, b.maxPrefixes
	s.Filters = b.filters
	s.NextHop = nextHop(b.spec, s.LocalAS != s.PeerAS)
	if b.spec.SourceAddress == v3.SourceAddressNone {
		s.Source = netip.Addr{}
	}
	if t := b.spec.TTLSecurity; t != nil && *t > 0 {
		s.TTLSecurity, s.MultihopTTL = *t, 0
	}
	p.password(b.object, b.spec.Password).of(&s)
	if s.Workload == "" {
		s.BFD = p.watch(b.bfd, s.Address)
	}
	return request{Session: s, object: b.object, group: b.group}
}

func nextHop(s model.BGPPeerSpec, external bool) NextHopMode {
	switch {
	case s.KeepOriginalNextHop && external:
		return NextHopKeep
	case s.NextHopMode == nil:
		return NextHopAuto
	case *s.NextHopMode == "Self":
		return NextHopSelf
	case *s.NextHopMode == "Keep":
		return NextHopKeep
	}
	return NextHopAuto
}

// credentials are the password of a session, its source, and the error if it cannot be read.
type credentials struct{ password, from, err string }

func (c credentials) of(s *Session) {
	s.Password, s.PasswordFrom, s.PasswordError = c.password, c.from, c.err
}

// secret reads a key of a secret once for all sessions.
func (p *planner) secret(name, key string) (string, error) {
	at := [2]string{name, key}
	if s, ok := p.secrets[at]; ok {
		return s.password, s.err
	}
	s := secret{err: errors.New("there is no source of secrets")}
	if p.passwords != nil {
		s.password, s.err = p.passwords.Password(name, key)
	}
	p.secrets[at] = s
	return s.password, s.err
}

// password looks up the secret that an object names. A session whose secret cannot be read keeps the password that was
// read last; if none was read, it stays down. (calico/node runs such a session without a password.)
func (p *planner) password(object string, b *v3.BGPPassword) credentials {
	if b == nil || b.SecretKeyRef == nil {
		return credentials{from: "none"}
	}
	ref := b.SecretKeyRef
	password, err := p.secret(ref.Name, ref.Key)
	c := credentials{password: password, from: "set"}
	if err == nil {
		return c
	}
	c.err = fmt.Sprintf("key %q of secret %q cannot be read: %v", ref.Key, ref.Name, err)
	effect := "the password that was read last stays in use"
	if c.password == "" {
		c.from, effect = "missing", "its sessions stay down until there is a password"
	}
	if p.passwords != nil {
		effect += fmt.Sprintf(" (want it in %s)", p.passwords.Place(ref.Name, ref.Key))
	}
	p.note(object, c.err+"; "+effect)
	return c
}
