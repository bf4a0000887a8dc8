package dataplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/checksum"
	"github.com/manxnet/manx/dataplane/offload"
)

// OffloadOf returns the Config.Offload that probes by UDP, in the network namespace of this process.
func OffloadOf(k *kernel.Conn) offload.Prober { return datagrams{k} }

type datagrams struct{ *kernel.Conn }

// Probe implements offload.Prober.
func (datagrams) Probe(ctx context.Context, from, to netip.Addr, offload bool, timeout time.Duration) (bool, error) {
	return checksum.Probe(ctx, from, to, offload, timeout)
}
