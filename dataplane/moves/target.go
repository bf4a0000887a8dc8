package moves

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/announce"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// Kernel has the kernel calls of a Target.
type Kernel interface {
	announce.Announcements
	ListLinks() ([]kernel.Link, error)
	ListRoutes(...kernel.Table) ([]kernel.Route, error)
}

// Config has the parameters of a Target.
type Config struct {
	Kernel Kernel
	Now    func() time.Time
	Logger *zap.Logger
	// Wake makes the agent call Flush soon.
	Wake func()
	// Changed is called with the phases of all workloads that move when they have changed. It must not block.
	Changed func(map[model.Key]livemigration.Phase)
}

// settle is liveMigrationRouteConvergenceTime of FelixConfiguration if it is not set.
const settle = 30 * time.Second

// idle is the interval between flushes without work, and retryAfter that after a failure to hear an interface.
const idle, retryAfter = time.Hour, 10 * time.Second

// Target keeps the phases of the workloads of this host that move, and hears those that arrive. Not safe for concurrent
// use.
type Target struct {
	config  Config
	tracker livemigration.Tracker
	own     map[model.Key]*model.Workload // those that move
	hearing map[model.Key]hearing
	failed  map[model.Key]error // why a workload is not heard
	retry   time.Time
	started bool // there has been a state
	clean   bool // the rules of an earlier process are removed

	mu    sync.Mutex // guards the field below
	heard []model.Key
}

// hearing is that of one workload.
type hearing struct {
	link      int
	addresses []netip.Addr
	stop      func()
}

// New makes a Target.
func New(c Config) *Target {
	return &Target{config: c, hearing: map[model.Key]hearing{}, failed: map[model.Key]error{}}
}

// Name is the target's in logs.
func (t *Target) Name() string { return "live-migration" }

// SetState takes over the roles of this host's workloads.
func (t *Target) SetState(h *hoststate.Host) {
	if !h.Concerned || h.Last {
		return
	}
	t.tracker.Settle = settle
	if d := h.Felix.LiveMigrationRouteConvergenceTime; d != nil && d.Duration >= 0 {
		t.tracker.Settle = d.Duration
	}
	roles := livemigration.Roles(h.Reader, h.Usable())
	t.own = map[model.Key]*model.Workload{}
	for k, w := range h.Usable() {
		if roles[k] != 0 || t.tracker.Phase(k) != livemigration.None {
			t.own[k] = w
		}
	}
	runs := t.routed
	if t.started { // one with an address of its own may have a route of its plugin
		runs = func(model.Key) bool { return false }
	}
	t.started = true
	changed := t.tracker.Set(t.config.Now(), roles, runs)
	changed = t.tracker.Remove(func(k model.Key) bool { return t.own[k] != nil }) || changed
	maps.DeleteFunc(t.own, func(k model.Key, _ *model.Workload) bool {
		return t.tracker.Phase(k) == livemigration.None // it moved long ago
	})
	t.changed(changed)
}

// routed reports whether the kernel has a route to a workload: then an earlier run of this process saw it arrive. CNI
// plugins, also Calico's, make none to a pod to which a machine moves with its address. An error counts as none, so
// that its packets still go where it may run.
func (t *Target) routed(k model.Key) bool {
	links, err := t.config.Kernel.ListLinks()
	if err != nil {
		return false
	}
	routes, err := t.config.Kernel.ListRoutes()
	if err != nil {
		return false
	}
	for _, l := range links {
		for _, r := range routes {
			if l.Name == t.own[k].Interface && len(r.NextHops) == 1 && r.NextHops[0].Link == l.Index &&
				has(t.own[k], r.Dst) {
				return true
			}
		}
	}
	return false
}

func has(w *model.Workload, p netip.Prefix) bool {
	for _, n := range w.Networks {
		if n.Masked() == p {
			return true
		}
	}
	return false
}

// changed reports new phases.
func (t *Target) changed(changed bool) {
	if !changed {
		return
	}
	phases := t.tracker.Phases()
	if t.config.Changed != nil {
		t.config.Changed(phases)
	}
	for k, phase := range phases {
		t.config.Logger.Info("a virtual machine moves", zap.String("pod", k.Namespace+"/"+t.own[k].Pod),
			zap.String("phase", phase.String()))
	}
}

