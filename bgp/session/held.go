package session

import (
	"fmt"
	"net/netip"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Stuck returns the peers whose OPEN exchange takes too long, each once.
func (t *Table) Stuck(now time.Time) (list []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, e := range t.entries {
		opening := e.fsm == gobgp.BGP_FSM_OPENSENT || e.fsm == gobgp.BGP_FSM_OPENCONFIRM
		waiting := !e.connectedAt.IsZero() && now.Sub(e.connectedAt) > t.cfg.OpenTimeout
		if opening && now.Sub(e.since) > t.cfg.OpenTimeout || waiting {
			e.since, e.connectedAt = now, time.Time{}
			why := fmt.Sprintf("%s is connected but did not finish the OPEN exchange within %s", e.peerName(),
				t.cfg.OpenTimeout)
			if hops := e.session.TTLSecurity; hops != 0 {
				why += fmt.Sprintf(": it may be more than %d hops away, or send with a TTL below 255 (ttlSecurity)",
					hops)
			}
			e.symptom(DirectionLocal, why, now)
			t.refresh(addr, e, now)
			list = append(list, addr)
		}
	}
	return list
}

// WarnOfPrefixes records a warning about the number of prefixes that a peer announces; empty: none.
func (t *Table) WarnOfPrefixes(addr netip.Addr, warning string) {
	t.change(addr, func(e *entry, _ time.Time) { e.warnings.prefixes = warning })
}

// Hold keeps a session down for the configured time after its end; the caller ends the established session. It reports
// whether the session was not held before. why follows "announced".
func (t *Table) Hold(addr netip.Addr, why string) (news bool) {
	t.change(addr, func(e *entry, now time.Time) {
		news = e.hold(fmt.Sprintf("%s announced %s; the session is held down for %s", e.peerName(), why,
			t.cfg.PrefixHold), now, now.Add(t.cfg.PrefixHold))
	})
	return news
}

// Held returns the peers whose hold time is over, each once. GoBGP itself leaves a peer that exceeded its prefix limit
// down until an operator enables it.
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

// Release ends the time for which a peer is held down: under another limit it may try again.
func (t *Table) Release(addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil && e.state.heldDown() {
		e.heldSince = time.Now().Add(-2 * t.cfg.PrefixHold)
	}
}
