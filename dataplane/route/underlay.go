package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/ownership"
)

// underlay has the host's routes other than our own: next hops are resolved with it.
type underlay struct {
	links  map[int]kernel.Link
	byName map[string]int
	own    ownership.Addresses
	rib    *rib
}

func newUnderlay() *underlay {
	return &underlay{links: map[int]kernel.Link{}, byName: map[string]int{}, own: ownership.Addresses{}, rib: newRIB()}
}

func (u *underlay) putLink(l kernel.Link) {
	u.dropLink(l.Index)
	u.links[l.Index] = l
	u.byName[l.Name] = l.Index
}

func (u *underlay) dropLink(index int) {
	if old, ok := u.links[index]; ok && u.byName[old.Name] == index {
		delete(u.byName, old.Name)
	}
	delete(u.links, index)
}

func (u *underlay) link(name string) (kernel.Link, bool) {
	l, ok := u.links[u.byName[name]]
	return l, ok
}

func (u *underlay) linkName(index int) string {
	if l, ok := u.links[index]; ok {
		return l.Name
	}
	return fmt.Sprintf("#%d", index)
}

func (u *underlay) usable(r kernel.Route) bool {
	return r.Type != kernel.Unicast || slices.ContainsFunc(r.NextHops, u.alive)
}

func (u *underlay) alive(h kernel.NextHop) bool { return u.links[h.Link].Up }

// resolve finds the way to a BGP next hop: on the link itself, or through the gateway that leads there. It ignores
// learned routes, so that no route can depend on itself. reason is why there is no way.
func (u *underlay) resolve(nh netip.Addr) (hops []kernel.NextHop, reason string) {
	switch {
	case !nh.IsValid() || nh.IsUnspecified() || nh.IsLoopback() || nh.IsMulticast():
		return nil, fmt.Sprintf("next hop %s is no address of a router", nh)
	case u.own.Has(nh):
		return nil, fmt.Sprintf("next hop %s is this node itself", nh)
	case nh.Is6() && nh.IsLinkLocalUnicast():
		return u.resolveLinkLocal(nh)
	}
	r, ok := u.rib.lookup(nh, u.usable)
	if !ok {
		return nil, fmt.Sprintf("no route to next hop %s", nh)
	}
	if r.Type != kernel.Unicast {
		return nil, fmt.Sprintf("next hop %s is behind the route %q", nh, r.Text(u.linkName))
	}
	for _, h := range r.NextHops {
		if !u.alive(h) {
			continue
		}
		if !h.Gateway.IsValid() {
			h.Gateway = nh
		}
		if !slices.Contains(hops, h) {
			hops = append(hops, h)
		}
	}
	return hops, ""
}

func (u *underlay) resolveLinkLocal(nh netip.Addr) ([]kernel.NextHop, string) {
	if nh.Zone() == "" {
		return nil, fmt.Sprintf("next hop %s is link-local, on an unknown interface", nh)
	}
	l, ok := u.link(nh.Zone())
	if !ok || !l.Up {
		return nil, fmt.Sprintf("next hop %s: interface %s is down or absent", nh.WithZone(""), nh.Zone())
	}
	return []kernel.NextHop{{Gateway: nh.WithZone(""), Link: l.Index}}, ""
}
