package speaker

import (
	"net/netip"
	"time"

	"github.com/manxnet/manx/bgp"
)

// limit is how many prefixes a peer may announce, and the number above which its status warns.
type limit struct{ warn, most int }

// limit of a session that has one of its own: the warning comes at four fifths of it.
func (c Config) limit(s bgp.Session) limit {
	if s.MaxPrefixes == 0 {
		return limit{c.WarnPrefixes, c.MaxPrefixes}
	}
	most := int(s.MaxPrefixes)
	return limit{most * 4 / 5, most}
}

// level tells where a number of prefixes lies. What was too much or nearly so has to fall clearly below the warning.
func (l limit) level(n int, was prefixLevel) prefixLevel {
	switch {
	case n > l.most:
		return prefixesTooMany
	case n > l.warn, was != prefixesNormal && n > l.warn*9/10:
		return prefixesMany
	}
	return prefixesNormal
}

// setLimits takes over the limits of all sessions, and judges again what peers with another limit have announced.
func (s *Speaker) setLimits(sessions []bgp.Session) {
	own := map[netip.Addr]limit{}
	for _, w := range sessions {
		if w.MaxPrefixes != 0 {
			own[w.Address.Unmap()] = s.cfg.limit(w)
		}
	}
	for peer, l := range s.fib.setLimits(own) {
		s.status.release(peer)
		s.prefixLevel(peer, l.level, l.limit)
	}
}

type levelOf struct {
	level prefixLevel
	limit limit
}

// setLimits returns how the peers whose limit changed stand to the new one.
func (f *fib) setLimits(own map[netip.Addr]limit) map[netip.Addr]levelOf {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.limits
	f.limits = own
	changed := map[netip.Addr]levelOf{}
	for _, peers := range []map[netip.Addr]limit{old, own} {
		for peer := range peers {
			if old[peer] != own[peer] {
				level, _ := f.level(peer)
				changed[peer] = levelOf{level, f.limitOf(peer)}
			}
		}
	}
	return changed
}

func (f *fib) limitOf(peer netip.Addr) limit {
	if l, ok := f.limits[peer]; ok {
		return l
	}
	return f.limit
}

// release ends the punishment of a peer: under another limit it may try again.
func (t *statusTable) release(peer netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[peer]; e != nil && !e.held.IsZero() {
		e.held = time.Now().Add(-2 * t.cfg.PrefixHold)
	}
}
