package speaker

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/ownership"
)

const defaultLocalPref = 100 // RFC 4271 section 9.1.1 leaves it to the speaker; BIRD and most others use 100

// fib holds the best paths of all prefixes that others announce and the set of prefixes that changed since they
// were last taken. Many changes of one prefix between two Takes are one.
type fib struct {
	changed chan struct{} // holds one token while something is dirty

	mu      sync.Mutex
	entries map[netip.Prefix]*fibEntry
	dirty   []netip.Prefix
	mine    ownership.Set
	outward outward
	reflect map[netip.Addr]netip.Addr // our cluster ID on sessions with clients, by peer
	scratch []fibPath

	changes uint64 // of paths, our own included

	changesBy map[netip.Addr]uint64 // those of them by single peers
}

type fibEntry struct {
	paths []fibPath
	one   [1]fibPath // backs paths while there is only one, as is usual
	dirty bool
}

// fibPath is one path; peer and id are its key (RFC 7911).
type fibPath struct {
	peer      netip.Addr
	nextHop   netip.Addr
	id        uint32
	localPref uint32
	stale     bool   // from before a restart of the speaker
	clusters  string // CLUSTER_LIST (RFC 4456), four bytes each
}

func newFIB() *fib {
	return &fib{changed: make(chan struct{}, 1), entries: map[netip.Prefix]*fibEntry{},
		changesBy: map[netip.Addr]uint64{}}
}

// Changed receives after something changed that Take has not handed out yet, also when Synced changes.
func (s *Speaker) Changed() <-chan struct{} { return s.fib.changed }

// Take hands out up to max changed prefixes (0: all), each with its complete current set of paths; no paths mean
// that the prefix is gone. It returns nothing when nothing changed. If more is left, Changed fires again.
func (s *Speaker) Take(max int) []bgp.Route { return s.fib.take(max) }

// Snapshot returns all prefixes with usable paths, in no order, and leaves Take alone.
func (s *Speaker) Snapshot() []bgp.Route { return s.fib.snapshot() }

// learnedInside tells whether a learned route lies in one of the prefixes.
func (f *fib) learnedInside(prefixes []netip.Prefix) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for learned := range f.entries {
		for _, p := range prefixes {
			if p.Bits() <= learned.Bits() && p.Contains(learned.Addr()) {
				return true
			}
		}
	}
	return false
}

// knows tells whether there is a learned route for a prefix.
func (f *fib) knows(prefix netip.Prefix) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[prefix]
	return e != nil && len(e.paths) > 0
}

func (f *fib) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// update applies the changes of one callback.
func (f *fib) update(paths []*apiutil.Path) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range paths {
		f.changes++
		nlri, ok := p.Nlri.(*gobgp.IPAddrPrefix)
		if !ok || !p.PeerAddress.IsValid() { // not unicast, or our own
			continue
		}
		prefix := nlri.Prefix.Masked()
		f.changesBy[p.PeerAddress]++
		if p.Withdrawal {
			f.remove(prefix, p.PeerAddress, p.RemoteID)
		} else {
			f.add(prefix, learnedPath(p))
		}
	}
	if len(f.dirty) > 0 {
		f.signal()
	}
}

// changesByOthers counts the changes of paths so far that were not this peer's doing.
func (f *fib) changesByOthers(peer netip.Addr) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changes - f.changesBy[peer]
}

func learnedPath(p *apiutil.Path) fibPath {
	l := fibPath{peer: p.PeerAddress, id: p.RemoteID, localPref: defaultLocalPref}
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *gobgp.PathAttributeNextHop:
			l.nextHop = a.Value
		case *gobgp.PathAttributeMpReachNLRI:
			l.nextHop = a.Nexthop
		case *gobgp.PathAttributeLocalPref:
			l.localPref = a.Value
		case *gobgp.PathAttributeClusterList:
			for _, id := range a.Value {
				l.clusters += string(id.AsSlice())
			}
		}
	}
	return l
}

func (f *fib) add(prefix netip.Prefix, p fibPath) {
	e := f.entries[prefix]
	if e == nil {
		e = &fibEntry{}
		e.paths = e.one[:0]
		f.entries[prefix] = e
	}
	// Stale paths of the same peer are replaced whatever their identifier was.
	n := len(e.paths)
	e.paths = slices.DeleteFunc(e.paths, func(o fibPath) bool { return o.peer == p.peer && o.stale && o.id != p.id })
	i := slices.IndexFunc(e.paths, func(o fibPath) bool { return o.peer == p.peer && o.id == p.id })
	switch {
	case i < 0:
		e.paths = append(e.paths, p)
	case e.paths[i] == p && n == len(e.paths):
		return
	default:
		e.paths[i] = p
	}
	f.touch(prefix, e)
}

func (f *fib) remove(prefix netip.Prefix, peer netip.Addr, id uint32) {
	e := f.entries[prefix]
	if e == nil {
		return
	}
	i := slices.IndexFunc(e.paths, func(o fibPath) bool { return o.peer == peer && o.id == id })
	if i < 0 {
		return
	}
	e.paths = slices.Delete(e.paths, i, i+1)
	f.touch(prefix, e)
}

