package route

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/prefixtable"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/ippool"
)

// Kernel has the methods of the kernel that a Target needs.
type Kernel interface {
	kernel.Routes
	ListLinks() ([]kernel.Link, error)
	ListAddresses() ([]kernel.Address, error)
}

// Target keeps the kernel's routing tables as decided. Report changes to it, then call Flush. Not safe for concurrent
// use.
type Target struct {
	kernel Kernel
	now    func() time.Time
	rules  *rules
	table  *table
	learnt prefixtable.Interned[learntKey, *learnt]
	extras map[uint32]*extras               // by row
	dirty  []uint32                         // rows
	byLink map[string]map[netip.Prefix]bool // workload addresses by interface name
	static []Static
	under  *kernelTarget

	decided map[question]answer // since the last change of the underlay or of the configuration
	last    struct {            // the last learned route: routes of one UPDATE have the same next hops
		*learnt
		number uint32
	}
	hops []netip.Addr // a buffer of number

	placed       map[netip.Prefix]string          // the nodes of prefixes, by IPAM's blocks
	placedOn     map[string]map[netip.Prefix]bool // the prefixes of nodes
	tunnels      map[netip.Prefix]string          // the nodes of tunnel addresses with a route of their own
	endpoints    map[endpointKey]endpoint         // of the nodes of both
	gateways     map[netip.Addr]bool              // of the host's routes, when routes by IPAM were decided last
	synced       bool                             // the datastore and BGP
	placesSynced bool
	policyOnly   bool // blocks have no routes here

	turned map[netip.Prefix]modeChange // by the pool's CIDR
	held   map[place]time.Time         // when ways of former modes have to go

	departures map[netip.Prefix]*departure
	forgetter  forgetter
	disabled   map[string]error        // tunnel devices, by FelixConfiguration
	bgpOff     string                  // why this node has no BGP; empty: it has
	missing    func() map[string]error // see FollowMissing

	underlayChanged func(hoststate.Underlay) // may be nil
	lastUnderlay    hoststate.Underlay
	waysChanged     func() // may be nil
	refusalsChanged func()

	changedLinks    bool // something that next hops are resolved with
	changedUnderlay bool // and it is not about a workload
	changedNodes    map[endpointKey]bool
	mtuTo           func(netip.Addr) int // of the way to another host, 0 for none
	nodeMTUs        nodeMTUs
	resync          resync
	applied         int
}

// question has the inputs of the decision about a learned route, except those of this node itself.
type question struct {
	learned uint32
	pool    *ippool.Pool
	ipv6    bool
}

// answer is the shape of the route, 0 for none, and the note.
type answer struct {
	shape uint32
	note  string
}

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return t.table.Repairs() }

// New makes a Target. now is the clock.
func New(k Kernel, now func() time.Time) *Target {
	t := &Target{
		kernel: k, now: now, extras: map[uint32]*extras{},
		byLink:          map[string]map[netip.Prefix]bool{},
		decided:         map[question]answer{},
		refusalsChanged: func() {},
		departures:      map[netip.Prefix]*departure{},
		placed:          map[netip.Prefix]string{}, placedOn: map[string]map[netip.Prefix]bool{},
		tunnels:   map[netip.Prefix]string{},
		endpoints: map[endpointKey]endpoint{}, turned: map[netip.Prefix]modeChange{}, held: map[place]time.Time{},
		changedNodes: map[endpointKey]bool{}, nodeMTUs: newNodeMTUs(),
		rules: &rules{hops: map[netip.Addr]*hop{}, newcomers: map[int]time.Time{},
			vteps: vtep.NewTable},
	}
	t.rules.setUnderlay(newUnderlay())
	t.rules.workloadAt, t.rules.gatewayTo = t.workloadAt, t.gatewayTo
	t.mtuTo = func(a netip.Addr) int { return t.rules.wayTo(a).MTU }
	t.under = &kernelTarget{kernel: k, rules: t.rules}
	t.table = newTable(t.under, now, reconcile.DefaultBackoff)
	t.resync.want(now())
	return t
}

// SetServers sets addresses of servers that the host needs, with their names: no workload gets a route for one.
func (t *Target) SetServers(servers map[netip.Addr]string) {
	if !maps.Equal(t.rules.servers, servers) {
		t.rules.servers, t.rules.nearby.changed = servers, true
		t.decideWorkloadsAgain()
		t.decidePlacedAgain(func(netip.Prefix, string) bool { return true })
		t.refusalsChanged()
	}
}

// SetMoves sets the phases of the workloads that move.
func (t *Target) SetMoves(moves Moves) {
	if !maps.Equal(t.rules.moves, moves) {
		t.rules.moves = moves
		t.decideWorkloadsAgain()
	}
}

