package main

import (
	"net/netip"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
)

// interfaceOf returns the lookup of interfaces for filters with interface conditions.
func interfaceOf(k *kernel.Conn, log *zap.Logger) func(netip.Addr) string {
	return func(hop netip.Addr) string {
		name, _, err := k.InterfaceTo(hop)
		if err != nil {
			log.Warn("a filter needs the interface of a next hop, which cannot be looked up", zap.Error(err))
		}
		return name
	}
}

// uplinkOf returns the lookup of the interface that a peer is directly connected to.
func uplinkOf(k *kernel.Conn) func(netip.Addr) string {
	return func(peer netip.Addr) string {
		if name, direct, err := k.InterfaceTo(peer); err == nil && direct {
			return name
		}
		return ""
	}
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
