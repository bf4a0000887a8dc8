package kernel

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// SentPackets returns how many packets were sent so far on the interfaces whose names match. For the host's
// side of workload interfaces these are the packets that the workloads received.
func (c *Conn) SentPackets(match func(name string) bool) (uint64, error) {
	var sum uint64
	err := c.With(func(s *netlink.Socket) error {
		return s.Dump(unix.RTM_GETLINK, func() { sum = 0 }, func(b *netlink.Builder) {
			b.Buf = append(b.Buf, make([]byte, unix.SizeofIfInfomsg)...)
		}, func(m netlink.Message) {
			if name, sent := parseSent(m.Data); match(name) {
				sum += sent
			}
		})
	})
	if err != nil {
		return 0, fmt.Errorf("read interface counters: %w", err)
	}
	return sum, nil
}

// sentOffset is the offset of tx_packets in struct rtnl_link_stats64: after rx_packets.
const sentOffset = 8

func parseSent(data []byte) (name string, sent uint64) {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC {
		return "", 0
	}
	for kind, value := range netlink.Attrs(data[unix.SizeofIfInfomsg:]) {
		switch {
		case kind == unix.IFLA_IFNAME:
			name = unix.ByteSliceToString(value)
		case kind == unix.IFLA_STATS64 && len(value) >= sentOffset+8:
			sent = binary.NativeEndian.Uint64(value[sentOffset:])
		}
	}
	return name, sent
}
