package filter

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// unfiltered ends the connections that came in while another program had removed the rules: they are established, and
// policy would not see them again. The steps are one read of the kernel's table beside the loop, the decision about
// each connection in slices, since it needs the rules, and the deletion beside the loop.
type unfiltered struct {
	entries conntrack.Entries // nil: connections stay
	loop    *reconcile.Loop

	mu      sync.Mutex
	reads   int // of the kernel's table that are to come
	busy    bool
	check   []conntrack.Connection // about which nothing is decided yet
	denied  []conntrack.Connection
	repairs []reconcile.Repair
}

// readsAfter is how often the table is read after rules were away: a packet that was on its way meanwhile may enter its
// connection during the first read.
const readsAfter = 2

// checkSlice bounds how many connections are decided about in one Flush.
const checkSlice = 500

// other is the interface of packets that come from, or go to, no workload of this node.
const other = "uplink"

// step begins or continues the work. lost reports whether rules were away since the last call.
func (u *unfiltered) step(lost bool, c *policy.Calculator, r model.Reader, node string) {
	if u.entries == nil {
		return
	}
	if work := u.next(lost, c, r, node); work != nil {
		u.loop.Go(work)
	}
}

// next does what needs the rules, and returns what goes on beside the loop, nil if nothing does.
func (u *unfiltered) next(lost bool, c *policy.Calculator, r model.Reader, node string) func() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if lost {
		u.reads = readsAfter
	}
	switch {
	case u.busy:
		return nil
	case len(u.check) > 0:
		local, own := places(c, r, node)
		n := min(checkSlice, len(u.check))
		for _, x := range u.check[:n] {
			if denies(c.Table(), x, local, own) {
				u.denied = append(u.denied, x)
			}
		}
		if u.check = u.check[n:]; len(u.check) > 0 || len(u.denied) == 0 {
			return nil
		}
		u.busy = true
		return u.end
	case u.reads > 0:
		u.reads, u.busy = u.reads-1, true
		local, _ := places(c, r, node)
		return func() { u.list(local) }
	}
	return nil
}

// waits reports whether step should be called soon.
func (u *unfiltered) waits() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.busy && (u.reads > 0 || len(u.check) > 0)
}

func (u *unfiltered) list(local map[netip.Addr]string) {
	list, err := u.entries.ListConnections(func(x conntrack.Connection) bool {
		return local[x.Source] != "" || local[x.Destination] != ""
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy, u.check = false, list
	u.report(err)
}

func (u *unfiltered) end() {
	n, err := u.entries.EndConnections(u.denied)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy, u.denied = false, nil
	if n > 0 {
		u.repairs = append(u.repairs, reconcile.Repair{Key: "connections", Wanted: "none",
			Found: fmt.Sprintf("%d connections of workloads that policy denies: they came in without rules", n)})
	}
	u.report(err)
}

func (u *unfiltered) report(err error) {
	if err != nil {
		u.repairs = append(u.repairs, reconcile.Repair{Key: "connections", Wanted: "to end those that policy denies",
			Found: fmt.Sprintf("connections that came in without rules go on: %v", err)})
	}
}

func (u *unfiltered) take() []reconcile.Repair {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.repairs
	u.repairs = nil
	return list
}

// places returns the interfaces of this node's workloads by address, and the node's own addresses.
func places(c *policy.Calculator, r model.Reader, node string) (local map[netip.Addr]string, own map[netip.Addr]bool) {
	local, own = map[netip.Addr]string{}, map[netip.Addr]bool{}
	for _, w := range model.AllWorkloads(r) {
		if w.Node != node || !c.IsWorkload(w.Interface) {
			continue
		}
		for _, p := range w.Networks {
			local[p.Addr()] = w.Interface
		}
	}
	for _, list := range c.Interfaces() {
		for _, a := range list {
			own[a] = true
		}
	}
	return local, own
}

// denies reports whether rules drop the first packet of a connection. Those that the host itself began are none of
// policy's.
func denies(t *ruleset.Table, x conntrack.Connection, local map[netip.Addr]string, own map[netip.Addr]bool) bool {
	if own[x.Source] {
		return false
	}
	p := ruleset.Packet{Source: x.Source, Destination: x.Destination, Protocol: x.Protocol, SourcePort: x.SourcePort,
		DestinationPort: x.DestinationPort, ICMPType: x.ICMPType, ICMPCode: x.ICMPCode, State: ruleset.ConnNew}
	interfaceOf := func(a netip.Addr) string {
		if name := local[a]; name != "" {
			return name
		}
		return other
	}
	p.In, p.Out = interfaceOf(x.Source), interfaceOf(x.Destination)
	h := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return own[a] }}
	if own[x.Destination] {
		return !t.EvalInput(h, p, nil).Accepted()
	}
	return !t.EvalForward(h, p, nil).Accepted()
}
