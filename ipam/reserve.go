package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// addrRange is a range of addresses, both ends included.
type addrRange struct{ first, last netip.Addr }

// reservations are disjoint ranges in ascending order whose addresses are assigned only on request for the address.
type reservations []addrRange

// newReservations merges prefixes that overlap or touch, so that a block is wholly reserved exactly if one range covers
// it.
func newReservations(prefixes []netip.Prefix) reservations {
	var r reservations
	for _, p := range prefixes {
		r = append(r, addrRange{p.Masked().Addr(), last(p)})
	}
	slices.SortFunc(r, func(a, b addrRange) int { return a.first.Compare(b.first) })
	var merged reservations
	for _, x := range r {
		if n := len(merged); n > 0 && touches(merged[n-1], x) {
			if merged[n-1].last.Less(x.last) {
				merged[n-1].last = x.last
			}
			continue
		}
		merged = append(merged, x)
	}
	return merged
}

// touches reports whether b, which does not begin before a, continues a.
func touches(a, b addrRange) bool {
	if a.first.BitLen() != b.first.BitLen() {
		return false
	}
	next := a.last.Next()
	return !next.IsValid() || !next.Less(b.first)
}

// find returns the range that holds addr.
func (r reservations) find(addr netip.Addr) (addrRange, bool) {
	i := sort.Search(len(r), func(i int) bool { return addr.Less(r[i].first) }) - 1
	if i < 0 || r[i].last.Less(addr) {
		return addrRange{}, false
	}
	return r[i], true
}

// has reports whether addr is reserved.
func (r reservations) has(addr netip.Addr) bool {
	_, ok := r.find(addr)
	return ok
}

// covering returns the range that covers all of p.
func (r reservations) covering(p netip.Prefix) (addrRange, bool) {
	x, ok := r.find(p.Addr())
	return x, ok && !x.last.Less(last(p))
}

// readReservations reads the reservations for each operation, because they may change at any time. It logs and skips
// malformed entries.
func (a *Allocator) readReservations(ctx context.Context) (reservations, error) {
	objects, _, err := a.store.List(ctx, model.KindIPReservation, "")
	if err != nil {
		return nil, fmt.Errorf("read IP reservations: %w", err)
	}
	var prefixes []netip.Prefix
	for _, o := range objects {
		r, ok := o.Value.(*v3.IPReservation)
		if !ok || o.Err != nil {
			a.log.Warn("IP reservation is left out", zap.Stringer("key", o.Key), zap.Error(o.Err))
			continue
		}
		for _, s := range r.Spec.ReservedCIDRs {
			p, err := parseReserved(s)
			if err != nil {
				a.log.Warn("IP reservation is left out", zap.Stringer("key", o.Key), zap.Error(err))
				continue
			}
			prefixes = append(prefixes, p)
		}
	}
	return newReservations(prefixes), nil
}

// parseReserved parses an address or a CIDR.
func parseReserved(s string) (netip.Prefix, error) {
	s = strings.TrimSpace(s)
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}
