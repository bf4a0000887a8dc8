package route

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
)

// place is a prefix in a table.
type place struct {
	dst   netip.Prefix
	table kernel.Table
}

// inMain is a prefix in main.
func inMain(dst netip.Prefix) place { return place{dst: dst} }

func placeOf(k kernel.RouteKey) place { return place{k.Dst, k.Table} }

func placeOfStatic(s Static) place { return place{s.Prefix, s.Table} }

func (p place) compare(o place) int {
	return cmp.Or(p.dst.Compare(o.dst), cmp.Compare(p.table, o.table))
}

// tables returns the tables whose routes are read: the configured ones, and earlier ones as long as the process runs,
// so that routes which are left there are removed.
func (r *rules) tables() []kernel.Table {
	list := []kernel.Table{kernel.MainTable}
	for _, table := range slices.Concat(r.config.Tables, r.formerTables) {
		if !slices.Contains(list, table) {
			list = append(list, table)
		}
	}
	return list
}

// ownTable reports whether routes of this node may be put into a table.
func (r *rules) ownTable(table kernel.Table) bool {
	return table == kernel.MainTable || slices.Contains(r.config.Tables, table)
}

// reads reports whether a table is one of tables.
func (r *rules) reads(table kernel.Table) bool {
	return r.ownTable(table) || slices.Contains(r.formerTables, table)
}
