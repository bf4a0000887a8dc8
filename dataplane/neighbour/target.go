package neighbour

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Kernel has the kernel calls of a Target.
type Kernel interface {
	kernel.Neighbours
	ListLinks() ([]kernel.Link, error)
}

const (
	// checkEvery is how often the tables are read again: following their events would let a flood of neighbours cost
	// time.
	checkEvery = 30 * time.Second
	// settled is the time in which a new next hop is usually resolved, after which its link-local address is known.
	settled = 2 * time.Second
	// firstLook and lastLook bound the time between two looks at the far end of an interface, which doubles: nothing
	// reports that a workload, or a CNI plugin behind Manx's, changes its hardware address.
	firstLook, lastLook = 250 * time.Millisecond, 10 * time.Second
	// leastLook is the time between two looks that events of the interface, which a workload can cause, lead to.
	leastLook = 100 * time.Millisecond
	// lookShare bounds the part of the time that looks take: one in so many.
	lookShare = 20
)

// look is what is known of the far end of a workload's interface.
type look struct {
	end      kernel.FarEnd
	at, next time.Time
	pause    time.Duration
	slow     bool // the last look took so long that no event makes the next one earlier
	decide   bool // the desired entries wait for the next look
}

// Target keeps the entries. Report changes to it, then call Flush. Not safe for concurrent use.
type Target struct {
	reconcile.Checked[key, entry]
	kernel    Kernel
	now       func() time.Time
	workloads map[string][]netip.Addr // by interface
	hops      map[int]map[netip.Addr]bool
	linkLocal map[int]map[netip.Addr]bool // of hops
	links     map[int]kernel.Link
	looks     map[int]*look // at workloads' interfaces
	wanted    map[int]map[netip.Addr]entry
	nextLook  time.Time
	settledAt time.Time // zero: next hops are settled
	overflow  overflow
}

// New makes a Target; now is the clock.
func New(k Kernel, now func() time.Time) *Target {
	t := &Target{kernel: k, now: now, workloads: map[string][]netip.Addr{}, links: map[int]kernel.Link{},
		looks: map[int]*look{}, wanted: map[int]map[netip.Addr]entry{}, nextLook: now()}
	t.Checked = reconcile.NewChecked(t, "neighbours", checkEvery, now)
	return t
}

// Name is the target's in logs.
func (t *Target) Name() string { return "neighbour" }

// Repairs returns none: most entries that are gone were removed by the kernel, with the carrier of their interface.
func (t *Target) Repairs() (list []reconcile.Repair, more int) {
	t.Table.Repairs()
	return nil, 0
}

// SetState sets the workloads of this host from a state.
func (t *Target) SetState(h *hoststate.Host) {
	t.Table.Prune(h.DatastoreSynced && h.BGPSynced)
	if h.Concerned {
		t.setWorkloads(workloadsOf(h))
	}
}

func (t *Target) setWorkloads(fresh map[string][]netip.Addr) {
	old := t.workloads
	t.workloads = fresh
	for index, l := range t.links {
		if a, b := old[l.Name], fresh[l.Name]; !slices.Equal(a, b) {
			t.decideSoon(index)
		}
	}
}

// SetNextHops sets the routers and other hosts that this host needs, and reports whether there is a change to make;
// only those with a gateway count.
func (t *Target) SetNextHops(list []kernel.NextHop) (changed bool) {
	fresh := map[int]map[netip.Addr]bool{}
	for _, h := range list {
		if h.Gateway.IsValid() {
			put(fresh, h.Link, h.Gateway.WithZone(""))
		}
	}
	old := t.hops
	t.hops = fresh
	if maps.EqualFunc(old, fresh, maps.Equal) {
		return false
	}
	for _, index := range slices.Concat(slices.Collect(maps.Keys(old)), slices.Collect(maps.Keys(fresh))) {
		t.decide(index)
	}
	t.settledAt = t.now().Add(settled)
	return true
}

// Handle takes over kernel events.
func (t *Target) Handle(events []kernel.Event) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case kernel.EventResync:
			t.Resync()
		case kernel.EventLink:
			t.linkSeen(e.Link)
		case kernel.EventLinkGone:
			if _, known := t.links[e.Link.Index]; known {
				delete(t.links, e.Link.Index)
				t.flushed(e.Link.Index, func(entry) bool { return true })
				t.decideSoon(e.Link.Index)
			}
		}
	}
}

// linkSeen takes over an interface, with the entries that the kernel has removed: all of them when it goes down or gets
// another hardware address, those that are not permanent when it loses its carrier.
func (t *Target) linkSeen(l kernel.Link) {
	old := t.links[l.Index]
	t.links[l.Index] = l
	if old == l {
		return
	}
	switch {
	case old.Up != l.Up || old.MAC != l.MAC:
		t.flushed(l.Index, func(entry) bool { return true })
	case old.Running != l.Running:
		t.flushed(l.Index, func(e entry) bool { return e.MAC == "" })
	case old.Name == l.Name:
		return
	}
	t.decideSoon(l.Index)
}

// flushed takes note that the kernel has removed entries.
func (t *Target) flushed(link int, which func(entry) bool) {
	for a, e := range t.wanted[link] {
		if which(e) {
			t.Table.ObserveGone(key{link, a})
		}
	}
}

func (t *Target) isWorkload(l kernel.Link) bool { return len(t.workloads[l.Name]) > 0 }

