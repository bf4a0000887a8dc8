package dataplane

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/filter"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/nft"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// PolicyConfig has the parameters of a PolicyAgent.
type PolicyConfig struct {
	Rules nftables.Rules
	Links kernel.Links
	// Connections deletes connections with outdated translation; nil: they stay.
	Connections conntrack.Connections
	// Entries ends connections that came in while the rules were away; nil: they stay.
	Entries conntrack.Entries
	Policy  policy.Config
	Logger  *zap.Logger
	// Programmed is called with the time that each change took from its arrival to the kernel, if set.
	Programmed func(time.Duration)
	// Repaired is Repaired of Config.
	Repaired func(target string, list []reconcile.Repair, more int)
	// Reached is called with the endpoints whose policy is in the kernel, each time that may have changed, if set. It
	// must not block.
	Reached func(endpointstatus.Policy)
}

// PolicyAgent is the Agent of the host's packet filter, apart from routes: neither waits for the other.
type PolicyAgent struct {
	*Agent
	rules  nftables.Rules
	target *filter.Target

	latency    func(time.Duration)
	report     func(endpointstatus.Policy)
	interfaces map[string]bool // those with rules in the kernel, as reported
	reached    chan struct{}   // closed and replaced when the kernel has the desired state
}

// NewPolicy makes a PolicyAgent, after the kernel has checked which logs rules can write; Run starts it.
func NewPolicy(c PolicyConfig) *PolicyAgent {
	a := &PolicyAgent{rules: c.Rules, latency: c.Programmed, report: c.Reached, reached: make(chan struct{})}
	loop := reconcile.NewLoop()
	a.target = filter.New(filter.Config{Rules: c.Rules, Links: c.Links, Connections: c.Connections, Entries: c.Entries,
		Policy: c.Policy,
		Loop:   loop, Logger: c.Logger, Programmed: a.programmed})
	a.Agent = &Agent{
		targets: []Target{a.target},
		events:  source{a.watch, a.changesUnheard},
		voice: voice{zap.ErrorLevel, "the rules are not as they should be, trying again",
			"the rules are as they should be"},
		log: c.Logger, now: time.Now, loop: loop,
		repaired: c.Repaired, host: hoststate.NewStateOnly(), problems: map[string]string{},
	}
	return a
}

// SetState is that of Agent. The last state of an earlier run has no policies: the rules of that run stay as they are.
func (a *PolicyAgent) SetState(s State) {
	if !s.Last {
		a.Agent.SetState(s)
	}
}

// watch follows changes of the table by others.
func (a *PolicyAgent) watch(ctx context.Context, works func()) error {
	return a.rules.WatchRules(ctx, func() {
		works()
		a.Resync()
	})
}

func (a *PolicyAgent) changesUnheard(err error) {
	if err == nil {
		a.log.Info("changes of the rules by other programs are reported again")
		return
	}
	a.log.Warn("changes of the rules by other programs are not reported, trying again", zap.Error(err))
}

// InterfacesChanged reports events of the kernel, of which those about interfaces and their addresses count.
func (a *PolicyAgent) InterfacesChanged(events []kernel.Event) {
	a.addEvents(slices.DeleteFunc(slices.Clone(events), func(e kernel.Event) bool { return !e.AboutLinks() }))
}

// programmed wakes the waiters when the kernel has the whole desired state. The lock is held.
func (a *PolicyAgent) programmed(transactions int) {
	// Interfaces of the host come and go without a change of the rules: then nobody needs to be woken.
	if a.report != nil && (transactions > 0 || a.interfaces == nil || a.target.Fresh()) {
		if transactions > 0 || a.interfaces == nil {
			a.interfaces = map[string]bool{}
			c := a.target.Calculator()
			for name := range c.Workloads() {
				if c.Complete(name) {
					a.interfaces[name] = true
				}
			}
		}
		a.report(endpointstatus.Policy{Reader: a.target.Reached(), Interfaces: a.interfaces})
	}
	close(a.reached)
	a.reached = make(chan struct{})
	if a.latency != nil && transactions > 0 && !a.since.IsZero() {
		a.latency(a.now().Sub(a.since))
	}
}

