package speaker

import (
	"github.com/manxnet/manx/bgp"
)

// limit is the number of prefixes that a peer may announce, and the number above which its status warns.
type limit struct{ warn, most int }

// prefixLevel is the level of a peer's number of prefixes against its limit.
type prefixLevel int

const (
	prefixesNormal  prefixLevel = iota
	prefixesMany                // so many that the status warns
	prefixesTooMany             // more than the limit
)

// limit returns the limit of a session. The warning comes at four fifths of it at the latest, and just there if the
// session has one of its own.
func (c Config) limit(s bgp.Session) limit {
	if s.MaxPrefixes == 0 {
		return limit{min(c.WarnPrefixes, c.MaxPrefixes*4/5), c.MaxPrefixes}
	}
	most := int(s.MaxPrefixes)
	return limit{most * 4 / 5, most}
}

// level returns the level of a number of prefixes. A number above a limit has to fall clearly below the warning.
func (l limit) level(n int, was prefixLevel) prefixLevel {
	switch {
	case n > l.most:
		return prefixesTooMany
	case n > l.warn, was != prefixesNormal && n > l.warn*9/10:
		return prefixesMany
	}
	return prefixesNormal
}

// setLimits takes over the limits of sessions that are new or have changed. A peer that is held down may try again
// under another limit.
func (s *Speaker) setLimits(changed []bgp.Session) {
	for _, w := range changed {
		peer := w.Address.Unmap()
		if tap := s.taps.of(peer); tap != nil && tap.received.setLimit(s.cfg.limit(w)) {
			s.status.Release(peer)
		}
	}
}
