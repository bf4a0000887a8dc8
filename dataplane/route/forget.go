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
	connections conntrack.Table // nil: the owner of the Target calls departed and forgotten
	loop        *reconcile.Loop
	log         *zap.Logger
	reading     bool         // connected was or is being read
	mu          sync.Mutex   // guards the fields below
	forgetting  bool         // connections are being deleted
	forgotten   []netip.Addr // whose connections are out of the kernel
	// connected has the addresses of which the kernel had connections at the start, or could not forget them: only then
	// does an address that comes to a workload bring those of its earlier owner. nil: any address may.
	connected map[netip.Addr]bool
	waits     func(netip.Addr) bool // for somebody else to forget its connections; nil: no address does
}

// ForgetConnections makes the target delete the connections of addresses that left their workloads, beside the loop
// which calls Flush: the kernel's table may have a million entries. Call it before the first Flush.
func (t *Target) ForgetConnections(c conntrack.Table, loop *reconcile.Loop, log *zap.Logger) {
	t.forgetter.connections, t.forgetter.loop, t.forgetter.log = c, loop, log
}

// AddressesWait sets a function that reports whether connections of an address with its owner on another node are still
// to be forgotten. Call it before the first Flush.
func (t *Target) AddressesWait(waits func(netip.Addr) bool) { t.forgetter.waits = waits }

// readConnected reads the addresses of the kernel's connections, once.
func (f *forgetter) readConnected() {
	if f.connections == nil || f.reading {
		return
	}
	f.reading = true
	f.loop.Go(func() {
		all, err := f.connections.ConnectedAddresses()
		if err != nil {
			f.log.Warn("connections of each new address will be looked for", zap.Error(err))
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.connected = all
	})
}

// mayInherit reports whether the kernel may have connections of an address' earlier owner.
func (f *forgetter) mayInherit(a netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.connected == nil || f.connected[a] || f.waits != nil && f.waits(a)
}

// noteForgotten records that connections of addresses are forgotten, or with false that they are not.
func (f *forgetter) noteForgotten(addresses []netip.Addr, forgotten bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.connected == nil {
		return
	}
	for _, a := range addresses {
		if delete(f.connected, a); !forgotten {
			f.connected[a] = true
		}
	}
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
		f.forgetting = false
		// The Flush that begins the next batch may have looked for results before these came.
		f.forgotten = append(f.forgotten, addresses...)
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
			f.noteForgotten(addresses, true)
			return
		case attempt == forgetAttempts:
			f.log.Warn("connections of workloads' former addresses remain; whoever gets such an address may receive "+
				"what belongs to them",
				zap.Stringers("addresses", addresses[:min(len(addresses), 10)]), zap.Int("of", len(addresses)),
				zap.Error(err))
			f.noteForgotten(addresses, false)
			return
		}
		<-f.loop.After(reconcile.DefaultBackoff.After(attempt))
	}
}
