package route

import (
	"maps"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Kernel is what a Target needs.
type Kernel interface {
	kernel.Routes
	ListLinks() ([]kernel.Link, error)
	ListAddresses() ([]kernel.Address, error)
}

// Target keeps the kernel's routing tables as decided. Tell it what changed, then Flush. Not safe for concurrent use.
type Target struct {
	kernel Kernel
	now    func() time.Time
	rules  *rules
	states map[netip.Prefix]*state // of main
	beside map[place]*state        // of other tables
	dirty  []dirty
	byLink map[string]map[netip.Prefix]bool // workload addresses by interface name
	static []Static
	under  *kernelTarget
	table  *reconcile.Table[kernel.RouteKey, *kernel.Route]

	departures map[netip.Prefix]*departure
	forgetter  forgetter
	ipipOff    bool                    // by FelixConfiguration
	missing    func() map[string]error // see FollowMissing

	changedLinks bool // something that next hops are resolved with
	resync       resync
	applied      int
}

type dirty struct {
	netip.Prefix
	*state
}

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return t.table.Repairs() }

// New makes a Target. now is the clock.
func New(k Kernel, now func() time.Time) *Target {
	t := &Target{
		kernel: k, now: now, states: map[netip.Prefix]*state{}, beside: map[place]*state{},
		byLink:     map[string]map[netip.Prefix]bool{},
		departures: map[netip.Prefix]*departure{},
		rules:      &rules{hops: map[netip.Addr]*hop{}},
	}
	t.rules.setUnderlay(newUnderlay())
	t.rules.workloadAt, t.rules.gatewayTo = t.workloadAt, t.gatewayTo
	t.under = &kernelTarget{kernel: k, rules: t.rules}
	equal := func(a, b *kernel.Route) bool { return a == b || a.Equal(*b) }
	t.table = reconcile.NewTable(t.under, equal, now, reconcile.DefaultBackoff)
	t.resync.want(now())
	return t
}

// workloadAt returns the interface of the local workload that has the address, if any.
func (t *Target) workloadAt(a netip.Addr) string {
	if s := t.states[netip.PrefixFrom(a.WithZone(""), a.BitLen())]; s != nil && len(s.endpoints) > 0 {
		return t.rules.holder(s.endpoints).Interface
	}
	return ""
}

// gatewayTo returns the gateway of the static route to an address, an invalid one if there is none.
func (t *Target) gatewayTo(a netip.Addr) netip.Addr {
	if s := t.states[netip.PrefixFrom(a.WithZone(""), a.BitLen())]; s != nil {
		return s.via()
	}
	return netip.Addr{}
}

// SetStatic takes over the routes to peers, each with another prefix in its table.
func (t *Target) SetStatic(list []Static) {
	keep := map[place]bool{}
	for _, r := range list {
		keep[placeOfStatic(r)] = true
		t.setStatic(r)
	}
	for _, r := range t.static {
		if !keep[placeOfStatic(r)] {
			t.setStatic(Static{Prefix: r.Prefix, Table: r.Table})
		}
	}
	t.static = list
}

// setStatic takes over one of them; without a gateway it is gone.
func (t *Target) setStatic(r Static) {
	if s := t.stateAt(placeOfStatic(r)); s.via() != r.Via {
		s.own().static = &r
		t.touchState(r.Prefix, s)
		t.changedLinks = true // what is learned from the peer goes the same way
	}
}

// Learn takes over what changed in BGP.
func (t *Target) Learn(changes []Learned) {
	for _, l := range changes {
		l.Prefix = l.Prefix.Masked()
		if len(l.NextHops) > 0 {
			s := t.state(l.Prefix)
			s.learned, s.metric = l.NextHops, l.Metric
			t.touchState(l.Prefix, s)
		} else if s := t.states[l.Prefix]; s != nil {
			s.learned = nil
			t.touchState(l.Prefix, s)
		}
	}
}

// OnlyLearned reports whether nothing but what Learn took over waits for the next Flush.
func (t *Target) OnlyLearned() bool {
	return t.resync.listed && !t.changedLinks && len(t.departures) == 0 && t.table.Failures() == 0
}

func (t *Target) state(p netip.Prefix) *state {
	s := t.states[p]
	if s == nil {
		s = &state{extras: nothing}
		t.states[p] = s
	}
	return s
}

// touch makes the next Flush decide about p again.
func (t *Target) touch(p netip.Prefix) {
	if s := t.states[p]; s != nil {
		t.touchState(p, s)
	}
}

func (t *Target) touchState(p netip.Prefix, s *state) {
	if !s.dirty {
		s.dirty = true
		t.dirty = append(t.dirty, dirty{p, s})
	}
}

// touchLearned makes the learned prefixes dirty that which accepts, given their next hops.
func (t *Target) touchLearned(which func(netip.Prefix, []netip.Addr) bool) {
	for p, s := range t.states {
		if len(s.learned) > 0 && which(p, s.learned) {
			t.touchState(p, s)
		}
	}
}

// SetMissing says of tunnel devices by name why the node does not have them. Those that it has or will have are left
// out; no reason is nil.
func (t *Target) SetMissing(why map[string]error) {
	same := func(a, b error) bool { return a.Error() == b.Error() }
	if maps.EqualFunc(t.rules.missing, why, same) {
		return
	}
	t.rules.missing = why
	t.changedLinks = true
}

// FollowMissing makes each Flush find out why the node has no tunnel devices, by name. Call it before the first Flush.
func (t *Target) FollowMissing(why func() map[string]error) { t.missing = why }

