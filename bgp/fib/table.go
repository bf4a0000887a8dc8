package fib

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/prefixtable"
	"github.com/manxnet/manx/datastore/ownership"
)

// Table holds the best paths of all prefixes that others announce and the set of prefixes that changed since they
// were last taken. Many changes of one prefix between two Takes are one.
type Table struct {
	changed chan struct{} // holds one token while something is dirty, and after SweepStale

	mu         sync.Mutex
	rows       *prefixtable.Table[fibRow]
	attributes prefixtable.Interned[fibPath, *pathAttributes]
	more       map[uint32][]storedPath // by row: the paths of those that have several
	dirty      []uint32                // rows
	mine       ownership.Set
	services   services
	peers      map[netip.Addr]peerFacts
	taken      []locrib.Route // by the last Take
	scratch    []storedPath
	usable     []storedPath
	last       struct { // whose attributes were looked up last: those of an UPDATE have many routes
		fibPath
		number uint32
	}

	changes uint64 // of paths, our own included

	changesBy map[netip.Addr]uint64 // those of them by single peers
}

// fibRow is the data of one prefix. There may be a million of them.
type fibRow struct {
	attributes uint32 // of the path, if there is one alone
	id         uint32 // of that one (RFC 7911)
	flags      rowFlags
}

type rowFlags uint32

const (
	rowDirty   rowFlags = 1 << iota
	rowStale            // the one path is from before a restart of the speaker
	rowSeveral          // the paths are in fib.more
)

// storedPath is one path of a prefix; the peer, which is among the attributes, and id are its key (RFC 7911).
type storedPath struct {
	attributes uint32 // in fib.attributes
	id         uint32
	stale      bool
}

// fibPath is the data that many paths share.
type fibPath struct {
	peer      netip.Addr
	nextHop   netip.Addr
	localPref uint32
	clusters  string // CLUSTER_LIST (RFC 4456), four bytes each
}

// pathAttributes is a fibPath and the set of paths with this one alone. It never changes: readers of routes may keep
// it.
type pathAttributes struct {
	fibPath
	paths [1]locrib.Path
}

// New makes an empty table.
func New() *Table {
	return &Table{changed: make(chan struct{}, 1), rows: prefixtable.New[fibRow](), more: map[uint32][]storedPath{},
		changesBy: map[netip.Addr]uint64{}}
}

// Changed receives after something changed that Take has not handed out yet, and after SweepStale.
func (f *Table) Changed() <-chan struct{} { return f.changed }

// LearnedInside reports whether a learned route lies in one of the prefixes.
func (f *Table) LearnedInside(prefixes []netip.Prefix) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := range f.rows.All() {
		learned := f.rows.Prefix(n)
		for _, p := range prefixes {
			if p.Bits() <= learned.Bits() && p.Contains(learned.Addr()) {
				return true
			}
		}
	}
	return false
}

// Knows reports whether there is a learned route for a prefix.
func (f *Table) Knows(prefix netip.Prefix) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.rows.Find(prefix)
	return n != 0 && f.rows.Row(n).hasPaths()
}

func (f *Table) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Update applies the changes of best paths that one callback of GoBGP has.
func (f *Table) Update(paths []*apiutil.Path) {
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
			f.add(prefix, storedPath{attributes: f.number(learnedPath(p)), id: p.RemoteID})
		}
	}
	if len(f.dirty) > 0 {
		f.signal()
	}
	f.forgetAttributes()
}

// ChangesByOthers counts the changes of paths so far that were not this peer's doing.
func (f *Table) ChangesByOthers(peer netip.Addr) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changes - f.changesBy[peer]
}

