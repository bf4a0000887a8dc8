package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Decoding ends for any datagram, without a panic.
func FuzzDecode(f *testing.F) {
	var b netlink.Builder
	hops := []NextHop{{Gateway: addr("10.0.0.1"), Link: 2}, {Gateway: addr("10.0.0.2"), Link: 3, OnLink: true}}
	for _, r := range []Route{
		{Dst: prefix("10.244.0.0/26"), Metric: 7, Protocol: 12, Type: Unicast, NextHops: hops},
		{Dst: prefix("fd00::/64"), Metric: 7, Protocol: 12, Type: Unicast, NextHops: hops[:1]},
	} {
		appendOp(&b, RouteOp{AddRoute, r}, 1)
	}
	f.Add(b.Buf)
	b = netlink.Builder{}
	b.Begin(unix.RTM_NEWLINK, 0, 1)
	b.Buf = append(b.Buf, make([]byte, unix.SizeofIfInfomsg)...)
	b.Attr(unix.IFLA_IFNAME, []byte("eth0\x00"))
	b.End()
	f.Add(b.Buf)
	f.Fuzz(func(_ *testing.T, data []byte) {
		for m, rest, ok := netlink.NextMessage(data); ok; m, rest, ok = netlink.NextMessage(rest) {
			_, _ = parseEvent(m, []Table{MainTable})
			_ = m.Err()
			m.Kind, m.Flags = unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS
			_ = m.Err()
			for _, kind := range []uint16{unix.RTM_NEWROUTE, unix.RTM_NEWLINK, unix.RTM_NEWADDR} {
				m.Kind = kind
				_, _ = parseEvent(m, []Table{MainTable})
			}
		}
	})
}
