package speaker

import (
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire"
)

// limit returns the limit of a session. The warning comes at four fifths of it at the latest, and just there if the
// session has one of its own.
func (c Config) limit(s bgp.Session) wire.Limit {
	if s.MaxPrefixes == 0 {
		return wire.Limit{Warn: min(c.WarnPrefixes, c.MaxPrefixes*4/5), Most: c.MaxPrefixes}
	}
	most := int(s.MaxPrefixes)
	return wire.Limit{Warn: most * 4 / 5, Most: most}
}

// setLimits takes over the limits of sessions that have changed. A peer that is held down may try again under another
// limit.
func (r *speakerRun) setLimits(changed []bgp.Session) {
	for i := range changed {
		addr := changed[i].Address.Unmap()
		if old, exists := r.sessions[addr]; exists {
			was, is := r.sp.cfg.limit(old), r.sp.cfg.limit(changed[i])
			if was != is {
				r.gate.SetLimit(addr, is)
				r.sp.status.Release(addr)
			}
		}
	}
}

// release lets sessions come up again that were held down for too many prefixes.
func (s *Speaker) release(now time.Time) {
	run := s.current()
	for _, addr := range s.status.Held(now) {
		s.log.Info("bgp session is tried again after too many prefixes", zap.Stringer("peer", addr))
		if run != nil {
			run.gate.Release(addr)
		}
	}
}
