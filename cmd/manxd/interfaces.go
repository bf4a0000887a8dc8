package main

import (
	"net/netip"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
)

// ways looks up the routes of packets of this host that WireGuard does not take: those of BGP and of WireGuard itself.
type ways struct {
	kernel *kernel.Conn
	mark   func() uint32 // of such packets
}

// to names the interface to an address, empty if no route leads there. direct: without a gateway.
func (w ways) to(a netip.Addr) (name string, direct bool, err error) {
	return w.kernel.InterfaceTo(a, w.mark())
}

// forFilters is the lookup of interfaces for filters with interface conditions.
func (w ways) forFilters(log *zap.Logger) func(netip.Addr) string {
	return func(hop netip.Addr) string {
		name, _, err := w.to(hop)
		if err != nil {
			log.Warn("a filter needs the interface of a next hop, which cannot be looked up", zap.Error(err))
		}
		return name
	}
}

// uplink returns the interface that a peer is directly connected to, empty for none.
func (w ways) uplink(peer netip.Addr) string {
	if name, direct, err := w.to(peer); err == nil && direct {
		return name
	}
	return ""
}

// by returns the interface to an address, with or without a gateway, empty for none.
func (w ways) by(a netip.Addr) string {
	name, _, err := w.to(a)
	if err != nil {
		return ""
	}
	return name
}

// whyDown returns why packets do not leave by the interface of an event, empty if they do.
func whyDown(e kernel.Event) string {
	switch {
	case e.Type == kernel.EventLinkGone:
		return "is gone"
	case e.Type != kernel.EventLink || e.Link.Up && e.Link.Running:
		return ""
	case e.Link.Up:
		return "has lost its carrier"
	}
	return "is down"
}