// setPeers sets the addresses of BGP peers in the same way.
func (t *Target) setPeers(peers []netip.Addr) {
	if !slices.Equal(t.rules.peers, peers) {
		t.rules.peers, t.rules.nearby.changed = peers, true
		t.decideWorkloadsAgain()
	}
}

// stateOf gathers the state of the place whose first row is n, as decisions need it.
func (t *Target) stateOf(n uint32) state {
	r := t.table.row(n)
	s := state{block: r.is(rowBlock), extras: noExtras}
	if r.learned != 0 {
		l := *t.learnt.At(r.learned)
		s.learned, s.metric = l.hops, l.metric
	}
	if r.is(rowExtras) {
		s.extras = t.extras[n]
	}
	return s
}

// extrasOf returns the extras of a row, which may be changed.
func (t *Target) extrasOf(n uint32) *extras {
	x := t.extras[n]
	if x == nil {
		x = &extras{}
		t.extras[n] = x
		t.table.row(n).flags |= rowExtras
	}
	return x
}

// dropExtras forgets the extras of a row.
func (t *Target) dropExtras(n uint32) {
	delete(t.extras, n)
	t.table.row(n).flags &^= rowExtras
}

// extrasAt returns the extras of an address in main, read-only ones if it has none.
func (t *Target) extrasAt(a netip.Addr) *extras {
	n := t.table.rows.findPlace(inMain(netip.PrefixFrom(a.WithZone(""), a.BitLen())))
	if n == 0 || !t.table.row(n).is(rowExtras) {
		return noExtras
	}
	return t.extras[n]
}

// workloadAt returns the interface of the local workload that has the address, if any.
func (t *Target) workloadAt(a netip.Addr) string {
	if x := t.extrasAt(a); len(x.endpoints) > 0 {
		return t.rules.holder(x.endpoints).Interface
	}
	return ""
}

// gatewayTo returns the gateway of the static route to an address, an invalid one if there is none.
func (t *Target) gatewayTo(a netip.Addr) netip.Addr { return t.extrasAt(a).via() }

// SetStatic sets the routes to peers, each with another prefix in its table.
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
	var before netip.Addr
	n := t.table.rows.findPlace(placeOfStatic(r))
	if n != 0 {
		s := t.stateOf(n)
		before = s.via()
	}
	if before == r.Via {
		return
	}
	n = t.table.rows.putPlace(placeOfStatic(r))
	t.extrasOf(n).static = &r
	t.decideRowAgain(n)
	t.changedLinks = true // routes learned from the peer go the same way
}

// Learn takes over changes of learned routes.
func (t *Target) Learn(changes []locrib.Route) {
	for i := range changes {
		r := &changes[i]
		p := inMain(r.Prefix.Masked())
		if len(r.Paths) > 0 {
			n := t.table.rows.putPlace(p)
			t.table.row(n).learned = t.number(r)
			t.decideRowAgain(n)
		} else if n := t.table.rows.findPlace(p); n != 0 && t.table.row(n).desired() {
			t.decideRowAgain(n)
			t.table.row(n).learned = 0
		}
	}
}

// number returns the number of the learned data of a prefix.
func (t *Target) number(r *locrib.Route) uint32 {
	l := learnt{r.AppendNextHops(t.hops[:0]), r.Metric}
	t.hops = l.hops
	if last := &t.last; last.number == 0 || last.metric != l.metric || !slices.Equal(last.hops, l.hops) {
		last.number = t.learnt.Number(l.key(), func() *learnt { return &learnt{slices.Clone(l.hops), l.metric} })
		last.learnt = *t.learnt.At(last.number)
	}
	return t.last.number
}

// OnlyLearned reports whether only changes from Learn wait for the next Flush.
func (t *Target) OnlyLearned() bool {
	return t.resync.listed && !t.changedLinks && len(t.departures) == 0 && t.table.Failures() == 0
}

// decideAgain makes the next Flush decide about p in main again, if it is desired.
func (t *Target) decideAgain(p netip.Prefix) {
	if n := t.table.rows.findPlace(inMain(p)); n != 0 && t.table.row(n).desired() {
		t.decideRowAgain(n)
	}
}

func (t *Target) decideRowAgain(n uint32) {
	t.table.notify(n)
	if r := t.table.row(n); !r.is(rowUndecided) {
		r.flags |= rowUndecided
		t.dirty = append(t.dirty, n)
	}
}

// decideLearnedAgain marks learned routes for a new decision: those for which selects is true. Its arguments are the
// route's prefix, and the number under which the table has the route's next hops and metric.
func (t *Target) decideLearnedAgain(selects func(p netip.Prefix, learned uint32) bool) {
	for n := range t.table.rows.All() {
		if r := t.table.row(n); r.learned != 0 && selects(t.table.rows.Prefix(n), r.learned) {
			t.decideRowAgain(n)
		}
	}
}

