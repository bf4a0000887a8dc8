package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// fill puts n connections of UDP in the table, each between two other addresses.
func (c *Conn) fill(b *testing.B, n int) {
	b.Helper()
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const create = unix.NFNL_SUBSYS_CTNETLINK << 8 // IPCTNL_MSG_CT_NEW
	for i := range n {
		client, server := [4]byte{10, 128 | byte(i>>16), byte(i >> 8), byte(i)}, [4]byte{10, 9, byte(i >> 8), byte(i)}
		err := s.Request(create, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func(b *netlink.Builder) {
			b.Buf = append(b.Buf, unix.AF_INET, unix.NFNETLINK_V0, 0, 0)
			addTuple(b, ctOriginal, client, server, 40000, 53)
			addTuple(b, ctReply, server, client, 53, 40000)
			b.AttrBig32(7, 600) // CTA_TIMEOUT
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func addTuple(b *netlink.Builder, kind uint16, from, to [4]byte, fromPort, toPort uint16) {
	t := b.NestFlagged(kind)
	ip := b.NestFlagged(ctTupleIP)
	b.Attr(1, from[:])
	b.Attr(2, to[:])
	b.EndNest(ip)
	p := b.NestFlagged(2)
	b.Attr(1, []byte{unix.IPPROTO_UDP})
	b.Attr(2, binary.BigEndian.AppendUint16(nil, fromPort))
	b.Attr(3, binary.BigEndian.AppendUint16(nil, toPort))
	b.EndNest(p)
	b.EndNest(t)
}

// BenchmarkForget reads a table for one address that no connection has, and for a hundred.
func BenchmarkForget(b *testing.B) {
	for _, entries := range []int{0, 100_000} {
		_, c := tableIn(b)
		c.fill(b, entries)
		for _, addresses := range []int{1, 100} {
			b.Run(fmt.Sprintf("%d of %d", addresses, entries), func(b *testing.B) {
				var list []netip.Addr
				for i := range addresses {
					list = append(list, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
				}
				for b.Loop() {
					if _, err := c.ForgetConnections(list); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
