package wireguard

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/manxnet/manx/dataplane/cryptokey"
	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Kernel has the kernel calls of a Target.
type Kernel interface {
	wireguard.Devices
	kernel.Links
	kernel.Routes
	kernel.Rules
}

const (
	// proof is how long packets to a node that was no peer before stay unencrypted while there is no handshake. After
	// that they are encrypted all the same, so that nobody gets them in plain who only has to drop handshakes.
	proof = 10 * time.Second
	// proofEvery is the time between two looks for a handshake, proofKeepalive that between packets which begin one.
	proofEvery     = 200 * time.Millisecond
	proofKeepalive = time.Second
	// linger is how long the device stays after the key was withdrawn, and a peer after its was: the other nodes still
	// encrypt.
	linger = 3 * time.Second
)

// Keys are the public keys that this node has to publish, by family; none for a family that is not encrypted.
type Keys map[model.Family]wireguard.Key

// Config has the parameters of a Target.
type Config struct {
	Kernel Kernel
	Now    func() time.Time
	// Required sends no packet to addresses of other nodes unencrypted.
	Required bool
	// Refuse returns why no route may lead a prefix to another node, by its name; empty if one may.
	Refuse func(p netip.Prefix, node string) string
	// RefuseHost is Refuse for the own address of a node: servers for which spared returns true are no reason.
	RefuseHost func(p netip.Prefix, node string, spared func(netip.Addr) bool) string
	// NoHosts is why packets to the nodes themselves cannot be encrypted here; empty: they can.
	NoHosts string
	// Missing returns why the kernel cannot make devices, by name.
	Missing func() map[string]error
	// Publish is called with the keys of this node when they have changed; nil: no call. It must not block.
	Publish func(Keys)
}

// Target keeps the objects. Not safe for concurrent use.
type Target struct {
	*driver.Driver[key, value]
	config Config
	sides  [2]*side
	input  input
	// changed is set if the objects may differ with the newest state.
	changed bool
	synced  bool // all blocks have been read
	failed  error
	rules   []kernel.Rule
	routes  map[kernel.RouteKey]kernel.Route
	arpMark uint32
	since   map[string]time.Time // notices about nodes
	host    *hoststate.Host
	servers []netip.AddrPort
	plain   atomic.Uint32 // see PlainMark
	keys    Keys          // the last ones that were published, nil: none yet
}

// side is the state of one family.
type side struct {
	overlay.Encryption
	places  map[netip.Prefix]string
	plan    cryptokey.Plan
	proving map[string]time.Time // peers without a handshake, by node, and since when
	renewed map[string]time.Time // the same with another key than before
	moved   map[string]bool      // nodes to which packets are encrypted
	leaving map[wireguard.Key]leaving
	sent    map[wireguard.Key]netip.AddrPort // the endpoints that this process has set
	stuck   map[string]bool                  // nodes to which packets are sent without an answer
	hosts   hosts
	own     netip.Addr // the node's
	active  bool
	until   time.Time // the device lingers
	had     bool      // the device has existed
	needed  bool      // there is a pool of the family
	have    *wireguard.Device
	peers   map[wireguard.Key]wireguard.Peer // of have
}

// input is the part of the state that the objects follow from, beside keys and places.
type input struct {
	node  string
	list  [2]overlay.Encryption
	pools string
	local []local
	// here are the addresses of the workloads of this host that are in its blocks, in order.
	here []local
	last bool // the state is that of an earlier run
}

// New makes a Target.
func New(c Config) *Target {
	t := &Target{config: c, routes: map[kernel.RouteKey]kernel.Route{}}
	for i, e := range encryptions(&model.FelixConfigurationSpec{}) {
		t.sides[i] = &side{Encryption: e, places: map[netip.Prefix]string{}, proving: map[string]time.Time{},
			renewed: map[string]time.Time{}, moved: map[string]bool{}, stuck: map[string]bool{},
			leaving: map[wireguard.Key]leaving{}, sent: map[wireguard.Key]netip.AddrPort{}, hosts: newHosts()}
	}
	t.Driver = driver.New(t, driver.Config[key, value]{Name: "wireguard", Part: "interfaces",
		ListLinks: c.Kernel.ListLinks, Now: c.Now, Follows: func(*hoststate.Host) bool { return t.changed },
		Look: t.look, Prune: t.prunes})
	return t
}

func encryptions(f *model.FelixConfigurationSpec) (list [2]overlay.Encryption) {
	copy(list[:], overlay.Encryptions(f))
	return list
}

// prunes reports whether leftovers may be removed: the desired objects are all there are.
func (t *Target) prunes(h *hoststate.Host) bool {
	t.host = h
	return h.DatastoreSynced && (t.synced ||
		!slices.ContainsFunc(t.sides[:], func(s *side) bool { return s.On }))
}

