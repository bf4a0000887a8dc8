// Package follow passes the state of the datastore and the routes learned by BGP to the BGP speaker and the agents of
// the dataplane.
package follow

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

const (
	// retryAfter is the pause before a failed configuration of the speaker is tried again.
	retryAfter = time.Second
	// routeBatch is the maximum number of routes in one transfer from the speaker to the agents.
	routeBatch = 4096
)

// Speaker runs BGP sessions: a *speaker.Speaker.
type Speaker interface {
	// Set configures the speaker. It may block.
	Set(context.Context, bgp.Desired) error
	// Changed receives when Take has routes, and when Synced changes.
	Changed() <-chan struct{}
	// Take returns up to most prefixes that changed, each with all its paths. The slice is valid until the next call.
	Take(most int) []locrib.Route
	// Synced reports whether Take has returned all routes that peers advertise after a start, and why not.
	Synced() (bool, string)
}

// Agent maintains a part of the kernel's state. Its methods do not block.
type Agent interface {
	SetState(dataplane.State)
	// Learn passes the new state of prefixes; one without paths is withdrawn. It may keep paths, but not the slice.
	Learn([]locrib.Route)
}

// Passwords are the passwords of BGP sessions.
type Passwords interface {
	bgp.PasswordSource
	// EndDecision ends the calls of Password for one decision, and returns the interval between calls of Outdated until
	// the next one: 0 for none.
	EndDecision() time.Duration
	// Outdated reports whether a password of the last decision may have changed. It reads no password.
	Outdated() bool
	// Changed receives when passwords may have changed.
	Changed() <-chan struct{}
}

// Tables are the state of the datastore: *datastore.Tables.
type Tables interface {
	Snapshot() *datastore.Snapshot
	Changed() <-chan struct{}
}

// Config has the parameters of a Follower.
type Config struct {
	// Settings are this node's settings; the Follower sets Reader, Connected, Kernel and Passwords.
	Settings  bgp.Input
	Connected func() []netip.Prefix // the connected subnets of the host
	Kernel    func() []bgp.KernelRoute
	// Moves returns the phases of the workloads of this host that move; nil: none do.
	Moves     func() map[model.Key]livemigration.Phase
	Passwords Passwords
	Tables    Tables
	Speaker   Speaker // nil: this node has no BGP, and the agents follow the datastore alone
	Agents    []Agent
	// Kinds are the kinds that agents use.
	Kinds []model.Kind
	// Last delivers the state that an earlier run has read, at most once, if the datastore does not answer at the
	// start; nil: never.
	Last <-chan model.Reader
	// Keep is called with each snapshot from which BGP was decided, or that has other Nodes, and the decision; may be
	// nil. It must not block.
	Keep func(*datastore.Snapshot, bgp.Desired)
	Log  *zap.Logger
}

// Follower keeps the speaker and the agents up to date. Before the first full read of the datastore it passes nothing
// to them but the last state of an earlier run. It is safe for concurrent use.
type Follower struct {
	config    Config
	bgpKinds  []model.Kind
	last      model.Reader // as Last has delivered it; nil: not, or the datastore has been read
	desired   atomic.Pointer[decision]
	off       bool          // this node has no BGP
	held      bool          // BGP is kept as it was, since this host's Node cannot be used: see decide
	failure   string        // of the last attempt to configure the speaker, as logged
	triggered chan struct{} // holds one token when BGP is to be decided again

	mu    sync.Mutex
	state dataplane.State // as passed to the agents
}

// decision is the speaker's configuration, and its time.
type decision struct {
	bgp.Desired
	at time.Time
}

// New returns a Follower; Run starts it.
func New(c Config) *Follower {
	f := &Follower{config: c, bgpKinds: bgp.Kinds(), triggered: make(chan struct{}, 1)}
	if c.Speaker == nil {
		f.config.Speaker, f.config.Passwords, f.bgpKinds, f.off = noBGP{}, noBGP{}, nil, true
		f.state.BGPSynced = true // no peer has any route, so leftovers may go
	}
	return f
}

// Trigger triggers a new decision about BGP after a change outside the datastore. It does not block.
func (f *Follower) Trigger() {
	select {
	case f.triggered <- struct{}{}:
	default:
	}
}

// Desired returns the last configuration of the speaker.
func (f *Follower) Desired() bgp.Desired {
	d, _ := f.Decided()
	return d
}

// Decided returns the last configuration of the speaker, and its time; the zero time if there was none.
func (f *Follower) Decided() (bgp.Desired, time.Time) {
	if d := f.desired.Load(); d != nil {
		return d.Desired, d.at
	}
	return bgp.Desired{}, time.Time{}
}

