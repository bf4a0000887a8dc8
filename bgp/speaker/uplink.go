package speaker

import (
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

// findUplink notes the interface of a session that has come up, if it is one with a router in another AS. Nodes may be
// reached another way, and a workload, whose interface its tenant owns, is no way out.
func (s *Speaker) findUplink(addr netip.Addr) {
	tap, name := s.taps.of(addr), ""
	if tap == nil {
		return
	}
	if st, ok := s.status.Get(addr); ok && st.Session.Outsider && st.Session.Workload == "" {
		name = s.cfg.Uplink(addr)
	}
	tap.uplink.Store(&name)
}

// UplinkDown ends the sessions with routers in another AS that are directly connected to an interface by which no
// packet leaves any more, so that the routes of others are used at once. Without a session through another interface
// there are none, and the sessions stay: the interface may be back before the hold timer expires. why says what
// happened to the interface.
func (s *Speaker) UplinkDown(name, why string) {
	run := s.current()
	if run == nil || name == "" {
		return
	}
	broken, others := map[netip.Addr]time.Time{}, false
	for addr, tap := range s.taps.all() {
		switch uplink, up := tap.uplink.Load(), s.status.EstablishedSince(addr); {
		case uplink == nil || *uplink == "" || up.IsZero():
		case *uplink == name:
			broken[addr] = up
		default:
			others = true
		}
	}
	if !others {
		return
	}
	for addr, up := range broken {
		if s.status.BreakPath(addr, up, "interface "+name, "it "+why) {
			s.log.Warn("bgp session ends because of its interface", zap.Stringer("peer", addr),
				zap.String("interface", name), zap.String("reason", why))
			run.gate.End(addr, message.Cease(message.SubOtherChange), wire.CauseLocal)
		}
	}
}
