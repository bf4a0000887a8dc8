package session

import (
	"net/netip"
	"time"
)

// Held returns the peers whose hold time is over, each once.
func (t *Table) Held(now time.Time) (list []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, e := range t.entries {
		if e.state.heldDown() && now.Sub(e.heldSince) > t.cfg.PrefixHold {
			e.state = e.state.onRelease()
			list = append(list, addr)
		}
	}
	return list
}

// IsHeld reports whether a peer is held down.
func (t *Table) IsHeld(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && e.state.heldDown()
}

// Release ends the time for which a peer is held down: under another limit it may try again.
func (t *Table) Release(addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil && e.state.heldDown() {
		e.heldSince = time.Now().Add(-2 * t.cfg.PrefixHold)
	}
}
