package kernel

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever a datagram holds, decoding it ends and does not fail.
func FuzzDecode(f *testing.F) {
	var b builder
	hops := []NextHop{{Gateway: addr("10.0.0.1"), Link: 2}, {Gateway: addr("10.0.0.2"), Link: 3, OnLink: true}}
	for _, r := range []Route{
		{Dst: prefix("10.244.0.0/26"), Metric: 7, Protocol: 12, Type: Unicast, NextHops: hops},
		{Dst: prefix("fd00::/64"), Metric: 7, Protocol: 12, Type: Unicast, NextHops: hops[:1]},
	} {
		appendOp(&b, RouteOp{AddRoute, r}, 1)
	}
	f.Add(b.buf)
	b = builder{}
	b.begin(unix.RTM_NEWLINK, 0, 1)
	b.buf = append(b.buf, make([]byte, unix.SizeofIfInfomsg)...)
	b.attr(unix.IFLA_IFNAME, []byte("eth0\x00"))
	b.end()
	f.Add(b.buf)
	f.Fuzz(func(_ *testing.T, data []byte) {
		for m, rest, ok := nextMessage(data); ok; m, rest, ok = nextMessage(rest) {
			_, _ = parseEvent(m, []Table{MainTable})
			_ = messageError(m)
			m.kind, m.flags = unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS
			_ = messageError(m)
			for _, kind := range []uint16{unix.RTM_NEWROUTE, unix.RTM_NEWLINK, unix.RTM_NEWADDR} {
				m.kind = kind
				_, _ = parseEvent(m, []Table{MainTable})
			}
		}
	})
}