// lookForMissing finds out why the node has no tunnel devices. why makes a new map each time.
func (t *Target) lookForMissing() {
	why := map[string]error{}
	if t.missing != nil {
		why = t.missing()
	}
	if t.ipipOff {
		why[TunnelDevice] = errIPIPDisabled
	}
	if t.missing != nil || t.ipipOff {
		t.SetMissing(why)
	}
}

// Synced says whether the datastore and BGP are both in sync, so that what nobody wants may be removed.
func (t *Target) Synced(yes bool) { t.table.Prune(yes) }

// Retry makes the next Flush try what failed, and read everything again.
func (t *Target) Retry() {
	t.table.RetryAll()
	t.Resync()
}

// Resync makes a Flush soon compare with everything that is in the kernel.
func (t *Target) Resync() { t.resync.want(t.now()) }

// Flush decides about what changed and brings the kernel there. It returns the number of changes that were tried.
func (t *Target) Flush() (steps, failures int, err error) {
	t.lookForMissing()
	t.takeForgotten()
	now := t.now()
	if t.resync.due(now, t.table.Failures()) {
		err = t.readAll(now)
	}
	if !t.resync.listed {
		return 0, 0, err // what is there must be known before anything is added
	}
	if t.changedLinks {
		t.changedLinks = false
		t.resolveAgain()
	}
	t.decideDirty()
	t.under.failed = nil
	steps, failures = t.table.Flush()
	t.applied += steps - failures
	t.departLeftovers()
	t.forgetDeparted()
	t.resync.answers(t.under, now)
	return steps, failures, err
}

// Next is how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	at := t.resync.next()
	if retry, ok := t.table.Next(); ok && retry.Before(at) {
		at = retry
	}
	return max(at.Sub(t.now()), time.Millisecond)
}

// readAll reads links, addresses and routes, and compares.
func (t *Target) readAll(now time.Time) error {
	err := t.readUnderlay()
	if err == nil {
		err = t.table.Resync()
	}
	t.resync.lastErr, t.resync.last = err, now
	if err != nil {
		t.resync.at = now.Add(resyncRetry)
		return err
	}
	t.resync.done(now)
	t.changedLinks = true
	return nil
}

func (t *Target) readUnderlay() error {
	links, err := t.kernel.ListLinks()
	if err != nil {
		return err
	}
	addresses, err := t.kernel.ListAddresses()
	if err != nil {
		return err
	}
	fresh := newUnderlay()
	fresh.rib = t.rules.rib
	for _, l := range links {
		fresh.putLink(l)
	}
	for _, a := range addresses {
		fresh.own[a.Prefix.Addr()]++
	}
	t.retouchLinks(t.rules.underlay, fresh)
	t.rules.setUnderlay(fresh)
	return nil
}

// retouchLinks makes the workload routes of interfaces that came, went or changed dirty.
func (t *Target) retouchLinks(old, fresh *underlay) {
	for name := range t.byLink {
		a, _ := old.link(name)
		b, _ := fresh.link(name)
		if a.Index != b.Index || a.Up != b.Up {
			t.touchLink(name)
		}
	}
}

func (t *Target) touchLink(name string) {
	for p := range t.byLink[name] {
		t.touch(p)
	}
}

// resolveAgain looks at all next hops, and decides again about the routes through those that changed.
func (t *Target) resolveAgain() {
	changed := map[netip.Addr]bool{}
	for nh, h := range t.rules.hops {
		if t.rules.refresh(nh, h) {
			changed[nh] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	used := make(map[netip.Addr]bool, len(t.rules.hops))
	for _, r := range t.static {
		used[r.Via] = true
		if changed[r.Via] {
			t.touchState(r.Prefix, t.stateAt(placeOfStatic(r)))
		}
	}
	t.touchLearned(func(_ netip.Prefix, learned []netip.Addr) bool {
		hit := false
		for _, nh := range learned {
			used[nh] = true
			hit = hit || changed[nh]
		}
		return hit
	})
	for nh := range t.rules.hops {
		if !used[nh] {
			delete(t.rules.hops, nh)
		}
	}
}

// decideDirty hands the decisions about all dirty prefixes to the table.
func (t *Target) decideDirty() {
	if len(t.dirty) == 0 {
		return
	}
	now := t.now()
	for _, d := range t.dirty {
		s := d.state
		s.dirty = false
		route, note := t.rules.decide(d.Prefix, s)
		if t.departs(d.Prefix, s, route) {
			route, note = nil, departedNote
		}
		if s.want != nil && (route == nil || route.Metric != s.want.Metric) {
			t.table.Unset(s.want.Key())
		}
		if route != nil {
			t.table.Set(route.Key(), route)
		}
		s.want = route
		if s.note != note {
			s.own().note, s.since = note, now
		}
		if s.source() == SourceNone {
			t.drop(d.Prefix, s)
		}
	}
	clear(t.dirty)
	t.dirty = t.dirty[:0]
	if cap(t.dirty) > 1<<14 {
		t.dirty = nil
	}
}

// Failures is the number of routes that the kernel refused.
func (t *Target) Failures() int { return t.table.Failures() }

// Problem says what failed, nil if nothing did.
func (t *Target) Problem() error { return t.table.Problem() }

// Listed reports whether the kernel has been read at least once, and the error of the last reading.
func (t *Target) Listed() (bool, error) { return t.resync.listed, t.resync.lastErr }

// Applied is the number of routes that were written to the kernel since the start.
func (t *Target) Applied() int { return t.applied }
