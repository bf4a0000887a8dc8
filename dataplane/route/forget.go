package route

import (
	"net/netip"
	"sync"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// forgetter deletes the connections of addresses that left their workloads. The zero value deletes none.
type forgetter struct {
	connections conntrack.Connections // nil: the owner of the Target calls departed and forgotten
	loop        *reconcile.Loop
	log         *zap.Logger
	mu          sync.Mutex   // guards the fields below
	forgetting  bool         // connections are being deleted
	forgotten   []netip.Addr // whose connections are out of the kernel
}

// ForgetConnections makes the target delete the connections of addresses that left their workloads, beside the loop
// which calls Flush: the kernel's table may have a million entries. Call it before the first Flush.
func (t *Target) ForgetConnections(c conntrack.Connections, loop *reconcile.Loop, log *zap.Logger) {
	t.forgetter.connections, t.forgetter.loop, t.forgetter.log = c, loop, log
}

// takeForgotten takes over whose connections were deleted since the last Flush.
func (t *Target) takeForgotten() {
	f := &t.forgetter
	if f.connections == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.forgotten(f.forgotten)
	f.forgotten = nil
}

// forgetDeparted deletes the connections of the addresses that departed, one batch at a time.
func (t *Target) forgetDeparted() {
	f := &t.forgetter
	if f.connections == nil || len(t.departures) == 0 {
		return
	}
	addresses := f.next(t.departed)
	if len(addresses) == 0 {
		return
	}
	f.loop.Go(func() {
		f.forget(addresses)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.forgetting, f.forgotten = false, addresses
	})
}

// next returns the next batch of addresses; none while the last one is in progress.
func (f *forgetter) next(departed func() []netip.Addr) []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forgetting {
		return nil
	}
	list := departed()
	f.forgetting = len(list) > 0
	return list
}

// forgetAttempts bounds how long an address stays without a route because the kernel's connections cannot be changed.
const forgetAttempts = 3

func (f *forgetter) forget(addresses []netip.Addr) {
	for attempt := 1; ; attempt++ {
		n, err := f.connections.ForgetConnections(addresses)
		switch {
		case err == nil:
			f.log.Debug("forgot the connections of workloads' former addresses", zap.Int("addresses", len(addresses)),
				zap.Int("connections", n))
			return
		case attempt == forgetAttempts:
			f.log.Warn("connections of workloads' former addresses remain; whoever gets such an address may receive "+
				"what belongs to them",
				zap.Stringers("addresses", addresses[:min(len(addresses), 10)]), zap.Int("of", len(addresses)),
				zap.Error(err))
			return
		}
		<-f.loop.After(reconcile.DefaultBackoff.After(attempt))
	}
}
