package route

import (
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
)

// Handle takes over changes by others in the kernel.
func (t *Target) Handle(events []kernel.Event) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case kernel.EventResync:
			t.Resync()
		case kernel.EventRoute:
			t.routeSeen(e.Route)
		case kernel.EventRouteGone:
			t.routeGone(e.Route)
		case kernel.EventLink:
			t.linkSeen(e.Link)
		case kernel.EventLinkGone:
			t.linkGone(e.Link)
		case kernel.EventAddress:
			t.address(e.Address, +1)
		case kernel.EventAddressGone:
			t.address(e.Address, -1)
			t.compareAfter(e.Address)
		}
	}
}

// flushDelay is a delay after the event of an address that has gone: the kernel removes routes after it has sent the
// event.
const flushDelay = 20 * time.Millisecond

// compareAfter schedules a comparison after an address has gone. Without events, the kernel removes the IPv4 routes of
// an interface with its last address, and the routes whose source is the address.
func (t *Target) compareAfter(gone kernel.Address) {
	if gone.Prefix.Addr().Is4() && !t.rules.isWorkload(gone.Link) {
		t.resync.want(t.now().Add(flushDelay))
	}
}

func (t *Target) routeSeen(r kernel.Route) {
	if !t.resync.listed || !t.rules.reads(r.Table) {
		return // the first reading is still to come, or it is none of our business
	}
	if t.under.owns(r) {
		if held, ok := t.rules.rib.holder(r.Key()); ok && t.rules.rib.remove(held) {
			t.changedLinks = true
		}
		t.table.Observe(&r)
		return
	}
	if _, there := t.table.Get(r.Key()); there && r.Dst.Addr().Is6() {
		t.Resync() // it may have become a sibling of ours, or replaced it
		return
	}
	t.table.ObserveGone(r.Key()) // if we had one there, it has been replaced
	t.rules.rib.put(r)
	t.correspondentsChanged(r)
	t.routeOfOthersChanged(r)
}

func (t *Target) routeGone(r kernel.Route) {
	if !t.resync.listed || !t.rules.reads(r.Table) {
		return
	}
	if t.rules.rib.remove(r) {
		t.correspondentsChanged(r)
		t.routeOfOthersChanged(r)
		t.table.Retry(r.Key()) // the place may be ours now
		return
	}
	have, there := t.table.Get(r.Key())
	switch {
	case !there:
		if !t.under.owns(r) {
			t.Resync() // a route of another that we did not know: IPv6 siblings are hard to follow
		}
	case have.Equal(r):
		t.table.ObserveGone(r.Key())
	case r.Dst.Addr().Is6():
		t.Resync() // one next hop of several went
	}
}

// linkChanged has next hops resolved again, and unless the interface is a workload's the underlay looked at.
func (t *Target) linkChanged(link int) {
	t.changedLinks = true
	t.changedUnderlay = t.changedUnderlay || !t.rules.isWorkload(link)
}

// routeOfOthersChanged does the same for a route.
func (t *Target) routeOfOthersChanged(r kernel.Route) {
	t.changedLinks = true
	if len(r.NextHops) == 0 {
		t.changedUnderlay = true
	}
	for _, h := range r.NextHops {
		t.linkChanged(h.Link)
	}
}

func (t *Target) linkSeen(l kernel.Link) {
	old, known := t.rules.links[l.Index]
	if known && old.Name == l.Name && old.Up == l.Up {
		t.rules.links[l.Index] = l
		if old.MTU != l.MTU {
			t.linkChanged(l.Index)
		}
		return
	}
	t.appeared(l)
	t.rules.putLink(l)
	t.table.notifyAll() // rows name interfaces
	t.linkChanged(l.Index)
	t.decideLinkAgain(l.Name)
	if known && old.Name != l.Name {
		t.decideLinkAgain(old.Name)
	}
	if known && old.Up && !l.Up {
		t.flushed(l, func(hops []kernel.NextHop) bool {
			return !slices.ContainsFunc(hops, func(h kernel.NextHop) bool { return h.Link != l.Index })
		})
	}
}

func (t *Target) linkGone(l kernel.Link) {
	if _, known := t.rules.links[l.Index]; !known {
		return
	}
	t.flushed(l, func(hops []kernel.NextHop) bool {
		return slices.ContainsFunc(hops, func(h kernel.NextHop) bool { return h.Link == l.Index })
	})
	t.linkChanged(l.Index)
	t.rules.dropLink(l.Index)
	delete(t.rules.newcomers, l.Index)
	t.table.notifyAll()
	t.decideLinkAgain(l.Name)
}

// flushed forgets the routes that the kernel removed with an interface: of IPv4 routes there are no events.
func (t *Target) flushed(l kernel.Link, gone func([]kernel.NextHop) bool) {
	if t.rules.isWorkload(l.Index) {
		for p := range t.byLink[l.Name] {
			k := kernel.RouteKey{Dst: p, Metric: t.rules.config.workloadMetric(p.Addr())}
			if have, there := t.table.Get(k); there && len(have.NextHops) > 0 && gone(have.NextHops) {
				t.table.ObserveGone(k)
			}
		}
		return
	}
	lost := map[uint32]bool{} // by shape
	for n := range t.table.rows.withRoute() {
		number := t.table.row(n).have
		if number == 0 {
			continue
		}
		is, known := lost[number]
		if !known {
			hops := t.table.shapes.get(number).NextHops
			is = len(hops) > 0 && gone(hops)
			lost[number] = is
		}
		if is {
			t.table.setActual(n, 0)
		}
	}
	t.forgetForeign(gone)
}

func (t *Target) forgetForeign(gone func([]kernel.NextHop) bool) {
	var lost []kernel.Route
	for _, list := range t.rules.rib.routes {
		for _, r := range list {
			if r.Dst.Addr().Is4() && len(r.NextHops) > 0 && gone(r.NextHops) {
				lost = append(lost, r)
			}
		}
	}
	for _, r := range lost {
		t.rules.rib.remove(r)
		t.table.Retry(r.Key())
	}
}

func (t *Target) address(address kernel.Address, change int) {
	a := address.Prefix.Addr()
	before := t.rules.own[a] > 0
	if change > 0 {
		// Events repeat addresses whose flags change; counting is settled by the next reading.
		t.rules.own[a] = 1
	} else {
		delete(t.rules.own, a)
	}
	if before != (t.rules.own[a] > 0) {
		t.linkChanged(address.Link)
		t.decideAgain(netip.PrefixFrom(a, a.BitLen()))
		if a == t.rules.config.workloadSource(a) {
			t.decideWorkloadsAgain()
		}
	}
}
