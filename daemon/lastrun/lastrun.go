// Package lastrun keeps the state from which BGP and routes are decided for the next run of the daemon, and has BGP
// begin from that of the run before when the datastore does not answer.
package lastrun

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/laststate"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
	"github.com/manxnet/manx/proto/server"
)

const (
	// shortPatience is the time that the datastore has to answer at a start, and twice that to be read as a whole. It
	// is longPatience for a state that has not been valid for fresh: other nodes may have its blocks by now.
	shortPatience, longPatience, fresh = time.Second, 30 * time.Second, time.Hour
	// confirmEvery is the interval at which the time of the file shows that its state is still valid.
	confirmEvery = 10 * time.Minute
	// poll is the interval between checks, before the first full read, that the datastore still answers.
	poll = 200 * time.Millisecond
	// delay is the time from a change to the write of the file: many changes come together. share bounds the
	// share of the time that writing takes: one part in so many.
	delay, share = time.Second, 50
	// retry is the pause before a failed write is tried again.
	retry = 30 * time.Second
)

// Config has the settings of a Part.
type Config struct {
	Path string // of the file; empty: no state is kept, nor used
	// Origin identifies the datastore by the settings of this host.
	Origin func() (laststate.Origin, error)
	// BesideCalico has BGP begin although a calico-node may be active on this host.
	BesideCalico bool
	// Patience is the time that the datastore has to answer at a start; zero: a second.
	Patience time.Duration
}

// Part is the part of the daemon. Its methods are safe for concurrent use.
type Part struct {
	deps.Deps
	config Config
	origin laststate.Origin
	log    *zap.Logger

	earlier  *laststate.State  // nil: there is none that can be used
	patience time.Duration     // with the datastore, before the earlier state is used
	refused  error             // why not; nil if there is no file
	written  [sha256.Size]byte // the hash of the objects in the file
	revision int64             // there
	changed  chan struct{}     // holds one token when latest is new

	mu      sync.Mutex
	open    bool         // the datastore has been opened
	hold    bool         // it is known that BGP must not begin
	why     error        // the datastore does not answer, or may not be read
	since   time.Time    // when BGP began from the earlier state; zero: it did not
	latest  bus.Decision // the last one from the datastore
	failure error        // of the last write
	failed  time.Time
}

// New reads the file of an earlier run.
func New(d deps.Deps, c Config) *Part {
	l := &Part{Deps: d, config: c, log: d.Log.Named("last-state"), changed: make(chan struct{}, 1),
		patience: cmp.Or(c.Patience, shortPatience)}
	if c.Path == "" {
		return l
	}
	var err error
	if l.origin, err = c.Origin(); err == nil {
		l.earlier, err = laststate.Read(c.Path, d.Node.Name, l.origin, kinds())
	}
	if err == nil {
		d.Tables.After(l.earlier.Revision, l.earlier.Objects)
		if time.Since(l.earlier.Valid) > fresh {
			l.patience = longPatience
		}
		l.revision = l.earlier.Revision
		_, l.written, err = l.earlier.Encode()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.refused = err
		l.log.Warn("the last state of an earlier run cannot be used", zap.Error(err))
	}
	d.Bus.Decided.Subscribe(l.keep)
	return l
}

// Name implements part.Part.
func (l *Part) Name() string { return "last-state" }

// kinds are those of the file. ClusterInformation tells a person of which cluster it is.
func kinds() []model.Kind { return append(bgp.Kinds(), model.KindClusterInformation) }

// Needs implements part.Watcher.
func (l *Part) Needs() part.Needs {
	if l.config.Path == "" {
		return nil
	}
	return part.AllOf(kinds()...)
}

// Run implements part.Part. When it ends the file is as the datastore is.
func (l *Part) Run(ctx context.Context) error {
	if err := l.watchStart(ctx); err != nil {
		return err
	}
	if origin, err := l.config.Origin(); err == nil { // files may have been repaired meanwhile
		l.origin = origin
	}
	err := l.maintain(ctx)
	l.write(true)
	return err
}

// maintain writes the file after each change.
func (l *Part) maintain(ctx context.Context) error {
	pause := delay
	confirm := time.NewTicker(confirmEvery)
	defer confirm.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-confirm.C:
			l.write(true)
			continue
		case <-l.changed:
		}
		for again := true; again; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
			began := time.Now()
			if again = !l.write(false); again {
				pause = retry
			} else {
				pause = max(delay, share*time.Since(began))
			}
		}
	}
}

// watchStart returns when the datastore has been read for the first time. It has BGP begin from the earlier state if
// the datastore does not answer.
func (l *Part) watchStart(ctx context.Context) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for started := time.Now(); ; {
		snapshot := l.Tables.Snapshot()
		if snapshot.InSync() {
			l.end()
			return nil
		}
		if err := l.silent(time.Since(started)); err != nil {
			l.begin(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-snapshot.Replaced():
		case <-tick.C:
		}
	}
}

// silent returns why the datastore counts as away so long after the start, nil if it does not.
func (l *Part) silent(after time.Duration) error {
	l.mu.Lock()
	open, hold, why := l.open, l.hold, l.why
	l.mu.Unlock()
	switch status := l.Tables.Status(); {
	case hold, l.patience > shortPatience && after < l.patience:
		return nil
	case why != nil:
		return why
	case status.LastError != nil:
		return status.LastError
	case !open && after >= l.patience:
		return fmt.Errorf("no answer in %v", l.patience)
	case after >= 2*l.patience:
		return fmt.Errorf("not read in %v", 2*l.patience)
	}
	return nil
}

