package filter

import (
	"net/netip"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// translated are the floating addresses that have another owner now or are gone. Their connections are deleted: the
// kernel translates each as it did at its beginning.
type translated struct {
	connections conntrack.Connections
	loop        *reconcile.Loop
	log         *zap.Logger

	stale      []netip.Addr // whose connections are to be forgotten
	mu         sync.Mutex
	forgetting bool
}

func (t *translated) add(list []netip.Addr) {
	if t.connections != nil {
		t.stale = append(t.stale, list...)
	}
}

// forget deletes connections beside the loop. Reading the kernel's table takes time, so changes meanwhile wait for the
// next turn.
func (t *translated) forget() {
	if len(t.stale) == 0 || !t.begin() {
		return
	}
	slices.SortFunc(t.stale, netip.Addr.Compare)
	addresses := slices.Compact(t.stale)
	t.stale = nil
	t.loop.Go(func() {
		if _, err := t.connections.ForgetConnections(addresses); err != nil {
			t.log.Warn("connections of floating addresses go on to the workloads that had them",
				zap.Stringers("addresses", addresses[:min(len(addresses), 10)]), zap.Int("of", len(addresses)),
				zap.Error(err))
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.forgetting = false
	})
}

func (t *translated) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	begins := !t.forgetting
	t.forgetting = true
	return begins
}
