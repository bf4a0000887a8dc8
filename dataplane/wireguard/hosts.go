package wireguard

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/cryptokey"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

const (
	// silence is how long a peer may leave packets without any answer. It answers within 10 s, also if it has nothing
	// to send (KEEPALIVE_TIMEOUT of WireGuard); after 15 s the kernel begins a handshake, whose answer has 3 s to
	// arrive. After that the tunnel is dead.
	silence = 18 * time.Second
	// lookout is the time between packets to a peer whose tunnel is dead, which begin a handshake. Where one direction
	// is blocked they arrive, and the peer has to notice in between that nothing else does.
	lookout = time.Minute
	// initiation is the size in bytes of the message that begins a handshake, sent once in 5 s at most (REKEY_TIMEOUT).
	initiation = 148
	// keepalive is the size in bytes of a packet without content, which nobody answers.
	keepalive = 32
)

// hosts is the state of the encryption of packets to the nodes themselves, of one family.
type hosts struct {
	on bool
	// from is when this host begins: by then the others take such packets. until is when it takes them no more.
	from, until time.Time
	// changes is when the objects change without any event, zero for never.
	changes time.Time
	silent  map[string]time.Time // nodes that answer nothing, and since when
	dead    map[string]bool      // those of them that did not for too long
	seen    time.Time            // the last look
}

func newHosts() hosts { return hosts{silent: map[string]time.Time{}, dead: map[string]bool{}} }

// decideHosts decides whether packets to the nodes themselves are encrypted, and returns whether those of others are
// taken.
func (t *Target) decideHosts(s *side, now time.Time) (taken bool) {
	h, on := &s.hosts, s.On && s.Hosts && t.config.NoHosts == ""
	switch {
	case on && !h.on:
		h.from = now.Add(linger)
	case !on && h.on:
		h.until = now.Add(linger)
	}
	h.on = on
	return h.on || now.Before(h.until)
}

// resumeHosts has a new process go on as the one before, and takes note of the next change.
func (t *Target) resumeHosts(s *side, device int, now time.Time) {
	for _, p := range s.plan.ToHosts {
		if s.hosts.on && device != 0 && t.leadsTo(s.routeKey(p), device) {
			s.hosts.from = now
			break
		}
	}
	s.hosts.changes = s.hosts.next(now)
}

// refuseHost returns why packets to the address of a node are not encrypted. The datastore is no reason: its port is an
// exception.
func (t *Target) refuseHost(p netip.Prefix, node string) string {
	return t.config.RefuseHost(p, node, t.isServer)
}

// next returns when the objects change without any event, zero for never.
func (h *hosts) next(now time.Time) time.Time {
	switch {
	case h.on && now.Before(h.from):
		return h.from
	case !h.on && now.Before(h.until):
		return h.until
	}
	return time.Time{}
}

// see takes over what the kernel has counted for a peer since the last look, at most 10 s ago. A dead tunnel is alive
// again after a handshake alone, which needs both directions.
func (h *hosts) see(name string, last, p wireguard.Peer, now time.Time) {
	since, silent := h.silent[name]
	switch {
	case p.Handshake.After(last.Handshake) || p.Key != last.Key:
		h.revive(name)
	case h.dead[name]:
	case answers(p.Received - last.Received):
		h.revive(name)
	case silent:
		h.dead[name] = now.Sub(since) >= silence
	case p.Sent-last.Sent > h.unanswered(p.Keepalive, now):
		h.silent[name] = now
	}
}

func (h *hosts) revive(name string) {
	delete(h.silent, name)
	delete(h.dead, name)
}

// answers reports whether so many bytes are more than attempts at a handshake. The sizes of packets with content are
// multiples of 16.
func answers(received uint64) bool {
	return received > 0 && (received%initiation != 0 || received > 3*initiation)
}

// unanswered returns how many of the bytes that were sent since the last look may be keepalives: those that confirm
// the last packet, at most one in 10 s, and those of each interval.
func (h *hosts) unanswered(interval time.Duration, now time.Time) uint64 {
	n := uint64(2)
	if interval > 0 {
		n += uint64(now.Sub(h.seen)/interval) + 1
	}
	return n * keepalive
}

// hostPlain returns why packets to a peer itself are not encrypted now, empty if they are. Where encryption is required
// they always are, except to a server of this host: no key could be published again without it.
func (t *Target) hostPlain(s *side, name string, device kernel.Link) string {
	now := t.config.Now()
	switch required := t.config.Required && !t.isServer(s.plan.Peers[name].Address); {
	case device.Kind != kernel.KindWireGuard || !device.Up:
		return t.noDevice(s)
	case required:
		return ""
	case now.Before(s.hosts.from):
		return fmt.Sprintf("it begins in %.0f s, when the other nodes are ready", s.hosts.from.Sub(now).Seconds())
	case s.peerOf(name).Handshake.IsZero():
		return fmt.Sprintf("no handshake with %s yet", name)
	case s.hosts.dead[name]:
		return fmt.Sprintf("no answer has arrived from %s for %.0f s", name, now.Sub(s.hosts.silent[name]).Seconds())
	}
	return ""
}

func (t *Target) isServer(a netip.Addr) bool {
	return slices.ContainsFunc(t.servers, func(s netip.AddrPort) bool { return s.Addr() == a })
}

// peerOf returns a peer as the kernel has it, the zero value if it has none.
func (s *side) peerOf(name string) wireguard.Peer {
	if s.have == nil {
		return wireguard.Peer{}
	}
	return s.peers[s.plan.Peers[name].Key]
}

