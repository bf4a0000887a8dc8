// Package connected tracks the networks that this host is connected to, and the routes of other programs in its kernel:
// routes of peers inside the former can be refused, and both can be announced.
package connected

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/kernel"
)

// Subnets are a part of the daemon.
type Subnets struct {
	kernel  hostKernel
	changed func() // called after a change; must not block
	log     *zap.Logger

	changes       chan struct{} // holds one token when something may have changed
	routesChanged atomic.Bool   // the routes of others may have changed, too
	alien         []kernel.Route
	via           atomic.Pointer[map[int]bool] // the interfaces of alien
	subnets       atomic.Pointer[[]netip.Prefix]
	routes        atomic.Pointer[[]bgp.KernelRoute]
}

// hostKernel reads the state of the host.
type hostKernel interface {
	ListAddresses() ([]kernel.Address, error)
	ListLinks() ([]kernel.Link, error)
	ListRoutes(...kernel.Table) ([]kernel.Route, error)
}

// pause is the minimum interval between reads of the addresses: a node that starts many workloads has as many
// new interfaces.
const pause = time.Second

// poll is the interval between reads of the addresses without an event.
const poll = time.Minute

// mostRoutes bounds the routes of other programs that BGP takes over: that of a router with the routes of the whole
// Internet are none to announce again.
const mostRoutes = 10_000

// New follows the events of addresses and routes, and has BGP decided again after a change.
func New(d deps.Deps) *Subnets {
	c := newSubnets(d.Kernel, func() { d.Bus.Undecided.Publish(struct{}{}) }, d.Log.Named("bgp"))
	d.Bus.Links.Subscribe(c.handle)
	return c
}

func newSubnets(k hostKernel, changed func(), log *zap.Logger) *Subnets {
	c := &Subnets{kernel: k, changed: changed, log: log, changes: make(chan struct{}, 1)}
	c.via.Store(&map[int]bool{})
	c.routesChanged.Store(true)
	c.read()
	return c
}

// handle takes over events of the kernel. With an interface that goes down the kernel removes routes, without an event
// for each.
func (c *Subnets) handle(events []kernel.Event) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case kernel.EventRoute, kernel.EventRouteGone:
			if !alien(e.Route) {
				continue
			}
			c.routesChanged.Store(true)
		case kernel.EventResync:
			c.routesChanged.Store(true)
		case kernel.EventLink, kernel.EventLinkGone:
			if via := *c.via.Load(); via[e.Link.Index] {
				c.routesChanged.Store(true)
			}
		}
		c.readAgain()
	}
}

// List returns the subnets, sorted.
func (c *Subnets) List() []netip.Prefix {
	if s := c.subnets.Load(); s != nil {
		return *s
	}
	return nil
}

// Routes returns the connected networks and the routes of other programs, sorted by prefix, each prefix once.
func (c *Subnets) Routes() []bgp.KernelRoute {
	if r := c.routes.Load(); r != nil {
		return *r
	}
	return nil
}

// readAgain triggers a read.
func (c *Subnets) readAgain() {
	select {
	case c.changes <- struct{}{}:
	default:
	}
}

// Name implements part.Part.
func (c *Subnets) Name() string { return "connected" }

// Run tracks the addresses until ctx ends.
func (c *Subnets) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changes:
		case <-time.After(poll): // events may have been lost
		}
		if c.read() {
			c.changed()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// read reports whether the subnets or the routes have changed. After a failed read the last ones stay.
func (c *Subnets) read() bool {
	addresses, err := c.kernel.ListAddresses()
	var links []kernel.Link
	if err == nil {
		links, err = c.kernel.ListLinks()
	}
	subnets, networks := subnetsOf(addresses), networksOf(addresses, links)
	// The routes of the kernel are many, and most are our own: they are read only if others may have changed.
	if c.routesChanged.Swap(false) && err == nil {
		err = c.readRoutes()
	}
	if err != nil {
		c.routesChanged.Store(true)
		c.log.Warn("addresses and routes of this host cannot be read, trying again", zap.Error(err))
		time.AfterFunc(pause, c.readAgain)
		return false
	}
	merged := merge(networks, c.alien, links)
	if slices.Equal(subnets, c.List()) && slices.Equal(merged, c.Routes()) {
		return false
	}
	c.subnets.Store(&subnets)
	c.routes.Store(&merged)
	return true
}

// readRoutes reads the routes of others.
func (c *Subnets) readRoutes() error {
	routes, err := c.kernel.ListRoutes()
	if err != nil {
		return err
	}
	c.alien = nil
	via := map[int]bool{}
	for _, r := range routes {
		if !alien(r) {
			continue
		}
		c.alien = append(c.alien, r)
		for _, h := range r.NextHops {
			via[h.Link] = true
		}
	}
	c.via.Store(&via)
	if len(c.alien) > mostRoutes {
		c.log.Warn("this host has so many routes of other programs that BGP announces none of them",
			zap.Int("routes", len(c.alien)), zap.Int("most", mostRoutes))
		c.alien = nil
	}
	return nil
}

// subnetsOf lists the subnets of addresses. Single addresses are no subnets; loopback and link-local ones are refused
// from peers anyway.
func subnetsOf(addresses []kernel.Address) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range addresses {
		p := a.Prefix.Masked()
		if !p.IsSingleIP() && global(p.Addr()) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

func global(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}
