package kerneltest

import (
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
)

// The methods of this file simulate other programs on the host; watchers are notified.

// PutLink adds or changes an interface.
func (f *Kernel) PutLink(l kernel.Link) {
	f.mu.Lock()
	old, existed := f.links[l.Index]
	f.links[l.Index] = l
	for name, value := range ofInterface(l.Name) {
		if _, ok := f.sysctls[name]; !ok {
			f.sysctls[name] = value
		}
	}
	if existed && old.Up && !l.Up {
		f.flush(l.Index)
		f.flushNeighbours(l.Index)
	}
	f.mu.Unlock()
	f.notify(kernel.Event{Type: kernel.EventLink, Link: l})
}

// ofInterface are variables that come and go with an interface, with the kernel's defaults.
func ofInterface(name string) map[string]string {
	conf := "net/ipv4/conf/" + name + "/"
	return map[string]string{conf + "forwarding": "0", conf + "proxy_arp": "0", conf + "rp_filter": "0",
		conf + "route_localnet": "0", "net/ipv4/neigh/" + name + "/proxy_delay": "80",
		"net/ipv6/conf/" + name + "/accept_ra": "1"}
}

// DropLink removes an interface with its addresses and routes. As in the kernel, the removal of the routes has no
// event.
func (f *Kernel) DropLink(index int) {
	f.mu.Lock()
	l := f.links[index]
	f.dropLink(index)
	f.mu.Unlock()
	f.notify(kernel.Event{Type: kernel.EventLinkGone, Link: l})
}

// dropLink removes an interface with all that is on it. The lock is held.
func (f *Kernel) dropLink(index int) {
	for name := range ofInterface(f.links[index].Name) {
		delete(f.sysctls, name)
	}
	delete(f.links, index)
	delete(f.tunnels, index)
	f.addresses = slices.DeleteFunc(f.addresses, func(a kernel.Address) bool { return a.Link == index })
	f.flush(index)
	f.flushNeighbours(index)
	for k := range f.fdb {
		if k.link == index {
			delete(f.fdb, k)
		}
	}
}

// flushNeighbours removes the neighbours of an interface, as the kernel does when its hardware address changes.
func (f *Kernel) flushNeighbours(link int) {
	for k := range f.neighbours {
		if k.link == link {
			delete(f.neighbours, k)
		}
	}
}

func (f *Kernel) flush(link int) {
	for k, r := range f.routes {
		if slices.ContainsFunc(r.NextHops, func(h kernel.NextHop) bool { return h.Link == link }) {
			delete(f.routes, k)
		}
	}
}

// flush4 removes the IPv4 routes of an interface that has no IPv4 address any more. In the kernel, too, this has no
// event.
func (f *Kernel) flush4(link int) {
	through := func(h kernel.NextHop) bool { return h.Link == link }
	for k, r := range f.routes {
		if k.Dst.Addr().Is4() && slices.ContainsFunc(r.NextHops, through) {
			delete(f.routes, k)
		}
	}
}

// PutAddress adds an address to an interface, without the route to its subnet.
func (f *Kernel) PutAddress(a kernel.Address) {
	f.mu.Lock()
	f.addresses = append(f.addresses, a)
	f.mu.Unlock()
	f.notify(kernel.Event{Type: kernel.EventAddress, Address: a})
}

// PutRoute adds or replaces a route.
func (f *Kernel) PutRoute(r kernel.Route) {
	f.mu.Lock()
	f.routes[r.Key()] = r
	f.mu.Unlock()
	f.notify(kernel.Event{Type: kernel.EventRoute, Route: r})
}

// DropRoute removes a route.
func (f *Kernel) DropRoute(k kernel.RouteKey) {
	f.mu.Lock()
	r, ok := f.routes[k]
	delete(f.routes, k)
	f.mu.Unlock()
	if ok {
		f.notify(kernel.Event{Type: kernel.EventRouteGone, Route: r})
	}
}

// PutSysctl sets a variable. SetSysctl accepts a missing variable; Sysctl returns an error for one.
func (f *Kernel) PutSysctl(name, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sysctls[name] = value
}

// Route returns the route with the key.
func (f *Kernel) Route(k kernel.RouteKey) (kernel.Route, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.routes[k]
	return r, ok
}
