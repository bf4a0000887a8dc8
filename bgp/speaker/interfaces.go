package speaker

import (
	"maps"
	"net/netip"
	"sync"
)

// hopInterfaces knows the interface that each next hop of learned routes is reached by, while a filter asks for it.
type hopInterfaces struct {
	lookup func(netip.Addr) string // nil: unknown

	mu   sync.Mutex
	hops map[netip.Addr]string
}

// known returns the interfaces by next hop.
func (h *hopInterfaces) known() map[netip.Addr]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.hops)
}
