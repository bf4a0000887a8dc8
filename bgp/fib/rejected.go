package speaker

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
)

// RejectedRoute is a path that other speakers announced and that this node does not use.
type RejectedRoute struct {
	Prefix netip.Prefix
	Path   bgp.Path
	Class  RejectClass
	Reason string
}

// RejectClass groups the reasons for which paths are not used: a bgp.RefusalClass, or one of those below.
type RejectClass string

const (
	RejectOwn     RejectClass = "own_prefix" // it is this node's own prefix or address, or part of its block
	RejectNextHop RejectClass = "next_hop"   // the next hop cannot be used
	RejectService RejectClass = "service"    // announced for others; Rejected does not tell of it
)

// RejectClasses lists the classes that Rejected tells of.
func RejectClasses() []RejectClass {
	list := []RejectClass{RejectOwn, RejectNextHop}
	for _, c := range bgp.RefusalClasses() {
		list = append(list, RejectClass(c))
	}
	return list
}

// rejects remembers what Rejected has found.
type rejects struct {
	budget budget
	list   []RejectedRoute // guarded by statusTable.mu
}

// Rejected returns the announced paths that this node refuses to use, sorted by prefix, with the reason. It looks at
// all routes, so that with very many of them it may give what it found a short time ago.
func (s *Speaker) Rejected() []RejectedRoute {
	s.status.spend(&s.status.rejects.budget, 0, func() {
		list := slices.Concat(s.fib.rejected(), s.conflicting(), s.refusedRoutes())
		slices.SortFunc(list, func(a, b RejectedRoute) int {
			return cmp.Or(a.Prefix.Compare(b.Prefix), comparePaths(a.Path, b.Path))
		})
		s.status.mu.Lock()
		s.status.rejects.list = slices.Compact(list)
		s.status.mu.Unlock()
	})
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	return s.status.rejects.list
}

// refuse says why a path is not used, or nothing. That may be a fault or, for services, by design.
func (f *fib) refuse(prefix netip.Prefix, p fibPath) (RejectClass, string) {
	nh := p.nextHop
	if f.outward.has(prefix) {
		return RejectService, "the prefix is an address of services: it is announced for others, while this host " +
			"reaches services by itself"
	}
	if why := f.mine.Refuse(prefix); why != "" {
		return RejectOwn, why
	}
	switch {
	case f.mine.Addresses.Has(nh):
		return RejectNextHop, "the next hop is this node: the route would loop"
	case !nh.IsValid() || nh.IsUnspecified() || nh.IsMulticast() || nh.IsLoopback():
		return RejectNextHop, "the next hop " + addrText(nh) + " is not the address of another host"
	case f.reflectedBack(p):
		return RejectNextHop, "the route has come back: its CLUSTER_LIST names our own cluster " +
			f.reflect[p.peer.Unmap()].String() + " (RFC 4456 section 8)"
	case prefix.Addr().Is4() && !nh.Unmap().Is4():
		return RejectNextHop, "the next hop " + nh.String() + " of the IPv4 prefix is an IPv6 address (RFC 8950), " +
			"which is not supported"
	case nh.IsLinkLocalUnicast() && nh.Is6() && nh.Zone() == "":
		return RejectNextHop, "the next hop " + nh.String() + " is link-local and names no interface; the peer " +
			"should send a global one"
	}
	return "", ""
}

// rejected is in no order.
func (f *fib) rejected() []RejectedRoute {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []RejectedRoute
	for n := range f.rows.All() {
		prefix := f.rows.Prefix(n)
		for _, stored := range f.paths(n) {
			p := f.path(stored).fibPath
			if class, reason := f.refuse(prefix, p); class != "" && class != RejectService {
				list = append(list, RejectedRoute{Prefix: prefix, Path: bgp.Path{NextHop: p.nextHop, Peer: p.peer},
					Class: class, Reason: reason})
			}
		}
	}
	return list
}
