package dataplane

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Agent keeps its targets at the desired state, in their order: a target may need those before it. Its methods are safe
// for concurrent use and, but for requestRetry, never wait. Nothing is changed before the first SetState with a
// snapshot, and nothing is undone when Run ends.
type Agent struct {
	targets []Target
	events  source
	voice   voice
	log     *zap.Logger
	now     func() time.Time
	loop    *reconcile.Loop

	repaired func(target string, list []reconcile.Repair, more int) // nil: no call

	inbox inbox

	mu       sync.Mutex // guards the fields below: held by the loop, or by a reader
	host     *hoststate.Host
	onState  func(*hoststate.Host) // called when the state of this host may differ
	since    time.Time             // when the first input of this step came
	burst    reconcile.Burst
	due      []time.Time       // when the next Flush of each target may not wait any more
	problems map[string]string // the last logged ones, by target
	watchErr error
}

// source is where an agent receives changes by others.
type source struct {
	// watch receives changes, calling works on success, until ctx ends or it fails.
	watch func(ctx context.Context, works func()) error
	// failed logs each failure, and nil when watch works again.
	failed func(error)
}

// voice is how an agent reports the problem of a target.
type voice struct {
	level        zapcore.Level
	wrong, right string
}

// SetState passes the newest state to the agent. Its slices are not changed.
func (a *Agent) SetState(s State) {
	a.put(func(b *batch) { b.state, b.hasState = b.state.Then(s), true })
}

// Learn passes changes of BGP routes to the agent: the whole new state of each prefix; one without paths is gone.
// The agent copies the changes; their paths are not changed afterwards.
func (a *Agent) Learn(changes []locrib.Route) {
	if !slices.ContainsFunc(a.targets, learns) {
		return
	}
	a.put(func(b *batch) { b.learned = append(b.learned, changes...) })
}

// addEvents passes kernel events to the agent.
func (a *Agent) addEvents(events []kernel.Event) {
	a.put(func(b *batch) { b.addEvents(events) })
}

// Resync makes the agent compare with the whole actual state.
func (a *Agent) Resync() { a.put(func(b *batch) { b.resync = true }) }

func (a *Agent) put(f func(*batch)) {
	a.inbox.put(a.now(), f)
	a.loop.Trigger()
}

// Run works until ctx ends; it leaves everything in place.
func (a *Agent) Run(ctx context.Context) error {
	var watcher sync.WaitGroup
	watcher.Go(func() {
		keepWatching(ctx, a.loop.After, a.setWatchError, func(works func()) error { return a.events.watch(ctx, works) })
	})
	defer watcher.Wait()
	a.loop.Run(ctx, a.step)
	return nil
}

