package fib

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/ownership"
)

// Configure takes over the parts of d about learned routes: prefixes that others may not announce, prefixes announced
// for others alone, and the facts about peers. Only routes that a difference affects are evaluated
// again.
func (f *Table) Configure(d bgp.Desired) {
	f.setOwn(ownOf(d))
	f.setServices(sharedPrefixes(d.Originated), d.NoInstall)
	f.setPeers(d.Sessions)
}

// setOwn sets the prefixes that must not be learned from others. Only affected routes are evaluated again.
func (f *Table) setOwn(mine ownership.Set) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var exact, blocks []netip.Prefix
	differ(f.mine.Originated, mine.Originated, func(p netip.Prefix) { exact = append(exact, p) })
	differ(f.mine.Blocks.All(), mine.Blocks.All(), func(p netip.Prefix) { blocks = append(blocks, p) })
	addresses := false
	differ(f.mine.Addresses, mine.Addresses, func(netip.Addr) { addresses = true })
	f.mine = mine
	for _, p := range exact {
		if n := f.rows.Find(p); n != 0 {
			f.touch(n)
		}
	}
	if addresses || len(blocks) > 0 {
		inside := func(p netip.Prefix) bool {
			return slices.ContainsFunc(blocks, func(b netip.Prefix) bool {
				return b.Bits() <= p.Bits() &&
					b.Contains(p.Addr())
			})
		}
		through := func(p storedPath) bool { return inside(hostPrefix(f.path(p).nextHop)) }
		for n := range f.rows.All() {
			if addresses || inside(f.rows.Prefix(n)) || slices.ContainsFunc(f.paths(n), through) {
				f.touch(n)
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

// ownOf returns the prefixes that others may not announce: those that this node originates, except services and
// routes of its kernel; its blocks, also those that are being released; and its addresses.
func ownOf(d bgp.Desired) ownership.Set {
	originated := make(map[netip.Prefix]bool, len(d.Originated))
	var blocks []netip.Prefix
	for _, o := range d.Originated {
		if !o.Shared && !o.Kernel {
			originated[o.Prefix.Masked()] = true
		}
		if o.Blackhole {
			blocks = append(blocks, o.Prefix)
		}
	}
	return ownership.Set{Addresses: ownAddresses(d), Blocks: ownership.NewBlocks(blocks...), Originated: originated}
}

func sharedPrefixes(origins []bgp.Origin) map[netip.Prefix]bool {
	shared := map[netip.Prefix]bool{}
	for _, o := range origins {
		if o.Shared {
			shared[o.Prefix.Masked()] = true
		}
	}
	return shared
}

// ownAddresses returns the addresses of this node, and those that sessions and the listener name.
func ownAddresses(d bgp.Desired) ownership.Addresses {
	own := ownership.Addresses{}
	add := func(a netip.Addr) {
		if a.IsValid() && !a.IsUnspecified() {
			own[a.Unmap().WithZone("")] = 1
		}
	}
	for _, s := range d.Sessions {
		add(s.Source)
	}
	for _, a := range slices.Concat(d.Global.ListenAddresses, d.Addresses) {
		add(a)
	}
	return own
}

// OwnPrefixes returns the prefixes that only this node may announce.
func (f *Table) OwnPrefixes() []netip.Prefix {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]netip.Prefix, 0, len(f.mine.Originated))
	for p := range f.mine.Originated {
		list = append(list, p)
	}
	return list
}

// Size is the number of prefixes, our own included.
func (f *Table) Size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows.Len() + len(f.mine.Originated)
}
