package route

import (
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
)

// row is the data of one prefix in one of the kernel's tables: the learned route, and one route in its desired and
// actual state. There may be a million rows: they have no pointers, and numbers in place of shared values.
//
// Further routes of the prefix, with another metric or in another table, have rows of their own: see rows.
type row struct {
	learned    uint32 // in Target.learnt; 0: nothing
	want, have uint32 // in table.shapes; 0: no route is wanted, or there
	metric     uint32 // of that route
	table      kernel.Table
	next       uint32 // the next row of the same prefix, 0 for none
	flags      rowFlags
	since      wide // nanoseconds since 1970; 0 until the next flush
	revision   wide
}

type rowFlags uint32

const (
	rowFirst     rowFlags = 1 << iota // of its prefix
	rowRoute                          // it has a route: desired, present, or to be removed
	rowAdopted                        // the route existed before it was desired
	rowDrifted                        // others made the route differ
	rowDirty                          // the next flush checks the route
	rowSeen                           // in the comparison that is under way
	rowUndecided                      // the next flush decides about the prefix
	rowBlock                          // the prefix is a block of this node
	rowExtras                         // there are extras
)

// wide is a number of 64 bits that does not widen a row to a multiple of eight bytes.
type wide [2]uint32

func (w wide) value() uint64 { return uint64(w[0])<<32 | uint64(w[1]) }

func (w *wide) set(v uint64) { *w = wide{uint32(v >> 32), uint32(v)} }

func (r *row) is(f rowFlags) bool { return r.flags&f != 0 }

// desired reports whether the prefix is desired, or was until the last decision.
func (r *row) desired() bool { return r.learned != 0 || r.is(rowBlock|rowExtras|rowUndecided) }

func (r *row) changedAt(at time.Time) { r.since.set(uint64(at.UnixNano())) }

// learnt is the learned data that many prefixes share.
type learnt struct {
	hops   []netip.Addr
	metric uint32
}

type learntKey struct {
	hop    netip.Addr
	metric uint32
	others string
}

func (l *learnt) key() learntKey {
	k := learntKey{l.hops[0], l.metric, ""}
	if len(l.hops) > 1 {
		var b []byte
		for _, nh := range l.hops[1:] {
			b = append(nh.AppendTo(b), ' ')
		}
		k.others = string(b)
	}
	return k
}