// Handle takes over kernel events: the interface of a workload may come after its endpoint.
func (t *Target) Handle(events []kernel.Event) {
	if len(t.own) > 0 && slices.ContainsFunc(events, kernel.Event.AboutLinks) {
		t.retry = time.Time{}
	}
}

// Resync implements the agent's Target.
func (t *Target) Resync() { t.retry = time.Time{} }

// Retry implements the agent's Target.
func (t *Target) Retry() { t.retry = time.Time{} }

// Flush takes note of announcements and of the time, and hears the workloads that arrive.
func (t *Target) Flush() (steps, failures int, err error) {
	now := t.config.Now()
	t.mu.Lock()
	heard := t.heard
	t.heard = nil
	t.mu.Unlock()
	changed := false
	for _, k := range heard {
		changed = t.tracker.Heard(k) || changed
	}
	changed = t.tracker.Expire(now) || changed
	t.changed(changed)
	if !t.clean {
		err = t.config.Kernel.Forget()
		t.clean = true // they only count
	}
	steps, failures = t.hear(now)
	return steps, failures, err
}

// hear begins to hear the workloads that arrive, and ends to hear others.
func (t *Target) hear(now time.Time) (steps, failures int) {
	arrives := func(k model.Key) bool { return t.tracker.Phase(k) == livemigration.Arriving }
	for k, h := range t.hearing {
		if !arrives(k) {
			h.stop()
			delete(t.hearing, k)
		}
	}
	maps.DeleteFunc(t.failed, func(k model.Key, _ error) bool { return !arrives(k) })
	if len(t.own) == 0 || len(t.failed) > 0 && now.Before(t.retry) {
		return 0, 0
	}
	links := map[string]int{}
	list, err := t.config.Kernel.ListLinks()
	if err != nil { // those that are heard are heard on
		t.retry = now.Add(retryAfter)
		for k := range t.own {
			if arrives(k) && t.hearing[k].stop == nil {
				t.failed[k] = err
				failures++
			}
		}
		return 0, failures
	}
	for _, l := range list {
		links[l.Name] = l.Index
	}
	for k, w := range t.own {
		link, known := links[w.Interface]
		h := hearing{link: link, addresses: addresses(w)}
		if was := t.hearing[k]; !arrives(k) || was.stop != nil && was.link == link &&
			slices.Equal(was.addresses, h.addresses) {
			continue
		} else if was.stop != nil { // the interface or an address is another one
			was.stop()
			delete(t.hearing, k)
		}
		if delete(t.failed, k); !known {
			continue // an event reports it
		}
		steps++
		h.stop, err = t.config.Kernel.Hear(w.Interface, h.addresses, func() {
			t.mu.Lock()
			t.heard = append(t.heard, k)
			t.mu.Unlock()
			t.config.Wake()
		})
		if err != nil {
			t.failed[k], t.retry = err, now.Add(retryAfter)
			failures++
			continue
		}
		t.hearing[k] = h
	}
	return steps, failures
}

func addresses(w *model.Workload) (list []netip.Addr) {
	for _, n := range w.Networks {
		list = append(list, n.Addr())
	}
	return list
}

// Next returns how long the next Flush may wait.
func (t *Target) Next() time.Duration {
	next := idle
	for _, at := range []time.Time{t.tracker.Next(), t.retryAt()} {
		if !at.IsZero() {
			next = min(next, max(at.Sub(t.config.Now()), time.Millisecond))
		}
	}
	return next
}

func (t *Target) retryAt() time.Time {
	if len(t.failed) == 0 {
		return time.Time{}
	}
	return t.retry
}

// Health implements the agent's Target: the notices have what fails.
func (t *Target) Health() reconcile.Health { return reconcile.Health{} }

// Notices lists the workloads that are not heard.
func (t *Target) Notices() (list []reconcile.Notice) {
	for k, err := range t.failed {
		list = append(list, reconcile.Notice{Subject: k.String(), Text: fmt.Sprintf(
			"a virtual machine moves here, and manxd cannot notice when it runs: its route comes when the move has "+
				"ended (%v)", err)})
	}
	return list
}

// Repairs implements the agent's Target.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return nil, 0 }

// Close ends hearing.
func (t *Target) Close() {
	for k, h := range t.hearing {
		h.stop()
		delete(t.hearing, k)
	}
}