func learnedPath(p *apiutil.Path) fibPath {
	l := fibPath{peer: p.PeerAddress, localPref: bgp.DefaultLocalPref}
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

// number returns that of the attributes of a path.
func (f *Table) number(p fibPath) uint32 {
	if f.last.number == 0 || f.last.fibPath != p {
		f.last.fibPath = p
		f.last.number = f.attributes.Number(p, func() *pathAttributes {
			return &pathAttributes{fibPath: p, paths: [1]locrib.Path{{NextHop: p.nextHop, Peer: p.peer}}}
		})
	}
	return f.last.number
}

// forgetAttributes forgets the attributes that no path has any more, if they may be many.
func (f *Table) forgetAttributes() {
	if !f.attributes.Crowded() {
		return
	}
	f.last.number = 0
	f.attributes.Sweep(func(yield func(uint32) bool) {
		for n := range f.rows.All() {
			for _, p := range f.paths(n) {
				if !yield(p.attributes) {
					return
				}
			}
		}
	})
}

func (f *Table) path(p storedPath) *pathAttributes { return *f.attributes.At(p.attributes) }

func (r *fibRow) hasPaths() bool { return r.attributes != 0 || r.flags&rowSeveral != 0 }

// paths returns those of a row. The slice is valid until the next call.
func (f *Table) paths(n uint32) []storedPath {
	r := f.rows.Row(n)
	f.scratch = f.scratch[:0]
	switch {
	case r.flags&rowSeveral != 0:
		f.scratch = append(f.scratch, f.more[n]...)
	case r.attributes != 0:
		f.scratch = append(f.scratch, storedPath{r.attributes, r.id, r.flags&rowStale != 0})
	}
	return f.scratch
}

// setPaths replaces those of a row.
func (f *Table) setPaths(n uint32, list []storedPath) {
	r := f.rows.Row(n)
	if r.flags&rowSeveral != 0 {
		delete(f.more, n)
	}
	r.attributes, r.id, r.flags = 0, 0, r.flags&rowDirty
	switch len(list) {
	case 0:
	case 1:
		r.attributes, r.id = list[0].attributes, list[0].id
		if list[0].stale {
			r.flags |= rowStale
		}
	default:
		r.flags |= rowSeveral
		f.more[n] = slices.Clone(list)
	}
}

func (f *Table) add(prefix netip.Prefix, p storedPath) {
	n := f.rows.Put(prefix)
	peer := f.path(p).peer
	before := f.paths(n)
	// Stale paths of the same peer are replaced whatever their identifier was.
	list := slices.DeleteFunc(before, func(o storedPath) bool {
		return o.stale && o.id != p.id && f.path(o).peer == peer
	})
	i := slices.IndexFunc(list, func(o storedPath) bool { return o.id == p.id && f.path(o).peer == peer })
	switch {
	case i < 0:
		list = append(list, p)
	case list[i] == p && len(list) == len(before):
		return
	default:
		list[i] = p
	}
	f.setPaths(n, list)
	f.touch(n)
}

func (f *Table) remove(prefix netip.Prefix, peer netip.Addr, id uint32) {
	n := f.rows.Find(prefix)
	if n == 0 {
		return
	}
	list := f.paths(n)
	i := slices.IndexFunc(list, func(o storedPath) bool { return o.id == id && f.path(o).peer == peer })
	if i < 0 {
		return
	}
	f.setPaths(n, slices.Delete(list, i, i+1))
	f.touch(n)
}

func (f *Table) touch(n uint32) {
	if r := f.rows.Row(n); r.flags&rowDirty == 0 {
		r.flags |= rowDirty
		f.dirty = append(f.dirty, n)
	}
}

// Take returns up to limit changed prefixes (0: all), in the order of their changes, each with its complete current set
// of paths; no paths: the prefix is gone. It returns nil if nothing changed. If more are left, Changed fires again. The
// slice is valid until the next Take, the paths for good.
func (f *Table) Take(limit int) []locrib.Route {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := len(f.dirty)
	if count == 0 {
		return nil
	}
	if limit > 0 && limit < count {
		count = limit
	}
	f.taken = slices.Grow(f.taken[:0], count)
	for _, n := range f.dirty[:count] {
		r := f.rows.Row(n)
		r.flags &^= rowDirty
		f.taken = append(f.taken, f.route(n))
		if !r.hasPaths() {
			f.rows.Remove(n)
		}
	}
	if count == len(f.dirty) {
		f.dirty = f.dirty[:0]
		if cap(f.dirty) > 4096 {
			f.dirty = nil
		}
	} else {
		f.dirty = f.dirty[count:]
		f.signal()
	}
	return f.taken
}

// route turns the paths of a prefix into a route; of several groups of paths the one with the highest preference
// counts.
func (f *Table) route(n uint32) locrib.Route {
	r := locrib.Route{Prefix: f.rows.Prefix(n)}
	best := uint32(0)
	usable := f.usable[:0]
	for _, stored := range f.paths(n) {
		p := f.path(stored)
		if why, _ := f.refuse(r.Prefix, p.fibPath); why != "" {
			continue
		}
		usable = append(usable, stored)
		best = max(best, p.localPref)
	}
	f.usable = usable
	switch len(usable) {
	case 0:
		return r
	case 1:
		r.Paths = f.path(usable[0]).paths[:]
	default:
		r.Paths = f.equalPaths(usable, best)
	}
	if best < bgp.MaxPriority {
		r.Metric = bgp.MaxPriority - best
	}
	return r
}

// equalPaths returns the paths of a preference, sorted.
func (f *Table) equalPaths(usable []storedPath, localPref uint32) []locrib.Path {
	list := make([]locrib.Path, 0, len(usable))
	for _, stored := range usable {
		if p := f.path(stored); p.localPref == localPref {
			list = append(list, p.paths[0])
		}
	}
	slices.SortFunc(list, comparePaths)
	return slices.Compact(list) // one peer may send one next hop twice (RFC 7911)
}

func comparePaths(a, b locrib.Path) int {
	return cmp.Or(a.NextHop.Compare(b.NextHop), a.Peer.Compare(b.Peer))
}

// MarkStale keeps all paths until sweepStale, unless they are announced again.
func (f *Table) MarkStale() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := range f.rows.All() {
		list := f.paths(n)
		for i := range list {
			list[i].stale = true
		}
		f.setPaths(n, list)
	}
}

// SweepStale removes the paths not announced again since markStale, and wakes the reader in any case.
func (f *Table) SweepStale() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := range f.rows.All() {
		all := f.paths(n)
		list := slices.DeleteFunc(all, func(p storedPath) bool { return p.stale })
		if len(list) != len(all) {
			f.setPaths(n, list)
			f.touch(n)
		}
	}
	f.signal()
}

// Snapshot returns all prefixes with usable paths, in no order, and leaves Take alone.
func (f *Table) Snapshot() []locrib.Route {
	f.mu.Lock()
	defer f.mu.Unlock()
	routes := make([]locrib.Route, 0, f.rows.Len())
	for n := range f.rows.All() {
		if r := f.route(n); len(r.Paths) > 0 {
			routes = append(routes, r)
		}
	}
	return routes
}
