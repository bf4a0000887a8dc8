// Package connected tracks the connected subnets of this host; routes of peers inside them are refused.
package connected

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/kernel"
)

// Subnets are a part of the daemon.
type Subnets struct {
	addresses func() ([]kernel.Address, error)
	changed   func() // called after a change of the subnets; must not block
	log       *zap.Logger

	changes chan struct{} // holds one token when addresses may have changed
	subnets atomic.Pointer[[]netip.Prefix]
}

// pause is the minimum interval between reads of the addresses: a node that starts many workloads has as many
// new interfaces.
const pause = time.Second

// poll is the interval between reads of the addresses without an event.
const poll = time.Minute

// New follows the events of addresses, and has BGP decided again when the subnets have changed.
func New(d deps.Deps) *Subnets {
	c := newSubnets(d.Kernel.ListAddresses, func() { d.Bus.Undecided.Publish(struct{}{}) }, d.Log.Named("bgp"))
	d.Bus.Links.Subscribe(func([]kernel.Event) { c.readAgain() })
	return c
}

func newSubnets(addresses func() ([]kernel.Address, error), changed func(),
	log *zap.Logger) *Subnets {
	c := &Subnets{addresses: addresses, changed: changed, log: log, changes: make(chan struct{}, 1)}
	c.read()
	return c
}

// List returns the subnets, sorted.
func (c *Subnets) List() []netip.Prefix {
	if s := c.subnets.Load(); s != nil {
		return *s
	}
	return nil
}

// readAgain triggers a read of the addresses.
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

// read reports whether the subnets have changed. After a failed read the last ones stay.
func (c *Subnets) read() bool {
	addresses, err := c.addresses()
	if err != nil {
		c.log.Warn("the addresses of this host cannot be read, trying again", zap.Error(err))
		time.AfterFunc(pause, c.readAgain)
		return false
	}
	subnets := subnetsOf(addresses)
	if slices.Equal(subnets, c.List()) {
		return false
	}
	c.subnets.Store(&subnets)
	return true
}

// subnetsOf lists the subnets of addresses. Single addresses are no subnets; loopback and link-local ones are refused
// from peers anyway.
func subnetsOf(addresses []kernel.Address) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range addresses {
		p := a.Prefix.Masked()
		if !p.IsSingleIP() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}
