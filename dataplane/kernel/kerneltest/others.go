package kernel

import "slices"

// The methods of this file play everyone else on the host; watchers are told.

// PutLink adds or changes an interface.
func (f *Fake) PutLink(l Link) {
	f.mu.Lock()
	old, existed := f.links[l.Index]
	f.links[l.Index] = l
	if existed && old.Up && !l.Up {
		f.flush(l.Index)
	}
	f.mu.Unlock()
	f.notify(Event{Type: EventLink, Link: l})
}

// DropLink removes an interface with its addresses and routes. As in the kernel, the routes go without an event.
func (f *Fake) DropLink(index int) {
	f.mu.Lock()
	l := f.links[index]
	delete(f.links, index)
	f.addresses = slices.DeleteFunc(f.addresses, func(a Address) bool { return a.Link == index })
	f.flush(index)
	f.mu.Unlock()
	f.notify(Event{Type: EventLinkGone, Link: l})
}

func (f *Fake) flush(link int) {
	for k, r := range f.routes {
		if slices.ContainsFunc(r.NextHops, func(h NextHop) bool { return h.Link == link }) {
			delete(f.routes, k)
		}
	}
}

// PutAddress adds an address to an interface, without the route to its subnet.
func (f *Fake) PutAddress(a Address) {
	f.mu.Lock()
	f.addresses = append(f.addresses, a)
	f.mu.Unlock()
	f.notify(Event{Type: EventAddress, Address: a})
}

// PutRoute adds or replaces a route.
func (f *Fake) PutRoute(r Route) {
	f.mu.Lock()
	f.routes[r.Key()] = r
	f.mu.Unlock()
	f.notify(Event{Type: EventRoute, Route: r})
}

// DropRoute removes a route.
func (f *Fake) DropRoute(k RouteKey) {
	f.mu.Lock()
	r, ok := f.routes[k]
	delete(f.routes, k)
	f.mu.Unlock()
	if ok {
		f.notify(Event{Type: EventRouteGone, Route: r})
	}
}

// PutSysctl sets a variable; SetSysctl cannot tell a variable that does not exist, Sysctl can.
func (f *Fake) PutSysctl(name, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sysctls[name] = value
}

// LoseEvents tells watchers that events were lost.
func (f *Fake) LoseEvents() { f.notify(Event{Type: EventResync}) }

// Route returns the route with the key.
func (f *Fake) Route(k RouteKey) (Route, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.routes[k]
	return r, ok
}