// wantHosts adds the routes to the nodes themselves, and the rules that keep what repairs the tunnel out of it.
func (t *Target) wantHosts(s *side, l kernel.Link, want map[key]value) {
	if !s.hosts.on {
		return
	}
	for name, p := range s.plan.ToHosts {
		k := key{Kind: way, Device: s.Device, Prefix: p, Table: kernel.Table(s.Table)}
		switch why := t.hostPlain(s, name, l); {
		case why == "":
			want[k] = value{Type: kernel.Unicast, Link: l.Index, Src: s.own}
		case t.config.Required && !t.isServer(p.Addr()):
			want[k] = value{Type: kernel.Unreachable}
		}
	}
	if s.Family == model.IPv4 {
		want[key{Kind: arp, Device: s.Device}] = value{Mark: s.Mark}
	}
	for _, r := range s.exceptions(t.servers) {
		want[key{Kind: exception, Device: s.Device, Rule: r}] = value{}
	}
}

// exceptions returns the rules for the packets of this host that no tunnel takes: without them two nodes that do not
// know each other's keys yet could not learn those, and where the datastore is on the nodes it could not be reached.
func (s *side) exceptions(servers []netip.AddrPort) (list []kernel.Rule) {
	var ports []kernel.PortRange
	for _, p := range overlay.PlainPorts() {
		ports = append(ports, kernel.PortRange(p))
	}
	add := func(c kernel.TCP) {
		list = append(list, kernel.Rule{IPv6: s.rule().IPv6, Priority: s.Priority - 1, TCP: c, Table: kernel.MainTable})
	}
	for _, a := range servers {
		p := a.Port()
		if !slices.ContainsFunc(ports, func(r kernel.PortRange) bool { return r.First <= p && p <= r.Last }) {
			ports = append(ports, kernel.PortRange{First: p, Last: p})
		}
		if a.Addr().Is6() == s.rule().IPv6 { // also from pods
			add(kernel.TCP{To: a.Addr(), Ports: kernel.PortRange{First: p, Last: p}})
		}
	}
	for _, p := range ports {
		add(kernel.TCP{Local: true, Ports: p})
		add(kernel.TCP{Local: true, From: p})
	}
	return list
}

// isException reports whether a rule is one of exceptions.
func isException(r kernel.Rule) bool {
	return r.TCP != (kernel.TCP{}) && r.Table == kernel.MainTable && r.Mask == 0 && !r.Not &&
		r.Protocol == kernel.ProtocolCalico
}

// SetServers sets the servers of the datastore and of the Kubernetes API, with their ports: packets to and from these
// ports are not encrypted between nodes.
func (t *Target) SetServers(list []netip.AddrPort) {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.AddrPort.Compare)
	if list = slices.Compact(list); !slices.Equal(list, t.servers) {
		t.servers = list
		t.DecideAgain()
	}
}

// PlainMark returns the mark of packets of this host that are not to be encrypted, 0 while none are. It is safe for
// concurrent use.
func (t *Target) PlainMark() uint32 { return t.plain.Load() }

// hostStatus says whether packets to another node itself are encrypted.
type hostStatus struct {
	side  *side
	node  string
	plain string // why they are not, else empty
}

// hostStatuses returns those of the other nodes that publish a key, by name; none while it is switched off.
func (t *Target) hostStatuses() (list []hostStatus) {
	for _, s := range t.sides {
		if !s.active || !s.hosts.on {
			continue
		}
		for name, why := range s.plan.PlainHosts {
			list = append(list, hostStatus{s, name, why})
		}
		for name := range s.plan.ToHosts {
			list = append(list, hostStatus{s, name, t.hostPlain(s, name, t.Link(s.Device))})
		}
	}
	slices.SortFunc(list, func(a, b hostStatus) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.side.Family, b.side.Family))
	})
	return list
}

func (t *Target) hostRows() (list []reconcile.Row) {
	for _, h := range t.hostStatuses() {
		row := reconcile.Row{Key: fmt.Sprintf("host %s IPv%d", h.node, h.side.Family), Desired: "encrypted",
			Actual: "encrypted", Status: reconcile.Status{Phase: reconcile.Applied, Reason: "encrypted"}}
		if h.plain != "" {
			row.Actual, row.Phase, row.Reason = "plain", reconcile.Blocked, "plain: "+h.plain
			if t.refuses(h) {
				row.Reason = "refused: " + h.plain
			}
		}
		list = append(list, row)
	}
	return list
}

// refuses reports whether packets to a node itself are refused rather than sent in plain.
func (t *Target) refuses(h hostStatus) bool {
	p, may := h.side.plan.ToHosts[h.node]
	return t.config.Required && may && !t.isServer(p.Addr())
}

func (t *Target) hostNotices() (list []reconcile.Notice) {
	if wants := slices.ContainsFunc(t.sides[:], func(s *side) bool { return s.Hosts }); wants &&
		t.config.NoHosts != "" {
		list = append(list, reconcile.Notice{Subject: "wireguardHostEncryptionEnabled", Text: t.config.NoHosts})
	}
	for _, h := range t.hostStatuses() {
		if h.plain == "" {
			continue
		}
		verb := "are not encrypted"
		if t.refuses(h) {
			verb = "are refused"
		}
		list = append(list, reconcile.Notice{
			Subject: fmt.Sprintf("WireGuard to the host of node %s (IPv%d)", h.node, h.side.Family),
			Text:    fmt.Sprintf("packets to the node itself %s: %s", verb, h.plain)})
	}
	return list
}

// forget forgets nodes that are no peers any more.
func (h *hosts) forget(p cryptokey.Plan) {
	for name := range h.silent {
		if _, still := p.Peers[name]; !still {
			h.revive(name)
		}
	}
}