// Run follows until ctx ends, whose error it returns.
func (f *Follower) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return f.followDatastore(ctx) })
	tasks.Go(func() error { return f.followBGP(ctx) })
	return tasks.Wait()
}

// followDatastore passes each new snapshot to the agents, and decides BGP again if the snapshot concerns it.
func (f *Follower) followDatastore(ctx context.Context) error {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	again(tick, 0)
	snapshot, err := f.begin(ctx, tick)
	if err != nil {
		return err
	}
	f.last = nil
	again(tick, f.configure(ctx, snapshot, true))
	for {
		next := f.wait(ctx, snapshot, tick.C)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		concerned := next == snapshot // then BGP is decided again without a change in the datastore
		if !concerned {
			concerned = f.step(snapshot, next)
			snapshot = next
		}
		if concerned {
			again(tick, f.configure(ctx, snapshot, false))
		}
	}
}

// begin returns the first snapshot of the datastore that is in sync. Until then BGP and the routes of this host follow
// the last state of an earlier run, if there is one and the datastore does not answer.
func (f *Follower) begin(ctx context.Context, tick *time.Ticker) (*datastore.Snapshot, error) {
	snapshot := f.config.Tables.Snapshot()
	for !snapshot.InSync() {
		snapshot = f.wait(ctx, snapshot, tick.C)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if f.last != nil && !snapshot.InSync() {
			again(tick, f.configureFromLast(ctx))
		}
	}
	return snapshot, nil
}

// again sets the period of a ticker; 0 stops it.
func again(tick *time.Ticker, period time.Duration) {
	tick.Stop()
	if period > 0 {
		tick.Reset(period)
	}
}

// wait waits for a snapshot after the last one, or until BGP is to be decided again; then it returns the last one. A
// tick causes a new decision if the speaker failed, or if a password may have changed.
func (f *Follower) wait(ctx context.Context, last *datastore.Snapshot, tick <-chan time.Time) *datastore.Snapshot {
	newer := f.config.Tables.Changed()
	if s := f.config.Tables.Snapshot(); s != last {
		return s
	}
	for {
		select {
		case <-newer:
			return f.config.Tables.Snapshot()
		case <-tick:
			if f.failure == "" && !f.config.Passwords.Outdated() {
				continue
			}
		case <-f.config.Passwords.Changed():
		case <-f.triggered:
		case f.last = <-f.config.Last:
		case <-ctx.Done():
		}
		return last
	}
}

// step passes the difference of two snapshots to the agents, and reports whether it concerns BGP. Agents that wait for
// a revision also receive a snapshot without a difference.
func (f *Follower) step(before, next *datastore.Snapshot) (concerned bool) {
	var changed []model.Key
	others, nodes := false, false // objects of other kinds, and Nodes
	decided, node := f.Desired(), f.config.Settings.Node
	for c := range next.Changes(before) {
		if !f.used(c.Key.Kind) {
			others = true
			continue
		}
		changed = append(changed, c.Key)
		concerned = concerned || !f.off && decided.DependsOn(node, c.Old, c.New)
		nodes = nodes || c.Key.Kind == model.KindNode
	}
	f.setState(len(changed) > 0 || !others, func(s *dataplane.State) {
		s.Reader, s.Changed, s.DatastoreSynced = next, changed, next.InSync()
	})
	if nodes && !concerned { // they have tunnel addresses and keys, too
		f.keep(next, decided)
	}
	return concerned
}

// keep has a decision kept for the next run.
func (f *Follower) keep(s *datastore.Snapshot, d bgp.Desired) {
	if f.config.Keep != nil && !f.off && !f.held {
		f.config.Keep(s, d)
	}
}

// used reports whether BGP or agents use objects of a kind.
func (f *Follower) used(k model.Kind) bool {
	return slices.Contains(f.config.Kinds, k) || slices.Contains(f.bgpKinds, k)
}

// setState changes the state of the agents. It notifies them if notify is set, or if more than the objects differs.
func (f *Follower) setState(notify bool, change func(*dataplane.State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.state
	change(&next)
	if next.Reader == nil { // nothing is known yet
		f.state = next
		return
	}
	synced, _ := f.config.Speaker.Synced() // only followBGP sets it, but every call may clear it
	next.BGPSynced = next.BGPSynced && synced
	old := f.state
	if notify || next.DatastoreSynced != old.DatastoreSynced || next.BGPSynced != old.BGPSynced ||
		!slices.Equal(next.Statics, old.Statics) || !slices.Equal(next.Peering, old.Peering) ||
		!slices.Equal(next.Peers, old.Peers) {
		for _, a := range f.config.Agents {
			a.SetState(next)
		}
	}
	next.Changed, next.All = nil, false
	f.state = next
}
