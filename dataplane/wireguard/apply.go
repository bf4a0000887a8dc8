package wireguard

import (
	"cmp"
	"errors"
	"net/netip"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// List implements driver.Objects: everything on the devices, and what is of this target or of Felix in the tables.
func (t *Target) List() (map[key]value, error) {
	if t.failed != nil {
		return nil, t.failed
	}
	have := map[key]value{}
	for _, s := range t.sides {
		if d := s.have; d != nil {
			have[key{Kind: presence, Device: s.Device}] = value{}
			have[key{Kind: settings, Device: s.Device}] = value{Port: d.Port, Mark: d.Mark,
				Keyed: !d.PublicKey.IsZero()}
			if s.threadable() {
				have[key{Kind: threads, Device: s.Device}] = value{Threads: d.Threads}
			}
			for _, p := range d.Peers {
				have[key{Kind: peer, Device: s.Device, Peer: p.Key}] = value{
					Endpoint: s.endpoint(p, t.config.Now()), Keepalive: p.Keepalive}
				for _, a := range p.AllowedIPs {
					have[key{Kind: allowed, Device: s.Device, Prefix: a}] = value{Peer: p.Key}
				}
			}
		}
	}
	if t.arpMark != 0 {
		have[key{Kind: arp, Device: t.sideOf(false).Device}] = value{Mark: t.arpMark}
	}
	for _, r := range t.routes {
		if v := valueOf(r); t.ownsRoute(r) {
			have[key{Kind: way, Device: t.sideOf(r.Dst.Addr().Is6()).Device, Prefix: r.Dst, Table: r.Table}] = v
		}
	}
	for _, r := range t.rules {
		if t.isOwn(r) {
			ours := r.Protocol == kernel.ProtocolCalico
			r.Protocol = 0
			k := key{Kind: rule, Device: t.sideOf(r.IPv6).Device, Rule: r}
			if _, wanted := t.Wanted()[k]; ours || !wanted { // one of Felix is replaced, so that Cleanup finds it
				have[k] = value{}
			}
		} else if isException(r) {
			r.Protocol = 0
			have[key{Kind: exception, Device: t.sideOf(r.IPv6).Device, Rule: r}] = value{}
		}
	}
	return have, nil
}

func (t *Target) sideOf(ipv6 bool) *side {
	if ipv6 {
		return t.sides[1]
	}
	return t.sides[0]
}

func valueOf(r kernel.Route) value {
	v := value{Type: r.Type, Src: r.Src}
	if len(r.NextHops) == 1 {
		v.Link = r.NextHops[0].Link
	}
	return v
}

// ownsRoute reports whether a route is of this target or of Felix: one through the device, or one that ends the lookup
// in the table.
func (t *Target) ownsRoute(r kernel.Route) bool {
	s := t.sideOf(r.Dst.Addr().Is6())
	if r.Key() != (kernel.RouteKey{Dst: r.Dst, Table: r.Table, Metric: s.routeKey(r.Dst).Metric}) {
		return false
	}
	switch r.Type {
	case kernel.Unicast:
		return len(r.NextHops) == 1 && t.LinkName(r.NextHops[0].Link) == s.Device
	case kernel.Throw, kernel.Unreachable:
		return r.Protocol == kernel.ProtocolBoot || r.Protocol == kernel.ProtocolCalico
	}
	return false
}

// batch has the steps of one Apply, and their errors.
type batch struct {
	*Target
	steps []reconcile.Step[key, value]
	errs  []error
	// refused are the peers that the kernel does not take: packets to all others are encrypted all the same.
	refused map[wireguard.Key]error
}

// Apply implements driver.Objects. Packets are led to a peer only when it is there, and it goes when none are. Those
// that no tunnel takes have their rules while any packet of this host is led to another node.
func (t *Target) Apply(steps []reconcile.Step[key, value]) []error {
	b := &batch{t, steps, make([]error, len(steps)), map[wireguard.Key]error{}}
	b.each(rule, true, func(s reconcile.Step[key, value]) error { return t.removeRule(s.Key.Rule) })
	b.each(settings, false, t.set)
	b.addPeers()
	b.each(threads, false, func(s reconcile.Step[key, value]) error {
		return t.config.Kernel.SetThreads(s.Key.Device, s.New.Threads == wireguard.ThreadsOn)
	})
	b.each(exception, false, func(s reconcile.Step[key, value]) error { return t.addRule(s.Key.Rule) })
	b.each(arp, false, func(s reconcile.Step[key, value]) error { return t.config.Kernel.MarkARP(s.New.Mark) })
	b.setRoutes()
	b.each(exception, true, func(s reconcile.Step[key, value]) error { return t.removeRule(s.Key.Rule) })
	b.each(arp, true, func(reconcile.Step[key, value]) error { return t.config.Kernel.MarkARP(0) })
	b.removePeers()
	b.each(rule, false, func(s reconcile.Step[key, value]) error {
		if b.incomplete() {
			return errors.New("not all routes are in place yet")
		}
		return errors.Join(t.addRule(s.Key.Rule), t.removeTwins(s.Key.Rule))
	})
	b.each(presence, true, func(s reconcile.Step[key, value]) error {
		return t.config.Kernel.DeleteLink(t.Link(s.Key.Device).Index)
	})
	return b.errs
}

// incomplete reports whether the tables may lead packets astray: something other than a peer, and the routes to it,
// could not be made.
func (b *batch) incomplete() bool {
	for i, x := range b.steps {
		switch k := x.Key.Kind; {
		case b.errs[i] == nil || k == peer || k == allowed || k == threads || k == arp:
		case k == way && b.refused[b.peerOf(x)] != nil:
		default:
			return true
		}
	}
	return false
}

// peerOf returns the peer that gets the packets of a route.
func (b *batch) peerOf(x reconcile.Step[key, value]) wireguard.Key {
	plan := b.sideOfDevice(x.Key.Device).plan
	if w, ok := plan.Ways[x.Key.Prefix]; ok {
		return w.Peer
	}
	return plan.Hosts[x.Key.Prefix]
}

// each does the steps of a kind that remove, or the others.
func (b *batch) each(k kind, remove bool, do func(reconcile.Step[key, value]) error) {
	for i, s := range b.steps {
		if s.Key.Kind == k && (s.Action == reconcile.Remove) == remove {
			b.errs[i] = do(s)
		}
	}
}

// set changes the settings of a device. One without a key gets it, and is read again for the public one.
func (t *Target) set(s reconcile.Step[key, value]) error {
	have := t.sideOfDevice(s.Key.Device).have
	if have == nil && t.failed != nil {
		return t.failed // it may have a key
	}
	c := wireguard.Settings{Port: s.New.Port, Mark: s.New.Mark, NewKey: have == nil || have.PublicKey.IsZero()}
	err := t.config.Kernel.SetWireGuard(s.Key.Device, c)
	t.Touch(s.Key.Device)
	t.Resync()
	return err
}

func (t *Target) sideOfDevice(name string) *side {
	if t.sides[1].Device == name {
		return t.sides[1]
	}
	return t.sides[0]
}

// addPeers adds and changes peers, and gives AllowedIPs to them.
func (b *batch) addPeers() {
	for _, s := range b.sides {
		changes, of := map[wireguard.Key]*wireguard.Change{}, map[wireguard.Key][]int{}
		at := func(i int, k wireguard.Key) *wireguard.Change {
			if of[k] = append(of[k], i); changes[k] == nil {
				changes[k] = &wireguard.Change{Key: k}
			}
			return changes[k]
		}
		for i, x := range b.steps {
			switch {
			case x.Key.Device != s.Device || x.Action == reconcile.Remove:
			case x.Key.Kind == peer:
				c := at(i, x.Key.Peer)
				c.Keepalive = &b.steps[i].New.Keepalive
				// The kernel's may differ from that of the step before, see side.endpoint.
				if x.Action == reconcile.Add || x.New.Endpoint != x.Old.Endpoint {
					c.Endpoint = x.New.Endpoint
				}
			case x.Key.Kind == allowed:
				c := at(i, x.New.Peer)
				c.Add = append(c.Add, x.Key.Prefix)
			}
		}
		var list []wireguard.Change
		for _, c := range changes {
			list = append(list, *c)
		}
		b.change(s, list, of)
	}
}

// change makes changes of peers for some of the steps, by the peer's key. If the kernel does not take all of them, it
// gets them one by one.
func (b *batch) change(s *side, list []wireguard.Change, of map[wireguard.Key][]int) {
	if len(list) == 0 {
		return
	}
	together := b.config.Kernel.ChangePeers(s.Device, list)
	for _, c := range list {
		if together != nil {
			if err := b.config.Kernel.ChangePeers(s.Device, []wireguard.Change{c}); err != nil {
				b.refused[c.Key] = err
				for _, i := range of[c.Key] {
					b.errs[i] = err
				}
				continue
			}
		}
		if c.Endpoint.IsValid() {
			s.sent[c.Key] = c.Endpoint
		}
	}
}

// setRoutes makes the routes. One to a peer waits while that peer cannot be set, or the device.
func (b *batch) setRoutes() {
	var ops []kernel.RouteOp
	var of []int
	broken := map[string]error{}
	for i, x := range b.steps {
		if k := x.Key.Kind; b.errs[i] != nil && k != peer && k != allowed && k != threads && k != arp {
			broken[x.Key.Device] = b.errs[i]
		}
	}
	for i, x := range b.steps {
		if x.Key.Kind != way {
			continue
		}
		if x.Action != reconcile.Remove && x.New.Type == kernel.Unicast {
			if err := cmp.Or(broken[x.Key.Device], b.refused[b.peerOf(x)]); err != nil {
				b.errs[i] = err
				continue
			}
		}
		ops, of = append(ops, b.routeOp(x)), append(of, i)
	}
	for i, err := range b.config.Kernel.ApplyRoutes(ops) {
		b.errs[of[i]] = err
	}
}

func (b *batch) routeOp(x reconcile.Step[key, value]) kernel.RouteOp {
	k := b.sideOfDevice(x.Key.Device).routeKey(x.Key.Prefix)
	k.Table = x.Key.Table
	r := kernel.Route{Dst: k.Dst, Metric: k.Metric, Table: k.Table, Protocol: kernel.ProtocolBoot, Type: x.New.Type}
	if x.Action == reconcile.Remove {
		r.Type = x.Old.Type
		if have, ok := b.routes[k]; ok {
			r.Protocol = have.Protocol
		}
		return kernel.RouteOp{Verb: kernel.DeleteRoute, Route: r}
	}
	if r.Type == kernel.Unicast {
		r.Src = x.New.Src
		r.NextHops = []kernel.NextHop{{Link: x.New.Link}}
		if k.Dst.Addr().Is4() {
			r.Scope = kernel.ScopeLink
		}
	}
	return kernel.RouteOp{Verb: kernel.ReplaceRoute, Route: r}
}

// removePeers takes AllowedIPs away that nobody gets, and then the peers.
func (b *batch) removePeers() {
	for _, s := range b.sides {
		var drop []netip.Prefix
		var dropped []int
		removed := map[wireguard.Key][]int{}
		var remove []wireguard.Change
		gone := map[wireguard.Key]bool{}
		for i, x := range b.steps {
			if x.Key.Kind == peer && x.Key.Device == s.Device && x.Action == reconcile.Remove {
				remove = append(remove, wireguard.Change{Key: x.Key.Peer, Remove: true})
				removed[x.Key.Peer] = []int{i}
				gone[x.Key.Peer] = true
			}
		}
		for i, x := range b.steps {
			if x.Key.Kind == allowed && x.Key.Device == s.Device && x.Action == reconcile.Remove && !gone[x.Old.Peer] {
				drop, dropped = append(drop, x.Key.Prefix), append(dropped, i)
			}
		}
		if b.Link(s.Device).Index == 0 || s.have == nil {
			continue // all of it went with the device
		}
		if len(drop) > 0 {
			if err := b.config.Kernel.DropAllowedIPs(s.Device, drop); err != nil {
				for _, i := range dropped {
					b.errs[i] = err
				}
			}
		}
		b.change(s, remove, removed)
	}
}

func (t *Target) addRule(r kernel.Rule) error {
	r.Protocol = kernel.ProtocolCalico
	return t.config.Kernel.AddRule(r)
}

// removeRule removes a rule, whichever program is its origin.
func (t *Target) removeRule(r kernel.Rule) error {
	err := t.removeTwins(r)
	r.Protocol = kernel.ProtocolCalico
	return errors.Join(err, t.config.Kernel.DeleteRule(r))
}

// removeTwins removes the rules of other origins that differ in nothing else.
func (t *Target) removeTwins(r kernel.Rule) error {
	var errs []error
	for _, have := range t.rules {
		bare := have
		if bare.Protocol = 0; bare == r && have.Protocol != kernel.ProtocolCalico {
			errs = append(errs, t.config.Kernel.DeleteRule(have))
		}
	}
	return errors.Join(errs...)
}
