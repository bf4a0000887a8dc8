package fib

import (
	"cmp"
	"net/netip"

	"github.com/osrg/gobgp/v4/pkg/apiutil"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/locrib"
)

// Rejection is a path that other speakers announced and that this node does not use.
type Rejection struct {
	Prefix netip.Prefix
	Path   locrib.Path
	Class  RejectClass
	Reason string
}

// Compare sorts by prefix, next hop and peer.
func (r Rejection) Compare(o Rejection) int {
	return cmp.Or(r.Prefix.Compare(o.Prefix), comparePaths(r.Path, o.Path))
}

// RejectClass groups the reasons for which paths are not used: a bgp.RefusalClass, or one of those below.
type RejectClass string

const (
	RejectOwn     = RejectClass(bgp.RefusedOwnPrefix) // it is this node's own prefix or address, or part of its block
	RejectNextHop = RejectClass("next_hop")           // the next hop cannot be used
	RejectService = RejectClass("service")            // announced for others; not in the result of Rejected
)

// RejectClasses lists the classes that Rejected returns.
func RejectClasses() []RejectClass {
	list := []RejectClass{RejectNextHop}
	for _, c := range bgp.RefusalClasses() {
		list = append(list, RejectClass(c))
	}
	return list
}

// refuse returns why a path is not used, or nothing. That may be a fault or, for services, by design.
func (f *Table) refuse(prefix netip.Prefix, p fibPath) (RejectClass, string) {
	nh := p.nextHop
	if f.services.has(prefix) {
		return RejectService, "the prefix is an address of services: it is announced for others, while this host " +
			"reaches services by itself"
	}
	if why := f.mine.Refuse(prefix); why != "" {
		return RejectOwn, why
	}
	switch {
	case f.mine.Addresses.Has(nh):
		return RejectNextHop, "the next hop is this node: the route would loop"
	case !nh.IsValid():
		return RejectNextHop, "the path has no next hop"
	case nh.IsUnspecified() || nh.IsMulticast() || nh.IsLoopback():
		return RejectNextHop, "the next hop " + nh.String() + " is not the address of another host"
	case f.throughOurs(p):
		return RejectNextHop, "the next hop " + nh.String() + " is an address of this node's blocks, and the peer is " +
			"in another AS: it would direct traffic into a workload of this node"
	case f.reflectedBack(p):
		return RejectNextHop, "the route has come back: its CLUSTER_LIST names our own cluster " +
			f.peers[p.peer.Unmap()].cluster.String() + " (RFC 4456 section 8)"
	case prefix.Addr().Is4() && !nh.Unmap().Is4():
		return RejectNextHop, "the next hop " + nh.String() + " of the IPv4 prefix is an IPv6 address (RFC 8950), " +
			"which is not supported"
	case nh.IsLinkLocalUnicast() && nh.Is6() && nh.Zone() == "":
		return RejectNextHop, "the next hop " + nh.String() + " is link-local and names no interface; the peer " +
			"should send a global one"
	}
	return "", ""
}

// Rejected lists the paths that are not used although they came, in no order.
func (f *Table) Rejected() []Rejection {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []Rejection
	for n := range f.rows.All() {
		prefix := f.rows.Prefix(n)
		for _, stored := range f.paths(n) {
			p := f.path(stored).fibPath
			if class, reason := f.refuse(prefix, p); class != "" && class != RejectService {
				list = append(list, Rejection{Prefix: prefix, Path: locrib.Path{NextHop: p.nextHop, Peer: p.peer},
					Class: class, Reason: reason})
			}
		}
	}
	return list
}

// Conflict is the rejection of another speaker's path for a prefix that this node originates.
func (f *Table) Conflict(prefix netip.Prefix, path *apiutil.Path) Rejection {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := learnedPath(path)
	class, reason := f.refuse(prefix, p)
	return Rejection{Prefix: prefix, Path: locrib.Path{NextHop: p.nextHop, Peer: p.peer}, Class: class, Reason: reason}
}
