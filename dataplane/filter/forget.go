package filter

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// translated are the floating addresses that have another owner now or are gone. Their connections are deleted: the
// kernel translates each as it did at its beginning. A failure is retried until it succeeds.
type translated struct {
	connections conntrack.Connections
	loop        *reconcile.Loop
	now         func() time.Time

	mu         sync.Mutex
	stale      []netip.Addr // whose connections are to be forgotten
	forgetting bool
	attempts   int // that failed in a row
	retryAt    time.Time
	err        error // of the last attempt
}

func (t *translated) add(list []netip.Addr) {
	if t.connections == nil || len(list) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stale, t.retryAt = append(t.stale, list...), time.Time{}
}

// forget deletes connections beside the loop. Reading the kernel's table takes time, so changes meanwhile wait for the
// next turn.
func (t *translated) forget() {
	addresses := t.begin()
	if len(addresses) == 0 {
		return
	}
	t.loop.Go(func() {
		_, err := t.connections.ForgetConnections(addresses)
		t.end(addresses, err)
	})
}

// begin returns the addresses of the next attempt, none if it is not due.
func (t *translated) begin() []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forgetting || t.now().Before(t.retryAt) {
		return nil
	}
	slices.SortFunc(t.stale, netip.Addr.Compare)
	addresses := slices.Compact(t.stale)
	t.stale, t.forgetting = nil, len(addresses) > 0
	return addresses
}

func (t *translated) end(addresses []netip.Addr, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetting, t.err = false, nil
	if err == nil {
		t.attempts = 0
		return
	}
	t.attempts++
	t.retryAt = t.now().Add(reconcile.DefaultBackoff.After(t.attempts))
	t.err = fmt.Errorf("connections of floating addresses go on to the workloads that had them: %s (of %d): %w",
		addresses[0], len(addresses), err)
	t.stale = append(t.stale, addresses...)
}

// retry makes the next attempt due.
func (t *translated) retry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retryAt = time.Time{}
}

// next returns how long the next attempt waits, pause if that is shorter or there is none.
func (t *translated) next(pause time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forgetting || len(t.stale) == 0 {
		return pause
	}
	wait := t.retryAt.Sub(t.now())
	if pause <= 0 || wait < pause {
		return wait
	}
	return pause
}

// problem is the error of the last attempt, nil if it succeeded.
func (t *translated) problem() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
