package fib

import (
	"maps"
	"net/netip"
	"slices"
)

// services are the prefixes that are announced for the world outside and not for the kernels of nodes: addresses of
// services. Several nodes announce the same, and that is no fault.
type services struct {
	shared map[netip.Prefix]bool // exactly these, which this node announces itself
	ranges []netip.Prefix        // all inside these
}

func (o services) has(prefix netip.Prefix) bool {
	return o.shared[prefix] || slices.ContainsFunc(o.ranges, func(r netip.Prefix) bool {
		return r.Bits() <= prefix.Bits() && r.Contains(prefix.Addr())
	})
}

// setServices sets the prefixes that are announced for others alone. All affected routes are evaluated again.
func (f *Table) setServices(shared map[netip.Prefix]bool, ranges []netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.services
	if maps.Equal(before.shared, shared) && slices.Equal(before.ranges, ranges) {
		return
	}
	f.services = services{shared: shared, ranges: slices.Clone(ranges)}
	for n := range f.rows.All() {
		if p := f.rows.Prefix(n); before.has(p) != f.services.has(p) {
			f.touch(n)
		}
	}
	if len(f.dirty) > 0 {
		f.signal()
	}
}