// Place takes over on which nodes prefixes are, by IPAM's blocks; an empty node: on none any more. synced is set once
// all blocks have been read.
func (t *Target) Place(prefix netip.Prefix, node string) {
	for _, s := range t.sides {
		if prefix.Addr().Is4() != (s.Family == model.IPv4) {
			continue
		}
		if node == "" {
			delete(s.places, prefix)
		} else {
			s.places[prefix] = node
		}
		if s.On {
			t.Touch(s.Device)
		}
	}
}

// SetPlacesSynced sets whether all blocks have been read.
func (t *Target) SetPlacesSynced(yes bool) {
	if t.synced == yes {
		return
	}
	t.synced = yes
	if t.host != nil {
		t.Table.Prune(t.prunes(t.host))
	}
	for _, s := range t.sides {
		t.Touch(s.Device)
	}
}

// SetState applies a state.
func (t *Target) SetState(h *hoststate.Host) {
	t.changed = t.note(h)
	t.Driver.SetState(h)
}

// note takes over a state. It reports whether the objects may differ: most changes of workloads of this host matter to
// none.
func (t *Target) note(h *hoststate.Host) bool {
	old, contested := t.input, t.contested()
	if h.Concerned {
		t.input = inputOf(h)
	}
	t.plain.Store(0)
	for i, s := range t.sides {
		if s.Encryption = t.input.list[i]; s.Hosts {
			t.plain.Store(s.Mark)
		}
	}
	return h.KeysChanged || old.list != t.input.list || old.pools != t.input.pools ||
		!slices.Equal(old.local, t.input.local) || !slices.Equal(contested, t.contested())
}

// contested returns the addresses of workloads of this host that a block of IPAM has on another node: the workload
// wins.
func (t *Target) contested() (list []local) {
	for _, a := range t.input.here {
		for _, s := range t.sides {
			if node := s.places[a.Prefix]; node != "" && node != t.input.node {
				list = append(list, a)
			}
		}
	}
	return list
}

func inputOf(h *hoststate.Host) (in input) {
	in.node, in.last = h.Node, h.Last
	if h.PolicyOnly {
		in.list = encryptions(&model.FelixConfigurationSpec{})
		return in
	}
	in.list = encryptions(&h.Felix)
	if !in.list[0].On && !in.list[1].On {
		return in
	}
	for _, name := range slices.Sorted(maps.Keys(h.Pools)) {
		in.pools += name + " " + h.Pools[name].Spec.CIDR + ", "
	}
	for b := range h.Blocks {
		in.local = append(in.local, local{Prefix: b})
	}
	for _, w := range h.Usable() {
		addresses, _ := h.Addresses(w)
		for _, a := range addresses {
			a := local{a.Masked(), w.Interface}
			if !slices.ContainsFunc(in.local, func(b local) bool { return b.Contains(a.Addr()) }) {
				in.local = append(in.local, a)
			} else {
				in.here = append(in.here, a)
			}
		}
	}
	slices.SortFunc(in.local, local.compare)
	slices.SortFunc(in.here, local.compare)
	return in
}

// local is a prefix of this host: a block, or an address of a workload with its interface.
type local struct {
	netip.Prefix
	link string
}

func (l local) compare(o local) int { return cmp.Or(l.Compare(o.Prefix), cmp.Compare(l.link, o.link)) }

// isHere reports whether this host takes the packets to a prefix: of a workload without an interface, and of one that
// claims the address of a node, they go to the node that has the address otherwise.
func (l local) isHere(h *hoststate.Host, links map[string]kernel.Link) bool {
	return l.link == "" || links[l.link].Up && !h.IsNode(l.Addr())
}

// look reads the host before a comparison.
func (t *Target) look() {
	var errs []error
	for _, s := range t.sides {
		before := s.have
		if s.have = nil; t.Link(s.Device).Kind != kernel.KindWireGuard {
			continue
		}
		d, err := t.config.Kernel.WireGuard(s.Device)
		if err == nil {
			s.see(before, &d, t.config.Now())
		} else if !errors.Is(err, fs.ErrNotExist) {
			s.have = before // as it was read last; nil: see set
			errs = append(errs, err)
		}
	}
	var err error
	if t.arpMark, err = t.config.Kernel.ARPMark(); t.sideOf(false).hosts.on { // else the kernel may have no nftables
		errs = append(errs, err)
	}
	t.rules, err = t.config.Kernel.ListRules()
	errs = append(errs, err)
	clear(t.routes)
	if tables := t.tables(); len(tables) > 0 {
		routes, err := t.config.Kernel.ListRoutes(tables...)
		errs = append(errs, err)
		for _, r := range routes {
			t.routes[r.Key()] = r
		}
	}
	t.failed = errors.Join(errs...)
}

