package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/nft"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// PolicyAgent keeps the host's packet filter as the datastore wants it, apart from routes: neither waits for the other. Its
// methods are safe for concurrent use. Nothing is changed before the first SetState, and nothing is undone when Run ends.
type PolicyAgent struct {
	rules kernel.Rules
	links kernel.Links
	log   *zap.Logger
	now   func() time.Time
	loop  *reconcile.Loop

	inboxMu sync.Mutex
	inbox   policyBatch

	mu         sync.Mutex // guards what follows: the loop works, or somebody looks
	calculator *policy.Calculator
	target     *nft.Target
	reader     model.Reader
	haveLinks  bool // the host's interfaces have been listed
	linksDue   bool // they could not be listed again
	problem    string
	reached    chan struct{} // closed and replaced when the kernel has something new
	inSync     bool
	revision   int64
	latency    func(time.Duration)

	missingLogs []string // why rules do not log as they should

	connections kernel.Connections
	stale       []netip.Addr // floating addresses whose connections are to be forgotten
	forgetting  bool
	working     sync.WaitGroup
}

// policyBatch is what came in since the last step.
type policyBatch struct {
	reader  model.Reader
	all     bool
	changed []model.Key
	links   bool // may have changed
	resync  bool
	retries []chan<- Retried // who waits for what comes of trying again
	since   time.Time        // when the first of it came
}

// PolicyConfig is what a PolicyAgent needs.
type PolicyConfig struct {
	Rules kernel.Rules
	Links kernel.Links
	// Connections forgets those that were translated as is not wanted any more; nil for nobody.
	Connections kernel.Connections
	Policy      policy.Config
	Logger      *zap.Logger
	// Programmed is told how long each change took from its arrival to the kernel, if set.
	Programmed func(time.Duration)
}

// NewPolicy makes a PolicyAgent, after it has asked the kernel what rules can log; Run starts it.
func NewPolicy(c PolicyConfig) *PolicyAgent {
	missing := c.withoutLogs()
	return &PolicyAgent{
		rules: c.Rules, links: c.Links, log: c.Logger, now: time.Now, loop: reconcile.NewLoop(),
		calculator: policy.New(c.Policy), target: nft.New(c.Rules, time.Now), reached: make(chan struct{}), latency: c.Programmed,
		connections: c.Connections, missingLogs: missing,
	}
}

// SetState hands over the newest state of the datastore. changed names the objects that differ from the state before; without
// any, everything is looked at.
func (a *PolicyAgent) SetState(r model.Reader, changed ...model.Key) {
	a.put(func(b *policyBatch) {
		b.all = b.all || len(changed) == 0
		b.reader, b.changed = r, append(b.changed, changed...)
	})
}

// Unchanged hands over a state that differs from the one before in its revision only: what changed meanwhile has changed back.
func (a *PolicyAgent) Unchanged(r model.Reader) { a.put(func(b *policyBatch) { b.reader = r }) }

// LookAtInterfaces tells that interfaces of the host, or their addresses, may have changed.
func (a *PolicyAgent) LookAtInterfaces() { a.put(func(b *policyBatch) { b.links = true }) }

// Resync makes the agent compare with all that is in the kernel.
func (a *PolicyAgent) Resync() { a.put(func(b *policyBatch) { b.resync = true }) }

func (a *PolicyAgent) put(f func(*policyBatch)) {
	a.inboxMu.Lock()
	if a.inbox.since.IsZero() {
		a.inbox.since = a.now()
	}
	f(&a.inbox)
	a.inboxMu.Unlock()
	a.loop.Trigger()
}

// Run works until ctx ends; it leaves everything in place.
func (a *PolicyAgent) Run(ctx context.Context) error {
	var watcher sync.WaitGroup
	watcher.Go(func() { a.watch(ctx) })
	defer watcher.Wait()
	defer a.working.Wait()
	a.loop.Run(ctx, a.step)
	return nil
}

// watch hears when somebody else changes the table.
func (a *PolicyAgent) watch(ctx context.Context) {
	tell := func(err error) {
		if err == nil {
			a.log.Info("changes that others make to the rules are heard again")
			return
		}
		a.log.Warn("changes that others make to the rules are not heard, trying again", zap.Error(err))
	}
	keepWatching(ctx, a.loop.After, tell, func(works func()) error {
		return a.rules.WatchRules(ctx, func() {
			works()
			a.Resync()
		})
	})
}

// step takes what came in and brings the kernel there. It returns when to be called again at the latest.
func (a *PolicyAgent) step() time.Duration {
	if !a.linked() {
		return time.Second
	}
	a.inboxMu.Lock()
	b := a.inbox
	a.inbox = policyBatch{}
	a.inboxMu.Unlock()

	a.mu.Lock()
	defer a.mu.Unlock()
	links := b.links || a.linksDue
	if links {
		a.readLinks()
	}
	if b.resync {
		a.target.Resync()
	}
	if b.reader == nil && a.reader == nil {
		refuseRetry(b.retries)
		return a.untilLinks(0)
	}
	retried := a.retry(b.retries)
	all := b.all || b.reader != nil && a.reader == nil
	if b.reader != nil {
		a.reader = b.reader
	}
	switch {
	case all:
		a.calculator.Update(a.reader)
	case len(b.changed) > 0:
		a.calculator.Update(a.reader, b.changed...)
	case links:
		a.calculator.Settle()
	}
	a.takeResync()
	result, pause := a.target.Flush(a.calculator.Table())
	a.report(result)
	retried()
	a.stale = append(a.stale, a.calculator.Retranslated()...)
	if a.inSync = result.Err == nil; a.inSync {
		a.forgetTranslations()
		if r, ok := a.reader.(interface{ Revision() int64 }); ok {
			a.revision = r.Revision()
		}
		close(a.reached)
		a.reached = make(chan struct{})
		if a.latency != nil && result.Transactions > 0 && !b.since.IsZero() {
			a.latency(a.now().Sub(b.since))
		}
	}
	return a.untilLinks(pause)
}

