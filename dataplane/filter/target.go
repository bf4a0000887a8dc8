package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/forget"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/nft"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Config has the parameters of a Target.
type Config struct {
	Rules nftables.Rules
	Links kernel.Links // nil: the host has no interfaces that matter
	// Connections deletes connections with outdated translation; nil: they stay.
	Connections conntrack.Connections
	// Entries ends connections that came in while the rules were away; nil: they stay.
	Entries conntrack.Entries
	Policy  policy.Config
	Loop    *reconcile.Loop // that calls Flush
	Logger  *zap.Logger
	// Programmed is called in each Flush that leaves the kernel with all that is wanted, and gets how many transactions
	// that took. It must not wait.
	Programmed func(transactions int)
}

// Target keeps the packet filter as the state requires. Not safe for concurrent use.
type Target struct {
	links      kernel.Links
	log        *zap.Logger
	calculator *policy.Calculator
	node       string
	table      *nft.Target
	programmed func(transactions int)

	reader    model.Reader  // the newest
	all       bool          // everything in it is to be looked at
	changed   []model.Key   // these are
	haveLinks bool          // the host's interfaces have been listed
	linksDue  bool          // they have to be listed again
	tunnelDue bool          // since the device of an overlay may have changed
	ownDue    bool          // since this host's addresses may have changed
	linksErr  error         // why they could not
	tried     bool          // since the last Flush began
	moved     bool          // they were listed since the last computation
	pause     time.Duration // before the next Flush
	reached   model.Reader  // that the kernel's rules are computed from, large policies of namespaces perhaps not yet
	complete  model.Reader  // that all of the kernel's rules are computed from
	sliceAt   time.Time     // when the next slice of large policies may be computed
	fullAt    time.Time     // when policies with too many elements are computed again
	fresh     bool          // a workload of this node has another version than in the last one that was reached

	missing    []string // why rules do not log or count as they should
	unfiltered unfiltered
	translated forget.Queue // floating addresses that have another owner now or are gone
}

// New makes a Target, after the kernel has checked which logs rules can write and whether they can share a counter.
func New(c Config) *Target {
	missing := c.withoutExtras()
	table := nft.New(c.Rules, time.Now)
	if !c.Policy.NoNamedCounters {
		table.Refused = policy.DroppedRefused.Counter()
	}
	return &Target{
		links: c.Links, log: c.Logger, calculator: policy.New(c.Policy), table: table,
		programmed: c.Programmed, haveLinks: c.Links == nil, node: c.Policy.Node, linksDue: c.Links != nil,
		missing:    missing,
		unfiltered: unfiltered{entries: c.Entries, loop: c.Loop},
		// the kernel translates each connection as it did at its beginning
		translated: forget.Queue{Connections: c.Connections, Loop: c.Loop, Now: time.Now,
			Trouble: "connections of floating addresses go on to the workloads that had them"},
	}
}

// Name is the target's in logs.
func (t *Target) Name() string { return "nft" }

// SetState takes over changed objects and computes the rules.
func (t *Target) SetState(h *hoststate.Host) {
	t.reader, t.all = h.Reader, t.all || h.All
	t.fresh = t.fresh || h.All || slices.ContainsFunc(h.Changed, t.isOwn)
	if !t.all {
		t.changed = append(t.changed, h.Changed...)
	}
	t.compute()
}

// isOwn reports whether a key is that of a workload of this node.
func (t *Target) isOwn(k model.Key) bool {
	if k.Kind != model.KindWorkloadEndpoint {
		return false
	}
	w := t.reader.Get(k).Workload()
	return w != nil && w.Node == t.node
}

// Handle takes over kernel events: host endpoints depend on the host's interfaces and addresses, and the guard of the
// overlays on whether their devices are up.
func (t *Target) Handle(events []kernel.Event) {
	if t.links == nil {
		return
	}
	for i := range events {
		e := &events[i]
		t.linksDue = t.linksDue || e.AboutLinks()
		t.tunnelDue = t.tunnelDue || e.Type == kernel.EventResync || overlay.IsDevice(e.Link.Name)
		if e.Type == kernel.EventAddress || e.Type == kernel.EventAddressGone {
			a := e.Address.Prefix.Addr() // interfaces of workloads have link-local ones
			t.ownDue = t.ownDue || a.Is6() && !a.IsLinkLocalUnicast()
		}
	}
}

// SetLimited is SetLimited of policy.Calculator; the next Flush applies it.
func (t *Target) SetLimited(limits []policy.Limit) {
	t.calculator.SetLimited(limits)
	t.moved = true
}

// Resync makes the next Flush compare with all that is in the kernel.
func (t *Target) Resync() { t.table.Resync() }

// Retry makes the next Flush try all that failed without waiting for its time, and compare with all that is in the
// kernel.
func (t *Target) Retry() {
	t.table.Retry()
	t.translated.Retry()
	t.linksDue = t.links != nil
}