// Opened records that the datastore has been opened.
func (l *Part) Opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open, l.why = true, nil
}

// SetHold sets whether it is known that BGP must not begin, although the datastore has not been read.
func (l *Part) SetHold(hold bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = hold
}

// Waiting records why the node waits for the datastore. A datastore that answers that this node does not exist is not
// away.
func (l *Part) Waiting(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why, l.hold = err, errors.Is(err, datastore.ErrNotFound); l.hold {
		l.why = nil
	}
}

// Covers records why the datastore does not answer, and reports whether there is an earlier state for that time.
func (l *Part) Covers(err error) bool {
	l.Waiting(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.earlier != nil
}

// begin has BGP begin from the earlier state, if there is one, because of err.
func (l *Part) begin(err error) {
	if !l.Covers(err) || !l.config.BesideCalico && caliconode.BGPDaemon(context.Background()) != "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		return
	}
	l.since = time.Now()
	l.log.Warn("the datastore has not been read: BGP and routes follow the last state, policy and workloads stay as "+
		"they are in the kernel", zap.Time("valid", l.earlier.Valid), zap.Time("lastChange", l.earlier.Written),
		zap.Int64("revision", l.earlier.Revision),
		zap.Int("objects", len(l.earlier.Objects)), zap.Error(err))
	l.Bus.LastState.Publish(model.NewSet(l.earlier.Objects...))
}

// end records that the datastore has been read: the earlier state is not used any more.
func (l *Part) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		l.log.Info("the datastore has been read: BGP and routes do not follow the last state any more",
			zap.Duration("after", time.Since(l.since)))
	}
	l.since, l.earlier, l.refused = time.Time{}, nil, nil
}

// InUse returns the state that BGP and routes follow in place of the datastore, nil for none.
func (l *Part) InUse() *server.LastState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		return nil
	}
	objects := map[model.Kind]int{}
	for _, kind := range kinds() {
		objects[kind] = 0
	}
	for _, o := range l.earlier.Objects {
		objects[o.Key.Kind]++
	}
	return &server.LastState{Valid: l.earlier.Valid, Revision: l.earlier.Revision, File: l.config.Path,
		Objects: objects, Since: l.since}
}

// keep has the snapshot of a decision written soon.
func (l *Part) keep(d bus.Decision) {
	l.mu.Lock()
	l.latest = d
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// write writes the latest state, unless the file has the same objects. With confirm the file shows that they are still
// valid: it gets the time, and the revision of the datastore. The result is false after a failure.
func (l *Part) write(confirm bool) bool {
	if l.config.Path == "" {
		return true
	}
	l.mu.Lock()
	k := l.latest
	l.mu.Unlock()
	if now := l.Tables.Snapshot(); confirm && now.InSync() { // what has changed since does not matter to BGP
		k.Snapshot = now
	}
	if k.Snapshot == nil {
		return true
	}
	err := l.writeState(k, confirm)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && (l.failure == nil || l.failure.Error() != err.Error()) {
		l.failed = time.Now()
		l.log.Error("the last state is not kept", zap.Error(err))
	}
	l.failure = err
	return err == nil
}

func (l *Part) writeState(k bus.Decision, confirm bool) error {
	s := laststate.State{Node: l.Node.Name, Origin: l.origin, Written: time.Now(), Revision: k.Snapshot.Revision(),
		Objects: l.objects(k)}
	content, hash, err := s.Encode()
	if err != nil {
		return err
	}
	if hash == l.written && (!confirm || s.Revision == l.revision) {
		if confirm {
			return safefile.Touch(l.config.Path)
		}
		return nil
	}
	if err := safefile.Replace(l.config.Path, content, 0o600); err != nil {
		return err
	}
	l.written, l.revision = hash, s.Revision
	// A start would refuse a file that others can change, for instance: now the reason can be removed.
	_, err = laststate.Read(l.config.Path, l.Node.Name, l.origin, kinds())
	return err
}

// objects returns the objects that the file has: those whose absence could change the decision.
func (l *Part) objects(k bus.Decision) (list []*model.Object) {
	for _, kind := range kinds() {
		for o := range k.Snapshot.All(kind) {
			if kind == model.KindClusterInformation || k.Desired.DependsOn(l.Node.Name, nil, o) {
				list = append(list, o)
			}
		}
	}
	return list
}

// Notices implements server.Noticer.
func (l *Part) Notices() (list []server.Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(topic, subject string, since time.Time, text string) {
		list = append(list, server.Notice{Topic: topic, Subject: subject, Since: since, Text: text})
	}
	if l.failure != nil {
		add("daemon", l.config.Path, l.failed, fmt.Sprintf(
			"is not kept: a restart without the datastore would have no BGP, or an old one: %v", l.failure))
	}
	switch {
	case !l.since.IsZero():
		add("datastore", l.Node.Datastore, l.since, fmt.Sprintf("has not been read since the start of manxd "+
			"(%v): BGP and routes follow the state of %s, whose last change was at %s; policy and workloads stay as "+
			"they are in the kernel, and no workload can be added", l.why,
			l.earlier.Valid.Local().Format(time.DateTime), l.earlier.Written.Local().Format(time.DateTime)))
	case l.why != nil && l.refused != nil:
		add("datastore", l.config.Path, time.Time{}, fmt.Sprintf(
			"BGP waits for the datastore, because the last state cannot be used: %v", l.refused))
	}
	return list
}