// setMissing sets, by name, why the node lacks tunnel devices. Devices that it has or will have are left out; no reason
// is nil.
func (t *Target) setMissing(why map[string]error) {
	same := func(a, b error) bool { return a.Error() == b.Error() }
	if maps.EqualFunc(t.rules.missing, why, same) {
		return
	}
	t.rules.missing = why
	t.changedLinks = true
}

// FollowMissing makes each Flush determine why the node has no tunnel devices, by name. Call it before the first Flush.
func (t *Target) FollowMissing(why func() map[string]error) { t.missing = why }

// updateMissing determines why the node has no tunnel devices. why makes a new map each time.
func (t *Target) updateMissing() {
	why := map[string]error{}
	if t.missing != nil {
		why = t.missing()
	}
	maps.Copy(why, t.disabled)
	if t.missing != nil || len(t.disabled) > 0 {
		t.setMissing(why)
	}
}

// Synced sets whether the datastore and BGP are both in sync, so that unwanted routes may be removed.
func (t *Target) Synced(yes bool) {
	t.synced = yes
	t.updatePrune()
}

// updatePrune sets whether unwanted routes may be removed: the source of each pool's routes has been read as a whole.
func (t *Target) updatePrune() {
	needed := !t.policyOnly &&
		slices.ContainsFunc(t.rules.config.Pools, func(p ippool.Pool) bool { return byIPAM(&p) })
	t.table.Prune(t.synced && (t.placesSynced || !needed))
}

// Retry makes the next Flush retry failed steps, and read everything again.
func (t *Target) Retry() {
	t.table.RetryAll()
	t.Resync()
}

// Resync makes a Flush soon compare with everything that is in the kernel.
func (t *Target) Resync() { t.resync.want(t.now()) }

// Flush decides about changed prefixes and applies the decisions to the kernel. It returns the number of changes that
// were tried.
func (t *Target) Flush() (steps, failures int, err error) {
	t.updateMissing()
	t.forgetter.readConnected()
	t.takeForgotten()
	t.settleArrived()
	now := t.now()
	if t.resync.due(now, t.table.Failures()) {
		err = t.readAll(now)
	}
	t.endGrace(now)
	t.decideHeldAgain(now)
	if !t.resync.listed {
		return 0, 0, err // the kernel's routes must be known before any is added
	}
	if t.changedLinks {
		t.changedLinks = false
		t.resolveAgain()
	}
	if t.changedUnderlay || len(t.changedNodes) > 0 {
		t.publishUnderlay()
	}
	t.decideDirty()
	steps, failures = t.table.Flush()
	t.applied += steps - failures
	t.departLeftovers()
	t.forgetDeparted()
	t.forgetUnused()
	t.publishNextHops()
	t.resync.answers(t.under, now)
	return steps, failures, err
}

// Next returns how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	at := t.resync.next()
	if retry, ok := t.table.Next(); ok && retry.Before(at) {
		at = retry
	}
	if grace, ok := t.graceEnds(); ok && grace.Before(at) {
		at = grace
	}
	if end, ok := t.holdEnds(); ok && end.Before(at) {
		at = end
	}
	return max(at.Sub(t.now()), time.Millisecond)
}

// readAll reads links, addresses and routes, and compares.
func (t *Target) readAll(now time.Time) error {
	own, gateways := t.rules.own, t.rules.rib.gateways
	err := t.readUnderlay()
	if err == nil {
		err = t.table.Resync()
	}
	if !maps.Equal(own, t.rules.own) || !maps.Equal(gateways, t.rules.rib.gateways) {
		t.decideWorkloadsAgain()
		t.decidePlacedAgain(isSingle)
	}
	t.resync.lastErr, t.resync.last = err, now
	if err != nil {
		t.resync.at = now.Add(resyncRetry)
		return err
	}
	t.resync.done(now)
	t.changedLinks, t.changedUnderlay = true, true
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
		t.appeared(l)
		fresh.putLink(l)
	}
	for _, a := range addresses {
		fresh.own[a.Prefix.Addr()]++
	}
	if !maps.Equal(t.rules.links, fresh.links) {
		t.table.notifyAll() // rows name interfaces
	}
	t.decideChangedLinksAgain(t.rules.underlay, fresh)
	t.rules.setUnderlay(fresh)
	return nil
}

// decideChangedLinksAgain makes the workload routes of interfaces that came, went or changed dirty.
func (t *Target) decideChangedLinksAgain(old, fresh *underlay) {
	for name := range t.byLink {
		a, _ := old.link(name)
		b, _ := fresh.link(name)
		if a.Index != b.Index || a.Up != b.Up {
			t.decideLinkAgain(name)
		}
	}
}

