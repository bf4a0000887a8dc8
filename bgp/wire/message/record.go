package message

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Sent is an UPDATE by which a peer has some routes from us.
type Sent struct {
	Routes []Route
	// Message is the UPDATE with exactly these routes. Paths: they have identifiers (RFC 7911).
	Message []byte
	Paths   bool
	At      time.Time
}

// Record has the routes that a peer has from us, with their attributes as sent. Withdrawals of others are not sent: the
// speaker also withdraws routes that an export policy has kept back.
type Record struct {
	V6, Paths bool
	Off       bool // nothing is recorded, and every withdrawal is sent

	mu      sync.Mutex
	routes  map[route]*announcement
	scratch []byte
}

// announcement has the attributes of an UPDATE, without MP_UNREACH_NLRI and with an MP_REACH_NLRI without routes.
type announcement struct {
	attrs   []byte
	nextHop []byte // of MP_REACH_NLRI
	at      time.Time
}

// Check returns an UPDATE as it is to be sent, nil if nothing is left of it. The result is valid until the next call.
func (r *Record) Check(m []byte) []byte {
	u, ok := splitUpdate(m)
	if r.Off || !ok {
		return m
	}
	var reach, unreach multiprotocol
	hasUnreach := false
	kept := make([]byte, 0, len(u.attrs))
	if !attributes(u.attrs, func(a attribute) {
		switch a.kind {
		case bgp.BGP_ATTR_TYPE_MP_REACH_NLRI:
			reach, _ = readReach(a.value)
		case bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI:
			unreach, hasUnreach = readUnreach(a.value)
		default:
			kept = append(kept, a.whole...)
		}
	}) {
		return m
	}
	if len(u.withdrawn)+len(u.nlri)+len(unreach.nlri)+len(reach.nlri) == 0 {
		return m // an End-of-RIB
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	removed := false
	withdraw := func(list []byte) (rest []byte) {
		routes(list, r.V6, r.Paths, func(x route, encoded []byte) {
			if r.routes[x] == nil {
				removed = true
				return
			}
			delete(r.routes, x)
			rest = append(rest, encoded...)
		})
		return rest
	}
	withdrawn, gone := withdraw(u.withdrawn), withdraw(unreach.nlri)
	r.announce(u.nlri, kept, nil)
	r.announce(reach.nlri, kept, reach.nextHop)
	if !removed {
		return m
	}
	if len(withdrawn)+len(gone)+len(u.nlri)+len(reach.nlri) == 0 {
		return nil
	}
	attrs := u.attrs
	if hasUnreach {
		attrs = withoutUnreach(u.attrs)
		if len(gone) > 0 {
			attrs = appendUnreach(attrs, r.V6, gone)
		}
	}
	r.scratch = appendUpdate(r.scratch[:0], update{withdrawn, attrs, u.nlri})
	return r.scratch
}

// Among returns the prefixes of which the peer has a route without identifier.
func (r *Record) Among(prefixes map[netip.Prefix]bool) (list []netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.Paths:
	case len(r.routes) < len(prefixes):
		for x := range r.routes {
			if p := x.prefix(r.V6); prefixes[p] {
				list = append(list, p)
			}
		}
	default:
		for p := range prefixes {
			if p.Addr().Is6() == r.V6 && r.routes[routeOf(p)] != nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// Withdraw returns a withdrawal of a route without identifier that was sent before a time, nil if there is none. late
// reports whether it was sent after that.
func (r *Record) Withdraw(prefix netip.Prefix, before time.Time) (m []byte, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := routeOf(prefix)
	a := r.routes[x]
	if r.Paths || a == nil {
		return nil, false
	}
	if !a.at.Before(before) {
		return nil, true
	}
	delete(r.routes, x)
	if r.V6 {
		return appendUpdate(nil, update{attrs: appendUnreach(nil, true, x.encoded())}), false
	}
	return appendUpdate(nil, update{withdrawn: x.encoded()}), false
}

func withoutUnreach(attrs []byte) (kept []byte) {
	attributes(attrs, func(a attribute) {
		if a.kind != bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI {
			kept = append(kept, a.whole...)
		}
	})
	return kept
}

func (r *Record) announce(list, attrs, nextHop []byte) {
	if len(list) == 0 {
		return
	}
	if r.routes == nil {
		r.routes = map[route]*announcement{}
	}
	a := &announcement{slices.Clone(attrs), slices.Clone(nextHop), time.Now()}
	routes(list, r.V6, r.Paths, func(x route, _ []byte) { r.routes[x] = a })
}

// List returns the announcements with the routes that are still theirs.
func (r *Record) List() []Sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	by := map[*announcement][]Route{}
	for x, a := range r.routes {
		by[a] = append(by[a], Route{x.prefix(r.V6), x.id})
	}
	all := make([]Sent, 0, len(by))
	for a, list := range by {
		slices.SortFunc(list, func(a, b Route) int { return a.Prefix.Compare(b.Prefix) })
		all = append(all, Sent{Routes: list, Message: a.message(), Paths: r.Paths, At: a.at})
	}
	return all
}

// message is an UPDATE with the attributes and without routes.
func (a *announcement) message() []byte {
	attrs := slices.Clone(a.attrs)
	if a.nextHop != nil {
		value := append([]byte{0, bgp.AFI_IP6, bgp.SAFI_UNICAST, byte(len(a.nextHop))}, a.nextHop...)
		value = append(value, 0)
		attrs = append(append(attrs, byte(bgp.BGP_ATTR_FLAG_OPTIONAL), byte(bgp.BGP_ATTR_TYPE_MP_REACH_NLRI),
			byte(len(value))), value...)
	}
	return appendUpdate(nil, update{attrs: attrs})
}