func (a *Agent) setWatchError(err error) {
	a.events.failed(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchErr = err
}

// step takes the inputs and applies them to the host. It returns when to be called again at the latest, 0 for never.
func (a *Agent) step() time.Duration {
	if a.burst.Continues(a.now()) && !a.inbox.full() { // one system call for many changes
		<-a.loop.After(linger)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.inbox.take()
	a.since = b.since
	all := !b.onlyLearned()
	if b.hasState {
		a.setState(b.state)
	}
	a.learn(b.learned)
	a.inbox.giveBack(b.learned)
	a.handle(b.events, b.resync)
	if !a.host.Known() {
		refuseRetry(b.retries)
		return 0
	}
	retried := a.retry(b.retries)
	if b.hasState {
		// Events received while the targets took the state, at the start of the watch for instance, need not be read
		// twice.
		events, resync := a.inbox.takeKernel()
		a.handle(events, resync)
		if b.onlyState() && a.host.Foreign && len(events) == 0 && !resync && !a.isDue() {
			return a.untilDue()
		}
	}
	next := a.flush(all)
	retried()
	return next
}

func (a *Agent) setState(s State) {
	a.host.Take(s)
	if !a.host.Known() {
		return
	}
	for _, t := range a.targets {
		t.SetState(a.host)
	}
	if a.host.Concerned && a.onState != nil {
		a.onState(a.host)
	}
}

// learns reports whether a target follows BGP.
func learns(t Target) bool {
	_, ok := t.(Learner)
	return ok
}

func (a *Agent) learn(routes []locrib.Route) {
	if len(routes) == 0 {
		return
	}
	for _, t := range a.targets {
		if l, ok := t.(Learner); ok {
			l.Learn(routes)
		}
	}
}

func (a *Agent) handle(events []kernel.Event, resync bool) {
	for _, t := range a.targets {
		if len(events) > 0 {
			t.Handle(events)
		}
		if resync {
			t.Resync()
		}
	}
}

// flush applies the targets' changes, in their order: all of them, or those alone that have learned routes, if no other
// change waits.
func (a *Agent) flush(all bool) time.Duration {
	now := a.now()
	if a.due == nil {
		a.due = make([]time.Time, len(a.targets))
	}
	for i, t := range a.targets {
		l, ok := t.(Learner)
		all = all || !now.Before(a.due[i]) || ok && !l.OnlyLearned()
	}
	done := 0
	for i, t := range a.targets {
		if !all && !learns(t) {
			continue
		}
		steps, _, err := t.Flush()
		done += steps
		a.report(t.Name(), cmp.Or(err, t.Health().Problem))
		a.reportRepairs(t)
		a.due[i] = a.now().Add(t.Next())
	}
	a.burst.Record(a.now(), done)
	return a.untilDue()
}

// isDue reports whether the time of a target has come, or none has been flushed yet.
func (a *Agent) isDue() bool {
	return a.due == nil || !a.now().Before(slices.MinFunc(a.due, time.Time.Compare))
}

// untilDue returns how long the next flush may wait.
func (a *Agent) untilDue() time.Duration {
	return max(slices.MinFunc(a.due, time.Time.Compare).Sub(a.now()), time.Millisecond)
}

// reportRepairs logs the undone changes by others.
func (a *Agent) reportRepairs(t Target) {
	list, more := t.Repairs()
	if len(list) > 0 && a.repaired != nil {
		a.repaired(t.Name(), list, more)
	}
	for _, r := range list {
		a.log.Warn("repaired what another program had changed", zap.String("target", t.Name()),
			zap.String("key", r.Key),
			zap.String("found", cmp.Or(r.Found, "nothing")), zap.String("wanted", cmp.Or(r.Wanted, "nothing")))
	}
	if more > 0 {
		a.log.Warn("repaired more objects than are logged one by one", zap.String("target", t.Name()),
			zap.Int("more", more))
	}
}

// report logs a problem once, and its end.
func (a *Agent) report(target string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if a.problems[target] == problem {
		return
	}
	if problem != "" {
		a.log.Log(a.voice.level, a.voice.wrong, zap.String("target", target), zap.String("reason", problem))
	} else {
		a.log.Info(a.voice.right, zap.String("target", target))
	}
	a.problems[target] = problem
}

// health returns the health of the parts in the order of their targets, without those that keep no object at present.
func (a *Agent) health() []reconcile.Health {
	var list []reconcile.Health
	for _, t := range a.targets {
		h := t.Health()
		i := slices.IndexFunc(list, func(o reconcile.Health) bool { return o.Part == h.Part })
		switch {
		case h.Part == "":
		case i < 0:
			list = append(list, h)
		default:
			list[i].Failures += h.Failures
			list[i].Problem = cmp.Or(list[i].Problem, h.Problem)
		}
	}
	return list
}

func (a *Agent) notices() []Notice {
	var list []Notice
	for _, t := range a.targets {
		list = slices.Concat(list, t.Notices())
	}
	return list
}

// Objects returns the objects of the targets that list theirs, or of the one with a name; empty: of all.
func (a *Agent) Objects(target string) []Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []Object
	for _, t := range a.targets {
		if l, ok := t.(lister); ok && (target == "" || target == t.Name()) {
			for _, r := range l.Rows() {
				list = append(list, Object{Target: t.Name(), Row: r})
			}
		}
	}
	return list
}

// ObjectCounts returns, for each of these targets, how many objects are in each phase.
func (a *Agent) ObjectCounts() map[string]map[reconcile.Phase]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := map[string]map[reconcile.Phase]int{}
	for _, t := range a.targets {
		if l, ok := t.(lister); ok {
			counts[t.Name()] = l.Counts()
		}
	}
	return counts
}