func (t *Target) decideLinkAgain(name string) {
	for p := range t.byLink[name] {
		t.decideAgain(p)
	}
}

// resolveAgain resolves all next hops again, and decides again about the routes through changed ones.
func (t *Target) resolveAgain() {
	clear(t.decided)
	t.rules.nearby.changed = true
	t.followGateways()
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
			t.decideRowAgain(t.table.rows.putPlace(placeOfStatic(r)))
		}
	}
	t.decidePlacedAgain(func(p netip.Prefix, node string) bool {
		address := t.rules.vteps(familyOf(p)).Address(node)
		used[address] = true
		return changed[address]
	})
	hits := map[uint32]bool{} // by the number of the learned data
	t.decideLearnedAgain(func(_ netip.Prefix, learned uint32) bool {
		hit, known := hits[learned]
		if !known {
			for _, nh := range (*t.learnt.At(learned)).hops {
				used[nh] = true
				hit = hit || changed[nh]
			}
			hits[learned] = hit
		}
		return hit
	})
	for nh := range t.rules.hops {
		if !used[nh] {
			delete(t.rules.hops, nh)
		}
	}
}

// decideDirty writes the decisions about all dirty prefixes to the table.
func (t *Target) decideDirty() {
	if len(t.dirty) == 0 {
		return
	}
	now := t.now()
	if len(t.tunnels) > 0 { // the kernel refuses a gateway that another device's route covers
		isTunnel := func(n uint32) int {
			if t.extrasAtRow(n).tunnel != "" {
				return 0
			}
			return 1
		}
		slices.SortStableFunc(t.dirty, func(a, b uint32) int { return isTunnel(a) - isTunnel(b) })
	}
	for _, n := range t.dirty {
		t.table.notify(n)
		t.table.row(n).flags &^= rowUndecided
		p, s := t.table.rows.Prefix(n), t.stateOf(n)
		d := t.hold(n, p, &s, t.decide(n, p, &s))
		route, note := d.shape, d.note
		if t.departs(n, p, &s, route) {
			route, note = 0, t.departures[p].note()
		}
		t.table.setDesiredIn(n, route)
		if note != "" || t.table.row(n).is(rowExtras) {
			x := t.extrasOf(n)
			if x.note != note {
				x.note, x.since = note, now
			}
			if x.none() {
				t.dropExtras(n)
			}
		}
		if t.rules.source(p, &s) == SourceNone && route == 0 {
			t.forgetPlace(n)
		}
	}
	if t.dirty = t.dirty[:0]; cap(t.dirty) > 1<<14 {
		t.dirty = nil
	}
}

// decide decides about the place whose first row is n. Learned routes that differ in their prefix alone are decided
// once.
func (t *Target) decide(n uint32, p netip.Prefix, s *state) decision {
	switch t.rules.source(p, s) {
	case SourceBGP:
	case SourceIPAM:
		route, note, waits := t.rules.placed(t.rules.config.Pools.Of(p), p, cmp.Or(s.tunnel, s.remote))
		return decision{t.table.shapes.number(route), note, waits}
	default:
		route, note := t.rules.decide(p, s)
		return decision{shape: t.table.shapes.number(route), note: note}
	}
	if note := t.rules.refuse(p, s); note != "" {
		return decision{note: note}
	}
	q := question{t.table.row(n).learned, t.rules.config.Pools.Of(p), p.Addr().Is6()}
	a, known := t.decided[q]
	if !known {
		route, note := t.rules.throughPool(q.pool, q.ipv6, s.learned, s.metric)
		a = answer{t.table.shapes.number(route), note}
		t.decided[q] = a
	}
	return decision{shape: a.shape, note: a.note}
}

// forgetPlace removes the desired state of a place.
func (t *Target) forgetPlace(n uint32) {
	t.dropExtras(n)
	t.table.rows.release(n)
}

// forgetUnused forgets shared values that no row has any more, if they may be many.
func (t *Target) forgetUnused() {
	crowded := t.learnt.Crowded()
	if crowded {
		t.last.number = 0
		t.learnt.Sweep(func(yield func(uint32) bool) {
			for n := range t.table.rows.All() {
				if l := t.table.row(n).learned; l != 0 && !yield(l) {
					return
				}
			}
		})
	}
	if t.table.forgetShapes() || crowded {
		clear(t.decided)
	}
}

// Listed reports whether the kernel has been read at least once, and the error of the last reading.
func (t *Target) Listed() (bool, error) { return t.resync.listed, t.resync.lastErr }

// Applied is the number of routes that were written to the kernel since the start.
func (t *Target) Applied() int { return t.applied }
