package route

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/ippool"
)

// settle is how long a tunnel has to be known before packets take it that have another way: the other node makes its
// device and its rules at about the same time as this one.
const settle = 3 * time.Second

// modeChange is the last change of a pool's encapsulation.
type modeChange struct {
	at time.Time
	// placed is the pool as it was when its routes followed from IPAM's blocks last; nil if they never did.
	placed *ippool.Pool
}

// decision is the route for a prefix: its shape, 0 for none, and the note.
type decision struct {
	shape uint32
	note  string
	waits bool // there is no route yet, but there may be one soon: nothing forbids it
}

// hold makes a change of a pool's mode make before break: it returns the decision to keep the present way to a prefix
// while that of the pool's new mode is not ready, and any other decision as it is. A way by BGP stays, and follows BGP,
// as long as the new one is missing. A way by IPAM's blocks stays, and follows them, for overlay.Linger.
func (t *Target) hold(n uint32, p netip.Prefix, s *state, fresh decision) decision {
	at := place{p, t.table.row(n).table}
	delete(t.held, at)
	pool := t.rules.config.Pools.Of(p)
	if at.table != kernel.MainTable || pool == nil || !byIPAM(pool) && t.turned[pool.CIDR].at.IsZero() {
		return fresh
	}
	source, shape := t.rules.source(p, s), t.presentIn(n)
	if shape == 0 || source != SourceIPAM && source != SourceBGP && source != SourceNone {
		return fresh
	}
	now := t.table.routeOf(n, shape)
	if len(now.NextHops) == 0 || t.rules.isWorkload(now.NextHops[0].Link) {
		return fresh
	}
	switch {
	case byIPAM(pool):
		return t.holdLearned(p, s, now, fresh)
	case t.isByBGP(&now):
		return t.holdBGP(p, s, now, fresh)
	}
	return t.holdPlaced(p, s, now, fresh)
}

// isByBGP reports whether a route to another node came from BGP, as opposed to IPAM's blocks.
func (t *Target) isByBGP(k *kernel.Route) bool {
	device := t.rules.overlayOf(k)
	return k.Protocol == kernel.ProtocolBIRD || device != directly && !overlay.HasVTEPs(device)
}

// presentIn returns the shape of the route that is desired in the place whose first row is n, or that an earlier run
// left there; 0 if there is none.
func (t *Target) presentIn(n uint32) uint32 {
	if m := t.table.desiredIn(n); m != 0 {
		return t.table.row(m).want
	}
	for m := range t.table.rows.ofPlace(n) {
		if r := t.table.row(m); r.is(rowAdopted) && r.have != 0 {
			return r.have
		}
	}
	return 0
}

// holdLearned keeps a way by BGP in a pool whose routes now follow from IPAM's blocks.
func (t *Target) holdLearned(p netip.Prefix, s *state, now kernel.Route, fresh decision) decision {
	device := t.rules.overlayOf(&now)
	if len(s.learned) == 0 || overlay.HasVTEPs(device) || t.rules.refuse(p, s) != "" {
		return fresh
	}
	why := fresh.note
	switch {
	case t.rules.source(p, s) == SourceBGP && !t.placesSynced:
		why = "IPAM's blocks have not been read yet"
	case fresh.shape == 0 && !fresh.waits:
		return fresh
	case fresh.shape != 0:
		ready := t.settledAt(p, s.remote)
		if to := t.table.routeOf(0, fresh.shape); t.rules.overlayOf(&to) == directly || !ready.After(t.now()) {
			return fresh
		}
		why = fmt.Sprintf("the tunnel to node %s is new", s.remote)
		t.held[inMain(p)] = ready
	}
	return t.byBGP(p, s, device, why, fresh)
}

