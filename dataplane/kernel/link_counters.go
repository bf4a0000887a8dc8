package kernel

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// SentPackets adds up what was sent so far on the interfaces whose names begin with prefix. For the host's side of
// workload interfaces that is what the workloads received.
func (c *Conn) SentPackets(prefix string) (uint64, error) {
	var sum uint64
	err := c.with(func(s *socket) error {
		return s.dump(unix.RTM_GETLINK, func() { sum = 0 }, func(b *builder) {
			b.buf = append(b.buf, make([]byte, unix.SizeofIfInfomsg)...)
		}, func(m message) {
			if name, sent := parseSent(m.data); strings.HasPrefix(name, prefix) {
				sum += sent
			}
		})
	})
	if err != nil {
		return 0, fmt.Errorf("read interface counters: %w", err)
	}
	return sum, nil
}

// sentOffset is where struct rtnl_link_stats64 has tx_packets: after rx_packets.
const sentOffset = 8

func parseSent(data []byte) (name string, sent uint64) {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC {
		return "", 0
	}
	for kind, value, rest, ok := nextAttr(data[unix.SizeofIfInfomsg:]); ok; kind, value, rest, ok = nextAttr(rest) {
		switch {
		case kind == unix.IFLA_IFNAME:
			name = unix.ByteSliceToString(value)
		case kind == unix.IFLA_STATS64 && len(value) >= sentOffset+8:
			sent = native.Uint64(value[sentOffset:])
		}
	}
	return name, sent
}