// linked tells whether the host's interfaces are known. Before, nothing is changed: rules without host endpoints would open what an
// earlier run protects.
func (a *PolicyAgent) linked() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.haveLinks = a.haveLinks || a.links == nil || a.readLinks()
	return a.haveLinks
}

// untilLinks is a pause, but not a long one while the interfaces still have to be listed.
func (a *PolicyAgent) untilLinks(pause time.Duration) time.Duration {
	if a.linksDue && (pause == 0 || pause > time.Second) {
		return time.Second
	}
	return pause
}

// takeResync takes a Resync that came while the calculator worked, at the start the watcher's for instance: what is read
// from the kernel from now on has what was told of, and need not be read twice.
func (a *PolicyAgent) takeResync() {
	a.inboxMu.Lock()
	defer a.inboxMu.Unlock()
	if a.inbox.resync {
		a.inbox.resync = false
		a.target.Resync()
	}
}

// readLinks tells the calculator which interfaces the host has; host endpoints depend on it. It reports whether it could; a failure
// is logged once.
func (a *PolicyAgent) readLinks() bool {
	links, err := a.links.ListLinks()
	addresses, aerr := a.links.ListAddresses()
	if err := errors.Join(err, aerr); err != nil {
		if !a.linksDue {
			a.log.Warn("the host's interfaces cannot be listed, host endpoints stay as they were, trying again", zap.Error(err))
		}
		a.linksDue = true
		return false
	}
	a.linksDue = false
	names, list := map[int]string{}, map[string][]netip.Addr{}
	for _, l := range links {
		names[l.Index], list[l.Name] = l.Name, nil
	}
	for _, x := range addresses {
		if name := names[x.Link]; name != "" {
			list[name] = append(list[name], x.Prefix.Addr())
		}
	}
	a.calculator.SetInterfaces(list)
	return true
}

// report logs a problem once, its end, and what was repaired.
func (a *PolicyAgent) report(result nft.Result) {
	problem := ""
	if result.Err != nil {
		problem = result.Err.Error()
	} else if result.Refused > 0 {
		r := a.target.Status().Refused[0]
		problem = fmt.Sprintf("%d parts of the rules are refused by the kernel, for instance %s (%s): %s", result.Refused, r.Object, r.Comment, r.Reason)
	}
	switch {
	case problem == a.problem:
	case problem == "":
		a.log.Info("the rules are as they should be", zap.String("target", "nft"))
	default:
		a.log.Error("the rules are not as they should be, trying again", zap.String("target", "nft"), zap.String("reason", problem))
	}
	a.problem = problem
	list, more := a.target.Repairs()
	for _, r := range list {
		a.log.Warn("repaired what another program had changed", zap.String("target", "nft"), zap.String("key", r.Key),
			zap.String("found", r.Found), zap.String("wanted", r.Wanted))
	}
	if more > 0 {
		a.log.Warn("repaired more than is told one by one", zap.String("target", "nft"), zap.Int("more", more))
	}
}

// PolicyStatus tells how the packet filter stands.
type PolicyStatus struct {
	nft.Status
	// Revision of the datastore that is in the kernel.
	Revision int64
	// Endpoints are the workloads of this node whose rules are there.
	Endpoints int
	// Bad are the objects that cannot be used, with the reason.
	Bad map[model.Key]string
	// MissingLogs tells what is not logged since this kernel cannot, and why.
	MissingLogs []string
}

// Status tells how the packet filter stands. Its cost follows the size of the table.
func (a *PolicyAgent) Status() PolicyStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return PolicyStatus{Status: a.target.Status(), Revision: a.revision, Bad: maps.Collect(a.calculator.Bad()),
		Endpoints: a.calculator.WorkloadCount(), MissingLogs: a.missingLogs}
}

// Revision is the datastore's that is in the kernel.
func (a *PolicyAgent) Revision() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.revision
}

// Look runs f with the desired table and the calculator while nothing changes. f must not keep them.
func (a *PolicyAgent) Look(f func(*policy.Calculator, *ruleset.Table)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.calculator, a.calculator.Table())
}

// Reached returns a channel that is closed when the kernel next has what is wanted.
func (a *PolicyAgent) Reached() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reached
}

// Programmed tells whether the kernel has the rules of a workload's interface, for both directions.
func (a *PolicyAgent) Programmed(iface string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inSync && a.calculator.HasWorkload(iface)
}

// Workloads lists the interfaces of workloads whose rules are in the kernel, in order; nil while it is not known.
func (a *PolicyAgent) Workloads() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.inSync {
		return nil
	}
	return slices.Sorted(a.calculator.Workloads())
}

// EndpointOf names the workload at an interface as NAMESPACE/NAME, "" if none is known.
func (a *PolicyAgent) EndpointOf(iface string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.calculator.Workload(iface); k != nil {
		return k.Namespace + "/" + k.Name
	}
	return ""
}

// Counters returns what the rules that count have counted.
func (a *PolicyAgent) Counters() (map[string][]kernel.Counter, error) { return a.rules.RuleCounters() }