// holdBGP keeps a way by BGP in a pool whose routes still come from BGP, and now go through a tunnel.
func (t *Target) holdBGP(p netip.Prefix, s *state, now kernel.Route, fresh decision) decision {
	device := t.rules.overlayOf(&now)
	if len(s.learned) == 0 || t.rules.refuse(p, s) != "" {
		return fresh
	}
	why := fresh.note
	if fresh.shape != 0 {
		to := t.table.routeOf(0, fresh.shape)
		ready := t.turned[t.rules.config.Pools.Of(p).CIDR].at.Add(settle)
		if d := t.rules.overlayOf(&to); d == directly || d == device || !ready.After(t.now()) {
			return fresh
		}
		why = newTunnel
		t.held[inMain(p)] = ready
	}
	return t.byBGP(p, s, device, why, fresh)
}

// newTunnel is why the former way stays at first.
const newTunnel = "the tunnel of the pool's new mode is new"

// byBGP is the route by BGP through a former device, which stays for a reason; fresh if there is no such route any
// more.
func (t *Target) byBGP(p netip.Prefix, s *state, device, why string, fresh decision) decision {
	former := t.rules.config.Pools.Of(p).Through(device)
	route, _ := t.rules.throughPool(&former, p.Addr().Is6(), s.learned, s.metric)
	if route == nil {
		return fresh
	}
	return decision{shape: t.table.shapes.number(route), note: "the route by BGP stays for now: " + why}
}

// holdPlaced keeps a way by IPAM's blocks in a pool whose routes now come from BGP. It is the way to the node that has
// the prefix by now, in the pool's mode of before: where there is none, nothing is kept.
func (t *Target) holdPlaced(p netip.Prefix, s *state, now kernel.Route, fresh decision) decision {
	change, node := t.turned[t.rules.config.Pools.Of(p).CIDR], t.placed[p]
	device := t.rules.overlayOf(&now)
	if change.placed == nil || node == t.rules.node {
		return fresh
	}
	route, _, _ := t.rules.placed(change.placed, p, node)
	if route == nil {
		return fresh
	}
	until, why := change.at.Add(overlay.Linger), cmp.Or(t.bgpOff, "BGP has none yet")
	if fresh.shape == 0 && len(s.learned) > 0 {
		why = cmp.Or(fresh.note, why)
	} else if fresh.shape != 0 {
		to := t.table.routeOf(0, fresh.shape)
		if d := t.rules.overlayOf(&to); d == directly || d == device {
			return fresh
		}
		until, why = change.at.Add(settle), newTunnel
	}
	if !until.After(t.now()) {
		return fresh
	}
	t.held[inMain(p)] = until
	note := fmt.Sprintf("the route to node %s by IPAM's blocks stays for now: %s", node, why)
	return decision{shape: t.table.shapes.number(route), note: note}
}

// overlayOf returns the overlay's device through which a route leads, or directly.
func (r *rules) overlayOf(k *kernel.Route) string {
	for _, h := range k.NextHops {
		if name := r.linkName(h.Link); overlay.IsDevice(name) {
			return name
		}
	}
	return directly
}

// settledAt returns when the tunnel to a node, which has a prefix, has been known for long enough.
func (t *Target) settledAt(p netip.Prefix, node string) time.Time {
	since := t.turned[t.rules.config.Pools.Of(p).CIDR].at
	if e := t.endpointOf(endpointKey{node, familyOf(p)}); e.since.After(since) {
		since = e.since
	}
	return since.Add(settle)
}

// turn remembers which pools have another encapsulation than before.
func (t *Target) turn(old, pools ippool.Table) {
	for _, p := range pools {
		was := old.Of(p.CIDR)
		if was == nil || was.Encapsulation() == p.Encapsulation() {
			continue
		}
		change := modeChange{t.now(), t.turned[p.CIDR].placed}
		if byIPAM(was) {
			change.placed = was
		}
		t.turned[p.CIDR] = change
	}
}

// decideHeldAgain decides again about the prefixes whose way was held until now.
func (t *Target) decideHeldAgain(now time.Time) {
	for at, until := range t.held {
		if !until.After(now) {
			delete(t.held, at)
			t.decideAgain(at.dst)
		}
	}
}

// holdEnds returns when the first way that is held has to go; ok is false if none has to.
func (t *Target) holdEnds() (at time.Time, ok bool) {
	for _, until := range t.held {
		if !ok || until.Before(at) {
			at, ok = until, true
		}
	}
	return at, ok
}
