package route

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/ownership"
)

// Configure sets the datastore's settings. Only decisions that depend on a difference are made again.
func (t *Target) Configure(c Config) {
	old := t.rules.config
	t.rules.config = c
	clear(t.decided)
	t.configureBlocks(c.Blocks)
	if !slices.Equal(old.Blocks, c.Blocks) {
		t.decideWorkloadsAgain() // see reserved
	}
	t.configureEndpoints(old.Endpoints, c.Endpoints)
	if old.Node4 != c.Node4 || old.Node6 != c.Node6 {
		t.changedUnderlay = true
		t.decideLearnedAgain(func(netip.Prefix, uint32) bool { return true })
		t.decidePlacedAgain(func(netip.Prefix, string) bool { return true })
	}
	if !slices.Equal(old.Pools, c.Pools) {
		t.configurePools(old.Pools, c.Pools)
	}
	if old.WorkloadProtocol != c.WorkloadProtocol {
		t.decidePlacedAgain(func(netip.Prefix, string) bool { return true })
	}
	if old.ElevatedMetric4 != c.ElevatedMetric4 || old.ElevatedMetric6 != c.ElevatedMetric6 ||
		old.WorkloadMetric4 != c.WorkloadMetric4 || old.WorkloadMetric6 != c.WorkloadMetric6 ||
		old.WorkloadSource4 != c.WorkloadSource4 || old.WorkloadSource6 != c.WorkloadSource6 ||
		old.WorkloadProtocol != c.WorkloadProtocol || old.LeaveWorkloads != c.LeaveWorkloads {
		t.decideWorkloadsAgain()
	}
	if old.RemoveExternal != c.RemoveExternal || old.LeaveWorkloads != c.LeaveWorkloads {
		t.disown()
		t.adoptExternal()
	}
	if !slices.Equal(old.Tables, c.Tables) {
		t.configureTables(old.Tables)
	}
	if !slices.Equal(old.WorkloadPrefixes, c.WorkloadPrefixes) ||
		!slices.Equal(old.ForeignPrefixes, c.ForeignPrefixes) {
		// The routes to workloads that are none any more stay ours, until they are removed.
		for _, p := range old.WorkloadPrefixes {
			if !slices.Contains(t.rules.formerPrefixes, p) {
				t.rules.formerPrefixes = append(t.rules.formerPrefixes, p)
			}
		}
		t.Resync()
	}
}

// configureTables takes over another set of tables: the contents they may have, and the routes in those before.
func (t *Target) configureTables(old []kernel.Table) {
	for _, table := range old {
		if !slices.Contains(t.rules.formerTables, table) {
			t.rules.formerTables = append(t.rules.formerTables, table)
		}
	}
	for n := range t.extras {
		if t.table.row(n).table != kernel.MainTable {
			t.decideRowAgain(n)
		}
	}
	t.Resync()
}

// configurePools decides again about the routes in pools that differ. Which routes are ours to adopt depends on pools,
// too.
func (t *Target) configurePools(old, pools ippool.Table) {
	var changed ippool.Table
	for _, lists := range [][2]ippool.Table{{old, pools}, {pools, old}} {
		for _, p := range lists[0] {
			if !slices.Contains(lists[1], p) {
				changed = append(changed, p)
			}
		}
	}
	t.turn(old, pools)
	t.decideWorkloadsAgain() // their addresses may be reserved: see reserved
	inChanged := func(p netip.Prefix) bool {
		return slices.ContainsFunc(changed, func(pool ippool.Pool) bool { return pool.CIDR.Overlaps(p) })
	}
	t.decideLearnedAgain(func(p netip.Prefix, _ uint32) bool { return inChanged(p) })
	t.decidePlacedAgain(func(p netip.Prefix, _ string) bool { return inChanged(p) })
	t.Resync()
}

func (t *Target) configureBlocks(blocks []netip.Prefix) {
	old, fresh := t.rules.ownership.Blocks, ownership.NewBlocks(blocks...)
	t.rules.ownership.Blocks = fresh
	for b := range fresh.All() {
		if !old.All()[b] {
			t.table.row(t.table.rows.putPlace(inMain(b))).flags |= rowBlock
			t.blockChanged(b)
		}
	}
	for b := range old.All() {
		if !fresh.All()[b] {
			t.decideAgain(b)
			t.table.row(t.table.rows.findPlace(inMain(b))).flags &^= rowBlock
			t.blockChanged(b)
		}
	}
}

// blockChanged decides again about the block and about others' announcements inside of it.
func (t *Target) blockChanged(b netip.Prefix) {
	t.decideAgain(b)
	inside := func(p netip.Prefix) bool { return b.Overlaps(p) && p.Bits() >= b.Bits() }
	t.decideLearnedAgain(func(p netip.Prefix, _ uint32) bool { return inside(p) })
	t.decidePlacedAgain(func(p netip.Prefix, _ string) bool { return inside(p) })
}

func (t *Target) configureEndpoints(old, endpoints []Endpoint) {
	keep, had := byName(endpoints), byName(old)
	for _, e := range old {
		if k := keep[e.Name]; k == nil || !k.equal(&e) {
			t.dropEndpoint(e)
		}
	}
	for _, e := range endpoints {
		if k := had[e.Name]; k == nil || !k.equal(&e) {
			t.addEndpoint(e)
		}
	}
}

func byName(list []Endpoint) map[string]*Endpoint {
	m := make(map[string]*Endpoint, len(list))
	for i := range list {
		m[list[i].Name] = &list[i]
	}
	return m
}

func (e *Endpoint) equal(o *Endpoint) bool {
	return e.Name == o.Name && e.Interface == o.Interface && slices.Equal(e.Refusals, o.Refusals) &&
		slices.Equal(e.Addresses, o.Addresses)
}

func (t *Target) addEndpoint(e Endpoint) {
	for _, p := range e.Addresses {
		s := t.extrasOf(t.table.rows.putPlace(inMain(p)))
		s.endpoints = append(s.endpoints, &e)
		slices.SortFunc(s.endpoints, func(a, b *Endpoint) int { return strings.Compare(a.Name, b.Name) })
		if t.byLink[e.Interface] == nil {
			t.byLink[e.Interface] = map[netip.Prefix]bool{}
		}
		t.byLink[e.Interface][p] = true
		t.workloadChanged(p)
		t.claim(p)
	}
}

// workloadChanged decides again about the address, and about routes through it.
func (t *Target) workloadChanged(p netip.Prefix) {
	t.decideAgain(p)
	t.changedLinks = t.changedLinks || t.rules.hops[p.Addr()] != nil
}

// claim takes over the routes that a CNI plugin made for a workload's address.
func (t *Target) claim(p netip.Prefix) {
	for _, r := range slices.Clone(t.rules.rib.routes[p]) {
		if t.under.owns(r) {
			t.rules.rib.remove(r)
			t.table.Observe(&r)
		}
	}
}

func (t *Target) dropEndpoint(e Endpoint) {
	for _, p := range e.Addresses {
		n := t.table.rows.findPlace(inMain(p))
		if n == 0 || !t.table.row(n).is(rowExtras) {
			continue
		}
		s := t.extrasOf(n)
		s.endpoints = slices.DeleteFunc(s.endpoints, func(o *Endpoint) bool { return o.Name == e.Name })
		if !slices.ContainsFunc(s.endpoints, func(o *Endpoint) bool { return o.Interface == e.Interface }) {
			delete(t.byLink[e.Interface], p)
			if len(t.byLink[e.Interface]) == 0 {
				delete(t.byLink, e.Interface)
			}
		}
		t.workloadChanged(p)
	}
}
