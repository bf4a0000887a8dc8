package route

import (
	"net/netip"
	"sync"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// beside is what the target has to do with what is beside routes: the tunnel device, and the kernel's connections. The
// zero value has to do with neither.
type beside struct {
	ipipOff bool         // by FelixConfiguration
	noIPIP  func() error // why there is no tunnel device

	connections kernel.Connections // nil: Departed and Forgotten are called by somebody else
	loop        *reconcile.Loop
	log         *zap.Logger
	mu          sync.Mutex   // guards what follows
	forgetting  bool         // connections are being deleted
	forgotten   []netip.Addr // whose connections are out of the kernel
}

// FollowIPIP makes each Flush find out why the node has no tunnel device. Call it before the first Flush.
func (t *Target) FollowIPIP(why func() error) { t.beside.noIPIP = why }

// ForgetConnections makes the target delete the connections of addresses that left their workloads, beside the loop
// which calls Flush: the kernel's table may have a million entries. Call it before the first Flush.
func (t *Target) ForgetConnections(c kernel.Connections, loop *reconcile.Loop, log *zap.Logger) {
	t.beside.connections, t.beside.loop, t.beside.log = c, loop, log
}

// lookBeside takes over what happened beside the routes since the last Flush.
func (t *Target) lookBeside() {
	b := &t.beside
	if b.ipipOff {
		t.SetNoIPIP(errIPIPDisabled)
	} else if b.noIPIP != nil {
		t.SetNoIPIP(b.noIPIP())
	}
	if b.connections == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Forgotten(b.forgotten)
	b.forgotten = nil
}

// forgetDeparted deletes the connections of the addresses that departed, one batch at a time.
func (t *Target) forgetDeparted() {
	b := &t.beside
	if b.connections == nil || len(t.departures) == 0 {
		return
	}
	addresses := b.next(t.Departed)
	if len(addresses) == 0 {
		return
	}
	b.loop.Go(func() {
		b.forget(addresses)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.forgetting, b.forgotten = false, addresses
	})
}

// next is the next batch of addresses; none while the last one is on its way.
func (b *beside) next(departed func() []netip.Addr) []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.forgetting {
		return nil
	}
	list := departed()
	b.forgetting = len(list) > 0
	return list
}

// forgetAttempts bounds how long an address stays without a route because the kernel's connections cannot be changed.
const forgetAttempts = 3

func (b *beside) forget(addresses []netip.Addr) {
	for attempt := 1; ; attempt++ {
		n, err := b.connections.ForgetConnections(addresses)
		switch {
		case err == nil:
			b.log.Debug("forgot the connections of workloads' former addresses", zap.Int("addresses", len(addresses)), zap.Int("connections", n))
			return
		case attempt == forgetAttempts:
			b.log.Warn("connections of workloads' former addresses remain; whoever gets such an address may receive what belongs to them",
				zap.Stringers("addresses", addresses[:min(len(addresses), 10)]), zap.Int("of", len(addresses)), zap.Error(err))
			return
		}
		<-b.loop.After(reconcile.DefaultBackoff.After(attempt))
	}
}