// decideSoon sets the desired entries of an interface. Those of a workload follow a look at the far end: the next Flush
// looks there, unless it was looked at just now.
func (t *Target) decideSoon(index int) {
	l, exists := t.links[index]
	if !exists || !t.isWorkload(l) {
		delete(t.looks, index)
		t.decide(index)
		return
	}
	k := t.looks[index]
	if k == nil {
		k = &look{}
		t.looks[index] = k
	}
	if soon := k.at.Add(leastLook); k.next.IsZero() || soon.Before(k.next) && !k.slow {
		k.next = soon
	}
	k.pause, k.decide = firstLook, true
	if k.next.Before(t.nextLook) {
		t.nextLook = k.next
	}
}

// decide sets the desired entries of an interface.
func (t *Target) decide(index int) {
	l := t.links[index] // down if it is gone
	var fresh map[netip.Addr]entry
	if k := t.looks[index]; k != nil {
		fresh = ofWorkload(l, k.end, t.workloads[l.Name])
	} else {
		fresh = ofNextHops(l, t.hops[index])
		maps.Copy(fresh, ofNextHops(l, t.linkLocal[index]))
	}
	for a := range t.wanted[index] {
		if _, still := fresh[a]; !still {
			t.Table.Unset(key{index, a})
		}
	}
	for a, e := range fresh {
		t.Table.Set(key{index, a}, e)
	}
	if t.wanted[index] = fresh; len(fresh) == 0 {
		delete(t.wanted, index)
	}
}

// Flush applies the desired entries. It returns how many changes were tried and how many of them failed.
func (t *Target) Flush() (steps, failures int, err error) {
	now := t.now()
	if !t.settledAt.IsZero() && !now.Before(t.settledAt) {
		t.settledAt = time.Time{}
		t.Resync()
	}
	if t.Due() {
		if err := t.Compare(func() error { return t.read(now) }); err != nil {
			return 0, 0, err
		}
	}
	if !now.Before(t.nextLook) {
		t.lookAround(now)
	}
	steps, failures = t.Table.Flush()
	return steps, failures, nil
}

// read reads the interfaces, and whether the tables were full.
func (t *Target) read(now time.Time) error {
	links, err := t.kernel.ListLinks()
	if err != nil {
		return err
	}
	gone := maps.Clone(t.links)
	for _, l := range links {
		delete(gone, l.Index)
		t.linkSeen(l)
	}
	for index := range gone {
		delete(t.links, index)
		t.decideSoon(index)
	}
	t.overflow.read(t.kernel, now)
	return nil
}

// lookAround looks at the far ends of those interfaces whose time has come.
func (t *Target) lookAround(now time.Time) {
	t.nextLook = now.Add(lastLook)
	for index, k := range t.looks {
		if !now.Before(k.next) {
			before := k.end
			k.end, _ = t.kernel.FarEnd(index)    // what cannot be read is resolved
			rest := lookShare * t.now().Sub(now) // a workload can have many addresses
			k.slow = rest > k.pause
			k.at, k.next, k.pause = now, now.Add(max(k.pause, rest)), min(2*k.pause, lastLook)
			if !sameEnd(before, k.end) {
				k.pause, k.decide = firstLook, true
			}
			if k.decide {
				k.decide = false
				t.decide(index)
			}
		}
		if k.next.Before(t.nextLook) {
			t.nextLook = k.next
		}
	}
}

func sameEnd(a, b kernel.FarEnd) bool {
	return a.MAC == b.MAC && a.Port == b.Port && slices.Equal(a.Addresses, b.Addresses)
}

// List implements reconcile.Applier. Entries of a workload that is not known yet are left out: the CNI plugin has just
// set them. Those of other programs are never removed.
func (t *Target) List() (map[key]entry, error) {
	all, err := t.kernel.ListNeighbours()
	if err != nil {
		return nil, err
	}
	if found := linkLocalOf(t.hops, all); !maps.EqualFunc(found, t.linkLocal, maps.Equal) {
		old := t.linkLocal
		t.linkLocal = found
		for _, links := range []map[int]map[netip.Addr]bool{old, found} {
			for index := range links {
				t.decide(index)
			}
		}
	}
	actual := map[key]entry{}
	for _, n := range all {
		known := len(t.wanted[n.Link]) > 0 || t.isWorkload(t.links[n.Link])
		k := key{n.Link, n.Address}
		switch {
		case !n.Own || n.Kind == kernel.Dynamic:
		case n.Kind == kernel.Permanent && (known || n.Address.IsMulticast()):
			actual[k] = entry{MAC: n.MAC}
		case n.Kind == kernel.Resolved:
			actual[k] = entry{}
		case n.Kind == kernel.Unresolved:
			actual[k] = entry{NoMAC: true}
		}
	}
	return actual, nil
}

// Apply implements reconcile.Applier.
func (t *Target) Apply(steps []reconcile.Step[key, entry]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		n := kernel.Neighbour{Link: s.Key.Link, Address: s.Key.Address, MAC: s.New.MAC, Kind: kernel.Permanent}
		switch {
		case s.New.NoMAC:
			n.Kind = kernel.Unresolved
		case n.MAC == "":
			n.Kind = kernel.Resolved
		}
		if s.Action == reconcile.Remove {
			errs[i] = t.kernel.RemoveNeighbour(n.Link, n.Address)
		} else {
			errs[i] = t.kernel.SetNeighbour(n)
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s: %w", cmp.Or(t.links[n.Link].Name, "an interface that is gone"), errs[i])
		}
	}
	return errs
}

// Next returns how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	next := t.Checked.Next()
	if len(t.looks) > 0 {
		next = min(next, t.nextLook.Sub(t.now()))
	}
	if !t.settledAt.IsZero() {
		next = min(next, t.settledAt.Sub(t.now()))
	}
	return max(next, time.Millisecond)
}