// PolicyStatus is the state of the packet filter.
type PolicyStatus struct {
	nft.Status
	// Revision of the datastore that is in the kernel.
	Revision int64
	// Endpoints counts the workloads of this node whose rules are in the kernel.
	Endpoints int
	// Policies counts the policies that select endpoints of this node, Selectors those of rules in the table.
	Policies, Selectors int
	// Bad are the objects that cannot be used, with the reason.
	Bad map[model.Key]string
	// Closed are the policies above the budget of their namespace, with the reason.
	Closed map[model.Key]string
	// Ignored are the endpoints of this node at which policies that select them have no effect, with the reason.
	Ignored map[model.Key]string
	// Outdated is why connections go on to the workloads that had their floating addresses, empty if none is known to.
	Outdated string
	// Unprotected is why a workload of this node may be without rules although its interface exists, empty if none is.
	Unprotected string
	// Missing lists the logs and counters that this kernel does not support, and why.
	Missing []string
}

// Status returns the state of the packet filter. Its cost follows the size of the table.
func (a *PolicyAgent) Status() PolicyStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.target.Calculator()
	policies, selectors := c.Active()
	return PolicyStatus{Status: a.target.Status(), Revision: a.revision(), Bad: maps.Collect(c.Bad()),
		Closed: maps.Collect(c.Closed()), Ignored: maps.Collect(c.Ignored()), Outdated: a.target.Outdated(),
		Endpoints: c.WorkloadCount(), Policies: policies, Selectors: selectors, Unprotected: a.target.Unprotected(),
		Missing: a.target.Missing()}
}

// Revision is the datastore's that is in the kernel, for people: it is compared with none of another kind.
func (a *PolicyAgent) Revision() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.revision()
}

func (a *PolicyAgent) revision() int64 {
	if r, ok := a.target.Complete().(interface{ Revision() int64 }); ok {
		return r.Revision()
	}
	return 0
}

// Inspect runs f with the desired table and the calculator while nothing changes. f must not keep them.
func (a *PolicyAgent) Inspect(f func(*policy.Calculator, *ruleset.Table)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.target.RefreshLinks()
	f(a.target.Calculator(), a.target.Calculator().Table())
}

// Reached returns a channel that is closed when the kernel next has the wanted rules.
func (a *PolicyAgent) Reached() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reached
}

// EndpointOf names the workload at an interface as NAMESPACE/NAME, "" if none is known.
func (a *PolicyAgent) EndpointOf(iface string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.target.Calculator().Workload(iface); k != nil {
		return k.Namespace + "/" + k.Name
	}
	return ""
}

// Workloads returns the workloads with rules.
func (a *PolicyAgent) Workloads() []policy.LocalWorkload {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.target.Calculator().LocalWorkloads()
}

// SetLimited sets which workloads get no new connections in a direction.
func (a *PolicyAgent) SetLimited(limits []policy.Limit) {
	a.mu.Lock()
	a.target.SetLimited(limits)
	a.mu.Unlock()
	a.put(func(b *batch) { b.woken = true })
}

// DroppedFragments returns how many fragments of each workload, by its interface, were dropped since its rules were
// written.
func (a *PolicyAgent) DroppedFragments() (map[string]uint64, error) {
	dropped, ids, interfaces := map[string]uint64{}, map[string][]string{}, map[string]string{}
	a.mu.Lock()
	c := a.target.Calculator()
	for iface := range c.Workloads() {
		if chain, rules := c.FragmentDrops(iface); len(rules) > 0 {
			ids[chain], interfaces[chain] = rules, iface
		}
	}
	a.mu.Unlock()
	counters, err := a.rules.ChainCounters(slices.Collect(maps.Keys(ids)))
	for chain, list := range counters {
		for _, counter := range list {
			if slices.Contains(ids[chain], counter.ID) {
				dropped[interfaces[chain]] += counter.Packets
			}
		}
	}
	return dropped, err
}

// Dropped returns how many packets the rules have dropped since the table was made, by reason. Its cost is that of the
// reasons.
func (a *PolicyAgent) Dropped() (map[policy.Reason]uint64, error) {
	counters, err := a.rules.NamedCounters()
	dropped := map[policy.Reason]uint64{}
	for _, why := range policy.Reasons {
		dropped[why] = counters[why.Counter()].Packets
	}
	return dropped, err
}

// Counters returns the values of the rules' counters.
func (a *PolicyAgent) Counters() (map[string][]nftables.Counter, error) {
	return a.rules.RuleCounters()
}

// Retry is requestRetry of the Agent, whose one part is policy.
func (a *PolicyAgent) Retry(ctx context.Context) (Retried, error) {
	list, err := a.requestRetry(ctx)
	if err != nil {
		return Retried{}, err
	}
	return list[0], nil
}
