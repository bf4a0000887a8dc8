package dataplane

import (
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/reconcile"
)

// forgetAttempts bounds how long an address stays without a route because the kernel's connections cannot be changed.
const forgetAttempts = 3

// forgetConnections deletes the connections of addresses that left their workloads. It works in the background, one batch
// at a time: the kernel's table may have a million entries.
func (a *Agent) forgetConnections() {
	if a.forgetting {
		return
	}
	addresses := a.routes.Departed()
	if len(addresses) == 0 {
		return
	}
	a.forgetting = true
	a.background(func() {
		a.forget(addresses)
		a.inbox.put(func(b *batch) { b.forgotten = addresses })
		a.loop.Trigger()
	})
}

func (a *Agent) forget(addresses []netip.Addr) {
	for attempt := 1; ; attempt++ {
		n, err := a.kernel.ForgetConnections(addresses)
		switch {
		case err == nil:
			a.log.Debug("forgot the connections of workloads' former addresses", zap.Int("addresses", len(addresses)), zap.Int("connections", n))
			return
		case attempt == forgetAttempts:
			a.log.Warn("connections of workloads' former addresses remain; whoever gets such an address may receive what belongs to them",
				zap.Stringers("addresses", addresses[:min(len(addresses), 10)]), zap.Int("of", len(addresses)), zap.Error(err))
			return
		}
		<-a.loop.After(reconcile.DefaultBackoff.After(attempt))
	}
}

// forgetTranslations deletes the connections of floating addresses that were given to somebody else or are gone: the kernel
// translates each as it did at its beginning. Reading the kernel's table takes time, so what changes meanwhile waits for the
// next turn. The lock is held.
func (a *PolicyAgent) forgetTranslations() {
	if a.connections == nil {
		a.stale = nil
	}
	if a.forgetting || len(a.stale) == 0 {
		return
	}
	slices.SortFunc(a.stale, netip.Addr.Compare)
	addresses := slices.Compact(a.stale)
	a.stale, a.forgetting = nil, true
	a.working.Go(func() {
		if _, err := a.connections.ForgetConnections(addresses); err != nil {
			a.log.Warn("connections of floating addresses go on to the workloads that had them",
				zap.Stringers("addresses", addresses[:min(len(addresses), 10)]), zap.Int("of", len(addresses)), zap.Error(err))
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.forgetting = false
		if len(a.stale) > 0 {
			a.loop.Trigger()
		}
	})
}
