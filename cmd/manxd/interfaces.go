package main

import (
	"net/netip"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
)

// interfaceOf returns the lookup of interfaces for filters with interface conditions.
func interfaceOf(k *kernel.Conn, log *zap.Logger) func(netip.Addr) string {
	return func(hop netip.Addr) string {
		name, err := k.InterfaceTo(hop)
		if err != nil {
			log.Warn("a filter needs the interface of a next hop, which cannot be looked up", zap.Error(err))
		}
		return name
	}
}