func (f *fib) touch(prefix netip.Prefix, e *fibEntry) {
	if !e.dirty {
		e.dirty = true
		f.dirty = append(f.dirty, prefix)
	}
}

// take returns routes for the oldest dirty prefixes.
func (f *fib) take(limit int) []bgp.Route {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.dirty)
	if n == 0 {
		return nil
	}
	if limit > 0 && limit < n {
		n = limit
	}
	routes := make([]bgp.Route, 0, n)
	arena := make([]bgp.Path, 0, n) // one allocation for the paths of all routes, as long as there is one each
	for _, prefix := range f.dirty[:n] {
		e := f.entries[prefix]
		e.dirty = false
		var r bgp.Route
		r, arena = f.route(prefix, e, arena)
		routes = append(routes, r)
		if len(e.paths) == 0 {
			delete(f.entries, prefix)
		}
	}
	if n == len(f.dirty) {
		f.dirty = f.dirty[:0]
		if cap(f.dirty) > 4096 {
			f.dirty = nil
		}
	} else {
		f.dirty = f.dirty[n:]
		f.signal()
	}
	return routes
}

// route turns the paths of a prefix into a route; of several groups of paths the one with the highest preference counts.
func (f *fib) route(prefix netip.Prefix, e *fibEntry, arena []bgp.Path) (bgp.Route, []bgp.Path) {
	r := bgp.Route{Prefix: prefix}
	best := uint32(0)
	usable := f.scratch[:0]
	for _, p := range e.paths {
		if why, _ := f.refuse(prefix, p); why != "" {
			continue
		}
		usable = append(usable, p)
		best = max(best, p.localPref)
	}
	f.scratch = usable
	start := len(arena)
	for _, p := range usable {
		if p.localPref == best {
			arena = append(arena, bgp.Path{NextHop: p.nextHop, Peer: p.peer})
		}
	}
	if len(arena) == start {
		return r, arena
	}
	r.Paths = arena[start:len(arena):len(arena)]
	if len(r.Paths) > 1 {
		slices.SortFunc(r.Paths, comparePaths)
		r.Paths = slices.CompactFunc(r.Paths, func(a, b bgp.Path) bool { return a == b }) // one peer may send one next hop twice (RFC 7911)
	}
	if best < bgp.MaxPriority {
		r.Metric = bgp.MaxPriority - best
	}
	return r, arena
}

func comparePaths(a, b bgp.Path) int {
	return cmp.Or(a.NextHop.Compare(b.NextHop), a.Peer.Compare(b.Peer))
}

// setOwn tells what must not be learned from others. Only what it affects is looked at again.
func (f *fib) setOwn(mine ownership.Set) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var exact, blocks []netip.Prefix
	differ(f.mine.Originated, mine.Originated, func(p netip.Prefix) { exact = append(exact, p) })
	differ(f.mine.Blocks.All(), mine.Blocks.All(), func(p netip.Prefix) { blocks = append(blocks, p) })
	addresses := false
	differ(f.mine.Addresses, mine.Addresses, func(netip.Addr) { addresses = true })
	f.mine = mine
	for _, p := range exact {
		if e := f.entries[p]; e != nil {
			f.touch(p, e)
		}
	}
	if addresses || len(blocks) > 0 {
		inside := func(p netip.Prefix) bool {
			return slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Bits() <= p.Bits() && b.Contains(p.Addr()) })
		}
		for p, e := range f.entries {
			if addresses || inside(p) {
				f.touch(p, e)
			}
		}
	}
	if len(f.dirty) > 0 {
		f.signal()
	}
}

// differ visits the keys that only one of two sets has.
func differ[K comparable, V any](a, b map[K]V, visit func(K)) {
	for _, pair := range [][2]map[K]V{{a, b}, {b, a}} {
		for k := range pair[0] {
			if _, both := pair[1][k]; !both {
				visit(k)
			}
		}
	}
}

// markStale keeps all paths until sweepStale, unless they are announced again.
func (f *fib) markStale() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries {
		for i := range e.paths {
			e.paths[i].stale = true
		}
	}
}

// sweepStale removes what was not announced again since markStale, and wakes the reader in any case.
func (f *fib) sweepStale() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for prefix, e := range f.entries {
		n := len(e.paths)
		e.paths = slices.DeleteFunc(e.paths, func(p fibPath) bool { return p.stale })
		if n != len(e.paths) {
			f.touch(prefix, e)
		}
	}
	f.signal()
}

func (f *fib) snapshot() []bgp.Route {
	f.mu.Lock()
	defer f.mu.Unlock()
	routes := make([]bgp.Route, 0, len(f.entries))
	arena := make([]bgp.Path, 0, len(f.entries))
	for prefix, e := range f.entries {
		var r bgp.Route
		if r, arena = f.route(prefix, e, arena); len(r.Paths) > 0 {
			routes = append(routes, r)
		}
	}
	return routes
}
