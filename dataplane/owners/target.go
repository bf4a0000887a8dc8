package owners

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/forget"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
)

const (
	// rest and urgentRest bound the share of the time for reading the kernel's table: 2 % while pods come and go
	// elsewhere, and 10 % while addresses pass from one to another.
	rest, urgentRest = 50, 10
	// saveDelay is the time from a change to the write of the file, and saveShare bounds the share of the time for it.
	saveDelay, saveShare = time.Second, 50
	// saveRetry is the pause after a failed write.
	saveRetry = 30 * time.Second
	// idle is the interval between flushes without work.
	idle = time.Hour
)

// Config has the parameters of a Target.
type Config struct {
	Connections conntrack.Connections
	Loop        *reconcile.Loop
	Now         func() time.Time
	Logger      *zap.Logger
	// File keeps the owners for the next run; empty: none does. It should be gone after a start of the host, as the
	// connections are.
	File string
}

// Target follows the owners of the cluster's addresses. Not safe for concurrent use.
type Target struct {
	config Config
	queue  forget.Queue
	owners owners
	pools  ippool.Table
	reader model.Reader // that owners has
	behind bool         // states were left out since
	known  bool         // the first state has been compared with the file
	node   string
	wakeAt time.Time // of the next call of Flush

	mu     sync.Mutex // guards the fields below
	dirty  bool       // the file differs
	saving bool
	saveAt time.Time
	err    error // of the last write
	failed time.Time
}

// New makes a Target.
func New(c Config) *Target {
	return &Target{config: c, owners: owners{}, behind: true, queue: forget.Queue{
		Connections: c.Connections, Loop: c.Loop, Now: c.Now, Rest: rest,
		Trouble: "whoever gets a former address of another node's workload may receive what belongs to its " +
			"connections"}}
}

// Name is the target's in logs.
func (t *Target) Name() string { return "address-owners" }

// Waits reports whether connections of an address with its last workload of another node may still be there.
func (t *Target) Waits(a netip.Addr) bool { return !t.known || t.queue.Has(a) }

// SetState takes over changed endpoints. The work begins at once: states that concern other nodes alone are not
// followed by a Flush.
func (t *Target) SetState(h *hoststate.Host) {
	if !h.DatastoreSynced || h.Last {
		t.behind = true
		return
	}
	if h.All || h.Concerned || t.pools == nil {
		t.pools = h.PoolTable()
	}
	has := func(o *model.Object) []netip.Addr { return t.addresses(h, o) }
	if h.All || t.behind {
		t.takeAll(h, has)
	} else {
		for _, k := range h.Changed {
			if k.Kind != model.KindWorkloadEndpoint {
				continue
			}
			left, taken := t.owners.change(t.reader.Get(k), h.Reader.Get(k), h.Node, has)
			t.queue.Add(left...)
			t.queue.AddUrgent(urgentRest, taken...)
			t.queue.Hurry(urgentRest, has(h.Reader.Get(k)))
			t.touch()
		}
	}
	t.reader, t.behind, t.node = h.Reader, false, h.Node
	t.queue.Flush()
	if next := t.queue.Next(0); next > 0 {
		t.wake(next)
	}
}

// takeAll compares all endpoints with the owners as they were, at first those of the run before.
func (t *Target) takeAll(h *hoststate.Host, has func(*model.Object) []netip.Addr) {
	all := map[netip.Addr][]owner{}
	for o := range h.Reader.All(model.KindWorkloadEndpoint) {
		for _, a := range has(o) {
			all[a] = append(all[a], ownerOf(o, h.Node))
		}
	}
	if !t.known {
		t.known = true
		t.load(h.Node, all)
	}
	t.queue.AddUrgent(urgentRest, t.owners.settle(all)...)
	t.touch()
}

// load reads the owners of the run before. If they cannot be read, though there was such a run, any workload of another
// node may be another one than then: the connections with all of them are forgotten, so that policy decides about them
// again.
func (t *Target) load(node string, all map[netip.Addr][]owner) {
	if t.config.File == "" {
		return
	}
	m, err := read(t.config.File, node)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the host has started, or this is the first manxd that keeps the file
	case err != nil:
		t.config.Logger.Warn("it is not known which workloads of other nodes had their addresses before the start: "+
			"connections with all of them are forgotten", zap.String("file", t.config.File), zap.Error(err))
		for a := range all {
			t.owners[a] = owner{}
		}
	default:
		t.owners = m
	}
}

