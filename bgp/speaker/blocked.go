package speaker

import (
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

// blocked follows a peer that does not take data as fast as routes change. It counts from the last moment at which
// nothing waited.
type blocked struct {
	on            bool
	changes, sent uint64 // of routes, at that moment
}

// waiting returns how many changes may wait for the peer: those since, less the routes that it was sent.
func (b *blocked) waiting(on bool, changes, sent uint64) uint64 {
	if !on || !b.on || sent < b.sent {
		*b = blocked{on, changes, sent}
		return 0
	}
	return (changes - b.changes) - min(sent-b.sent, changes-b.changes)
}

// endBlocked ends sessions for which too many changes wait. It is called once a second, on one goroutine.
func (s *Speaker) endBlocked() {
	run := s.current()
	if run == nil {
		return
	}
	for addr, tap := range s.taps.all() {
		on, sent := run.gate.Blocked(addr)
		if tap.blocked.waiting(on, s.fib.ChangesByOthers(addr), sent) > uint64(s.cfg.MaxWaiting) {
			tap.blocked = blocked{}
			s.log.Warn("bgp session ends because its peer does not take the routes", zap.Stringer("peer", addr))
			run.gate.End(addr, message.Cease(message.SubNoSpace), wire.CauseSendHold)
		}
	}
}