// see takes over the state of a device; before is the last one, nil if there was none.
func (s *side) see(before, d *wireguard.Device, now time.Time) {
	last := map[wireguard.Key]wireguard.Peer{}
	if before != nil {
		for _, p := range before.Peers {
			last[p.Key] = p
		}
	}
	byKey := map[wireguard.Key]wireguard.Peer{}
	s.have, s.peers, s.had = d, byKey, true
	for _, p := range d.Peers {
		byKey[p.Key] = p
	}
	maps.DeleteFunc(s.sent, func(k wireguard.Key, _ netip.AddrPort) bool { return byKey[k].Key.IsZero() })
	for name, since := range s.proving {
		if n, ok := s.plan.Peers[name]; ok && (!byKey[n.Key].Handshake.IsZero() || now.Sub(since) >= proof) {
			s.moved[name] = true
			delete(s.proving, name)
		}
	}
	for name, since := range s.renewed {
		if !byKey[s.plan.Peers[name].Key].Handshake.IsZero() || now.Sub(since) >= proof {
			delete(s.renewed, name)
		}
	}
	for name, n := range s.plan.Peers {
		p := byKey[n.Key]
		if old, known := last[n.Key]; !known || now.Sub(p.Handshake) < rejectAfter {
			delete(s.stuck, name)
		} else if p.Sent > old.Sent {
			s.stuck[name] = true
		}
		s.hosts.see(name, last[n.Key], p, now)
	}
	s.hosts.seen = now
}

// endpoint returns where packets to a peer go by this process. The kernel sends them to where the last authenticated
// packet came from, which may differ behind a translation of addresses. That is right as long as the session is alive.
func (s *side) endpoint(p wireguard.Peer, now time.Time) netip.AddrPort {
	if sent, ok := s.sent[p.Key]; ok && now.Sub(p.Handshake) < rejectAfter {
		return sent
	}
	return p.Endpoint
}

// tables returns those that may have routes of this target: no other program's routes are read while there is no sign
// of WireGuard.
func (t *Target) tables() (list []kernel.Table) {
	add := func(n kernel.Table) {
		if n != kernel.MainTable && !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	for _, s := range t.sides {
		if s.On || s.active || t.Link(s.Device).Kind == kernel.KindWireGuard {
			add(kernel.Table(s.Table))
		}
	}
	for _, r := range t.rules {
		if t.isOwn(r) {
			add(r.Table)
		}
	}
	return list
}

// isOwn reports whether a rule is of this target, or of Felix: all packets but those with one bit of the mark, to a
// table that is not the system's. One of this target may have the mark or the table of former settings.
func (t *Target) isOwn(r kernel.Rule) bool {
	return r.Not && r.Mark == r.Mask && r.Mark&(r.Mark-1) == 0 && r.Table != kernel.MainTable &&
		slices.ContainsFunc(t.sides[:], func(s *side) bool {
			mark, table := r.Mark == s.Mark, kernel.Table(s.Table) == r.Table
			return mark && table || r.Protocol == kernel.ProtocolCalico && (mark || table)
		})
}

// Flush brings the host to the desired state, and publishes the keys.
func (t *Target) Flush() (steps, failures int, err error) {
	now := t.config.Now()
	for _, s := range t.sides {
		end, leave := s.leavingEnds()
		if s.active && !s.On && !now.Before(s.until) || leave && !now.Before(end) {
			t.Touch(s.Device)
		}
		if at := s.hosts.changes; !at.IsZero() && !now.Before(at) {
			t.Touch(s.Device)
		}
		if s.awaits() {
			t.Touch(s.Device)
			t.Resync()
		}
	}
	steps, failures, err = t.Driver.Flush()
	if err == nil {
		t.publish()
	}
	return steps, failures, err
}

// Next returns how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	next := t.Driver.Next()
	for _, s := range t.sides {
		if s.awaits() {
			next = min(next, proofEvery)
		}
		if end, leave := s.leavingEnds(); leave {
			next = min(next, max(end.Sub(t.config.Now()), time.Millisecond))
		}
		if at := s.hosts.changes; !at.IsZero() {
			next = min(next, max(at.Sub(t.config.Now()), time.Millisecond))
		}
		if s.active && !s.On {
			next = min(next, max(s.until.Sub(t.config.Now()), time.Millisecond))
		}
	}
	return next
}

// publish reports the keys: that of a device that is ready to receive.
func (t *Target) publish() {
	if t.input.last {
		return
	}
	keys := Keys{}
	for _, s := range t.sides {
		if s.On && s.have != nil && t.Link(s.Device).Up && s.have.Port == s.Port && !s.have.PublicKey.IsZero() {
			keys[s.Family] = s.have.PublicKey
		}
	}
	if t.config.Publish != nil && (t.keys == nil || !maps.Equal(keys, t.keys)) {
		t.config.Publish(keys)
	}
	t.keys = keys
}

var _ driver.Objects[key, value] = (*Target)(nil)
var _ reconcile.Applier[key, value] = (*Target)(nil)