// addresses returns the addresses of an endpoint that count: those in IP pools. A datastore writer must not end the
// connections of nodes.
func (t *Target) addresses(h *hoststate.Host, o *model.Object) (list []netip.Addr) {
	w := o.Workload()
	if w == nil {
		return nil
	}
	for _, p := range w.Networks {
		if p.IsSingleIP() && t.pools.Of(p) != nil && !h.IsNode(p.Addr()) &&
			!slices.Contains(list, p.Addr()) {
			list = append(list, p.Addr())
		}
	}
	return list
}

// touch has the file written soon.
func (t *Target) touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config.File == "" || t.dirty {
		return
	}
	now := t.config.Now()
	t.dirty = true
	if soon := now.Add(saveDelay); t.saveAt.Before(soon) {
		t.saveAt = soon
	}
	t.wake(t.saveAt.Sub(now))
}

// wake has Flush called after a time. The agent calls none after a state that concerns other nodes alone.
func (t *Target) wake(after time.Duration) {
	now := t.config.Now()
	if at := now.Add(after); !now.Before(t.wakeAt) || at.Before(t.wakeAt) {
		t.wakeAt = at
		time.AfterFunc(after, t.config.Loop.Trigger)
	}
}

// Handle does nothing: no event of the kernel is about owners.
func (t *Target) Handle([]kernel.Event) {}

// Resync does nothing: nothing is compared.
func (t *Target) Resync() {}

// Retry makes the next attempts due.
func (t *Target) Retry() {
	t.queue.Retry()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.saveAt = time.Time{}
}

// Flush begins to forget connections, and to write the file, if either is due.
func (t *Target) Flush() (steps, failures int, err error) {
	t.queue.Flush()
	if began := t.config.Now(); t.beginSave(began) {
		content := t.owners.encode(t.node)
		t.config.Loop.Go(func() { t.endSave(began, safefile.Replace(t.config.File, content, 0o600)) })
	}
	return 0, 0, nil
}

// beginSave reports whether the file is to be written now.
func (t *Target) beginSave(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dirty || t.saving || now.Before(t.saveAt) {
		return false
	}
	t.dirty, t.saving = false, true
	return true
}

func (t *Target) endSave(began time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.config.Now()
	if t.saving, t.saveAt = false, now.Add(saveShare*now.Sub(began)); err != nil {
		t.dirty, t.saveAt = true, now.Add(saveRetry)
		if t.err == nil {
			t.failed = now
		}
	}
	t.err = err
}

// Save writes the file at the end of the loop.
func (t *Target) Save() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || t.config.File == "" {
		return
	}
	if err := safefile.Replace(t.config.File, t.owners.encode(t.node), 0o600); err != nil {
		t.config.Logger.Error("the owners of addresses are not kept", zap.Error(err))
	}
}

// Next implements dataplane.Target.
func (t *Target) Next() time.Duration {
	pause := t.queue.Next(idle)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dirty && !t.saving {
		pause = min(pause, t.saveAt.Sub(t.config.Now()))
	}
	return max(pause, time.Millisecond)
}

// Health is that of the connections that are to be forgotten.
func (t *Target) Health() reconcile.Health {
	if err := t.queue.Problem(); err != nil {
		return reconcile.Health{Part: "connections", Failures: 1, Problem: err}
	}
	return reconcile.Health{}
}

// Notices are about the file.
func (t *Target) Notices() (list []reconcile.Notice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		list = append(list, reconcile.Notice{Subject: t.config.File, Since: t.failed, Text: fmt.Sprintf(
			"is not kept: connections with pods of other nodes that are replaced while manxd is down would go on to "+
				"those that get their addresses: %v", t.err)})
	}
	return list
}

// Repairs implements dataplane.Target; there are none.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return nil, 0 }
