package neighbour

import (
	"fmt"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// remembered is how long an overflow stays a fact to report.
const remembered = 10 * time.Minute

// overflow follows how often the tables were full.
type overflow struct {
	known bool
	count kernel.Overflows
	// since and last are when the overflows that are reported were first and last seen, of IPv4 and of IPv6.
	since, last [2]time.Time
	refused     [2]uint64
}

// read takes over the kernel's counters.
func (o *overflow) read(k Kernel, now time.Time) {
	fresh, err := k.NeighbourOverflows()
	if err != nil {
		return // a network namespace other than the host's does not show them
	}
	for i := range fresh {
		if now.Sub(o.last[i]) > remembered {
			o.since[i], o.refused[i] = time.Time{}, 0
		}
		if o.known && fresh[i] > o.count[i] {
			o.refused[i] += fresh[i] - o.count[i]
			if o.last[i] = now; o.since[i].IsZero() {
				o.since[i] = now
			}
		}
	}
	o.known, o.count = true, fresh
}

// Notices report tables that were full lately.
func (t *Target) Notices() []reconcile.Notice {
	var list []reconcile.Notice
	for i, family := range [2]string{"ipv4", "ipv6"} {
		if o := &t.overflow; !o.since[i].IsZero() && t.now().Sub(o.last[i]) <= remembered {
			name := "net/" + family + "/neigh/default/gc_thresh3"
			list = append(list, reconcile.Notice{Subject: name, Since: o.since[i], Text: fmt.Sprintf(
				"the kernel's neighbour table of %s, which all network namespaces of this host share, was full: "+
					"%d new neighbours were refused. Workloads and next hops have entries of their own, others are "+
					"unreachable meanwhile. Raise %s, or find who fills the table: ip neigh show nud all, also in "+
					"the namespaces of workloads", family, o.refused[i], name)})
		}
	}
	return list
}