// compute brings the desired table up to date. Before the host's interfaces are known nothing is computed: rules
// without host endpoints would open ports that an earlier run protects.
func (t *Target) compute() {
	if t.linksDue && !t.tried && t.needsLinks() {
		t.readLinks()
	}
	if !t.haveLinks || t.reader == nil {
		return
	}
	if !t.calculator.Waiting() { // the change itself comes first
		defer func() { t.sliceAt = time.Now().Add(time.Millisecond) }()
	}
	switch {
	case t.all:
		t.calculator.Update(t.reader)
	case len(t.changed) > 0:
		t.calculator.Update(t.reader, t.changed...)
	case t.moved:
		t.calculator.Settle()
	}
	clear(t.changed)
	t.all, t.changed, t.moved = false, t.changed[:0], false
}

// needsLinks reports whether rules depend on the host's interfaces. Those of workloads alone do not, so that an
// interface that comes with a workload does not have all others listed.
func (t *Target) needsLinks() bool {
	return !t.haveLinks || t.all || t.tunnelDue || t.ownDue || t.calculator.HasHosts() ||
		slices.ContainsFunc(t.changed, func(k model.Key) bool { return k.Kind == model.KindHostEndpoint })
}

// RefreshLinks lists the host's interfaces if they may have changed since they were listed.
func (t *Target) RefreshLinks() {
	if t.linksDue {
		t.readLinks()
	}
}

// Flush applies the rules to the kernel. It returns how many transactions the kernel accepted and how many parts it
// refused; the error covers these, too.
func (t *Target) Flush() (transactions, refused int, err error) {
	t.compute()
	t.tried = false
	if !t.haveLinks || t.reader == nil {
		return 0, 0, nil
	}
	start := time.Now()
	worked := t.computeSlice(start)
	result, pause := t.table.Flush(t.calculator.Table())
	t.pause = pause
	if worked {
		t.sliceAt = time.Now().Add(time.Since(start)) // other work has at least half of the time
	}
	t.translated.Add(t.calculator.Retranslated()...)
	if result.Err != nil {
		return result.Transactions, result.Refused, result.Err
	}
	t.reached = t.reader
	if !t.calculator.Waiting() {
		t.complete = t.reader
	}
	t.translated.Flush()
	t.pause = t.translated.Next(t.pause)
	t.unfiltered.step(t.table.TakeLost(), t.calculator, t.reader, t.node)
	if t.unfiltered.waits() {
		t.pause = time.Millisecond
	}
	if t.programmed != nil {
		t.programmed(result.Transactions)
	}
	t.fresh = false
	if result.Refused > 0 {
		r := t.table.Status().Refused[0]
		err = fmt.Errorf("%d parts of the rules are refused by the kernel, for instance %s (%s): %s",
			result.Refused, r.Object, r.Comment, r.Reason)
	}
	return result.Transactions, result.Refused, err
}

// linksRetry is how soon interfaces are listed again after that has failed.
const linksRetry = time.Second

// Next returns how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	if t.linksDue && t.needsLinks() && (t.pause == 0 || t.pause > linksRetry) {
		return linksRetry
	}
	pause := t.pause
	if t.calculator.Waiting() {
		pause = min(pause, time.Until(t.sliceAt))
	} else if t.calculator.HasFull() {
		pause = min(pause, time.Until(t.fullAt))
	}
	return max(pause, time.Millisecond)
}

// reconsider is the time between two computations of policies with too many elements.
const reconsider = time.Minute

// computeSlice computes a part of the large policies of namespaces if it is time to, and reports whether it did.
func (t *Target) computeSlice(now time.Time) bool {
	switch {
	case t.calculator.Waiting():
		if now.Before(t.sliceAt) {
			return false
		}
		t.calculator.Continue()
	case t.calculator.HasFull():
		if t.fullAt.IsZero() {
			t.fullAt = now.Add(reconsider)
		}
		if now.Before(t.fullAt) {
			return false
		}
		t.fullAt = now.Add(reconsider)
		t.calculator.Reconsider()
	default:
		t.fullAt = time.Time{}
		return false
	}
	return true
}

// readLinks passes the host's interfaces to the calculator; a failure is logged once.
func (t *Target) readLinks() {
	t.tried = true
	links, err := t.links.ListLinks()
	addresses, aerr := t.links.ListAddresses()
	if err := errors.Join(err, aerr); err != nil {
		if t.linksErr == nil {
			t.log.Warn("the host's interfaces cannot be listed, host endpoints stay as they were, trying again",
				zap.Error(err))
		}
		t.linksErr = err
		return
	}
	t.haveLinks, t.linksDue, t.tunnelDue, t.ownDue, t.linksErr, t.moved = true, false, false, false, nil, true
	names, list, tunnels := map[int]string{}, map[string][]netip.Addr{},
		map[string]policy.TunnelDevice{}
	for _, l := range links {
		names[l.Index], list[l.Name] = l.Name, nil
		if overlay.IsDevice(l.Name) {
			tunnels[l.Name] = policy.TunnelDevice{Up: l.Up, Port: l.VXLAN.Port, VNI: l.VXLAN.VNI}
		}
	}
	for _, x := range addresses {
		if name := names[x.Link]; name != "" {
			list[name] = append(list[name], x.Prefix.Addr())
		}
	}
	t.calculator.SetInterfaces(list)
	t.calculator.SetTunnels(tunnels)
}
