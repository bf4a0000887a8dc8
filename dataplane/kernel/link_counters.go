package kernel

import (
	"fmt"

	vnetlink "github.com/vishvananda/netlink"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// SentPackets returns how many packets were sent so far on the interfaces whose names match. For the host's
// side of workload interfaces these are the packets that the workloads received.
func (c *Conn) SentPackets(match func(name string) bool) (sum uint64, err error) {
	var links []vnetlink.Link
	err = c.onDevice(func(h device.Handle) (err error) {
		links, err = device.Whole(h.LinkList)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read interface counters: %w", err)
	}
	for _, l := range links {
		if s := l.Attrs().Statistics; s != nil && match(l.Attrs().Name) {
			sum += s.TxPackets
		}
	}
	return sum, nil
}
