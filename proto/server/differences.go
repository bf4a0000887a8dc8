package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/manxnet/manx/bgp/speaker"
)

// differences are the sentences about values of an established session that differ from this node's configuration, and
// their consequences.
func differences(st speaker.SessionStatus) (list []string) {
	if st.Phase != speaker.PhaseEstablished {
		return nil
	}
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	w, lost := st.Session, func(c string) bool { return !slices.Contains(st.Capabilities, c) }
	hold, keepalive := time.Duration(w.HoldSeconds)*time.Second, time.Duration(w.KeepaliveSeconds)*time.Second
	add(st.HoldTime != 0 && st.HoldTime < hold, "hold time %s instead of %s: the peer proposes less, and the lower "+
		"one counts (RFC 4271 section 4.2)", seconds(st.HoldTime), seconds(hold))
	add(st.HoldTime == 0 && !st.Counters.At.IsZero(), "no hold time: the peer proposes 0, so that a peer that is "+
		"silently gone is not noticed")
	add(st.Keepalive != 0 && st.Keepalive != keepalive && st.HoldTime == hold, "keepalives every %s instead of %s",
		seconds(st.Keepalive), seconds(keepalive))
	add(w.Source.IsValid() && st.LocalAddress.IsValid() && w.Source.Unmap() != st.LocalAddress.Unmap(),
		"the connection uses the local address %s, not %s", st.LocalAddress, w.Source)

	family := unicast(w.Address.Unmap().Is4())
	add(!slices.Contains(st.Families, family), "the peer did not announce %s: no routes are exchanged", family)
	for _, f := range st.Families {
		add(f != family, "the peer also offers %s, which this session does not carry: one session, one family", f)
	}
	add(!st.AddPathReceive, "the peer sends only its best path for each prefix (no ADD-PATH, RFC 7911): ways behind "+
		"it that are as good stay unknown")
	add(!st.AddPathSend, "the peer takes only one path for each prefix (no ADD-PATH, RFC 7911)")
	add(!st.GracefulRestart, "the peer does not restart gracefully for %s (RFC 4724): when the session breaks, "+
		"routes go at once", family)
	add(lost("route refresh"), "the peer cannot send its routes again (no route refresh, RFC 2918): changed import "+
		"filters apply to what it sends from now on")
	add(lost("4-octet AS"), "the peer knows only AS numbers up to 65535 (no RFC 6793)")
	return list
}

func unicast(ipv4 bool) string {
	if ipv4 {
		return "ipv4-unicast"
	}
	return "ipv6-unicast"
}

// seconds writes a time as people write timers: 90 s.
func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }
