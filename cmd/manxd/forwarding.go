package main

import (
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
)

// longestRestart is the longest restart time that a peer can have (RFC 4724 section 3: 12 bits of seconds).
const longestRestart = 4095 * time.Second

// forwarding returns for how long the kernel has kept the routes of this host, at least. A host that was started lately
// has kept none, unless its kernel has some: of a manxd before this one, or of calico-node.
func forwarding(
	uptime func() time.Duration, routes func(...kernel.Table) ([]kernel.Route, error),
) func() time.Duration {
	if uptime() < longestRestart {
		list, err := routes()
		ours := func(r kernel.Route) bool {
			return r.Protocol == kernel.ProtocolCalico || r.Protocol == kernel.ProtocolBIRD
		}
		if err == nil && !slices.ContainsFunc(list, ours) {
			return uptime
		}
	}
	return func() time.Duration { return math.MaxInt64 }
}

// uptime is the time since the start of the kernel, with that in which the host slept.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return math.MaxInt64
	}
	return time.Duration(t.Nano())
}
