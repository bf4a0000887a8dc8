package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/daemon/bus"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/laststate"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
	"github.com/manxnet/manx/proto/server"
)

const (
	// lastPatience is the time that the datastore has to answer at a start, and twice that to be read as a whole. It is
	// longPatience for a state that has not been valid for lastFresh: other nodes may have its blocks by now.
	lastPatience, longPatience, lastFresh = time.Second, 30 * time.Second, time.Hour
	// lastConfirm is the interval at which the time of the file shows that its state is still valid.
	lastConfirm = 10 * time.Minute
	// lastPoll is the interval between checks, before the first full read, that the datastore still answers.
	lastPoll = 200 * time.Millisecond
	// lastDelay is the time from a change to the write of the file: many changes come together. lastShare bounds the
	// share of the time that writing takes: one part in so many.
	lastDelay, lastShare = time.Second, 50
	// lastRetry is the pause before a failed write is tried again.
	lastRetry = 30 * time.Second
)

// lastState keeps the objects from which BGP and the routes of this host are decided in a file. When the datastore does
// not answer at a start, BGP begins from the file of an earlier run.
type lastState struct {
	deps.Deps
	datastore    datastoreOptions
	besideCalico bool
	origin       laststate.Origin
	log          *zap.Logger

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

// lastStateFile is the path of the file.
func (o *datastoreOptions) lastStateFile() string { return filepath.Join(o.dataDir, "last-state.json") }

func newLastState(d deps.Deps, o datastoreOptions, besideCalico bool) *lastState {
	l := &lastState{Deps: d, datastore: o, besideCalico: besideCalico, log: d.Log.Named("last-state"),
		changed: make(chan struct{}, 1), patience: lastPatience}
	var err error
	if l.origin, err = o.lastOrigin(d.Kube); err == nil {
		l.earlier, err = laststate.Read(o.lastStateFile(), d.Node.Name, l.origin, l.Kinds())
	}
	if err == nil {
		d.Tables.After(l.earlier.Revision)
		if time.Since(l.earlier.Valid) > lastFresh {
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

// lastOrigin identifies the datastore by the settings of this host.
func (o *datastoreOptions) lastOrigin(kube *rest.Config) (laststate.Origin, error) {
	from := laststate.Origin{Type: o.kind}
	var authorities []byte
	var err error
	switch o.kind {
	case connect.Embedded:
	case connect.Kubernetes:
		from.Servers, authorities = []string{kube.Host}, kube.CAData
		if len(authorities) == 0 && kube.CAFile != "" {
			authorities, err = os.ReadFile(kube.CAFile)
		}
	default:
		from.Servers = etcd.SplitEndpoints(o.etcdEndpoints)
		if o.etcdCAFile != "" {
			authorities, err = os.ReadFile(o.etcdCAFile)
		}
	}
	for block, rest := pem.Decode(authorities); block != nil; block, rest = pem.Decode(rest) {
		sum := sha256.Sum256(block.Bytes)
		from.Authorities = append(from.Authorities, hex.EncodeToString(sum[:]))
	}
	return from, err
}

func (l *lastState) Name() string { return "last-state" }

// Kinds returns the kinds of the file. ClusterInformation tells a person of which cluster it is.
func (l *lastState) Kinds() []model.Kind { return append(bgp.Kinds(), model.KindClusterInformation) }

// Run implements part.Part. When it ends the file is as the datastore is.
func (l *lastState) Run(ctx context.Context) error {
	if err := l.watchStart(ctx); err != nil {
		return err
	}
	if origin, err := l.datastore.lastOrigin(l.Kube); err == nil { // files may have been repaired meanwhile
		l.origin = origin
	}
	err := l.maintain(ctx)
	l.write(true)
	return err
}

// maintain writes the file after each change.
func (l *lastState) maintain(ctx context.Context) error {
	pause := lastDelay
	confirm := time.NewTicker(lastConfirm)
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
				pause = lastRetry
			} else {
				pause = max(lastDelay, lastShare*time.Since(began))
			}
		}
	}
}

// watchStart returns when the datastore has been read for the first time. It has BGP begin from the earlier state if
// the datastore does not answer.
func (l *lastState) watchStart(ctx context.Context) error {
	tick := time.NewTicker(lastPoll)
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
func (l *lastState) silent(after time.Duration) error {
	l.mu.Lock()
	open, hold, why := l.open, l.hold, l.why
	l.mu.Unlock()
	switch status := l.Tables.Status(); {
	case hold, l.patience > lastPatience && after < l.patience:
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

// opened records that the datastore has been opened.
func (l *lastState) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open, l.why = true, nil
}

// setHold sets whether it is known that BGP must not begin, although the datastore has not been read.
func (l *lastState) setHold(hold bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = hold
}

// waiting records why the node waits for the datastore. A datastore that answers that this node does not exist is not
// away.
func (l *lastState) waiting(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why, l.hold = err, errors.Is(err, datastore.ErrNotFound); l.hold {
		l.why = nil
	}
}

// covers records why the datastore does not answer, and reports whether there is an earlier state for that time.
func (l *lastState) covers(err error) bool {
	l.waiting(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.earlier != nil
}

// begin has BGP begin from the earlier state, if there is one, because of err.
func (l *lastState) begin(err error) {
	if !l.covers(err) || !l.besideCalico && caliconode.BGPDaemon(context.Background()) != "" {
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
func (l *lastState) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		l.log.Info("the datastore has been read: BGP and routes do not follow the last state any more",
			zap.Duration("after", time.Since(l.since)))
	}
	l.since, l.earlier, l.refused = time.Time{}, nil, nil
}

// inUse returns the state that BGP and routes follow in place of the datastore, nil for none.
func (l *lastState) inUse() *server.LastState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		return nil
	}
	return &server.LastState{Valid: l.earlier.Valid, Revision: l.earlier.Revision}
}

// keep has the snapshot of a decision written soon.
func (l *lastState) keep(d bus.Decision) {
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
func (l *lastState) write(confirm bool) bool {
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

func (l *lastState) writeState(k bus.Decision, confirm bool) error {
	s := laststate.State{Node: l.Node.Name, Origin: l.origin, Written: time.Now(), Revision: k.Snapshot.Revision(),
		Objects: l.objects(k)}
	content, hash, err := s.Encode()
	if err != nil {
		return err
	}
	if hash == l.written && (!confirm || s.Revision == l.revision) {
		if confirm {
			return safefile.Touch(l.datastore.lastStateFile())
		}
		return nil
	}
	if err := safefile.Replace(l.datastore.lastStateFile(), content, 0o600); err != nil {
		return err
	}
	l.written, l.revision = hash, s.Revision
	// A start would refuse a file that others can change, for instance: now the reason can be removed.
	_, err = laststate.Read(l.datastore.lastStateFile(), l.Node.Name, l.origin, l.Kinds())
	return err
}

// objects returns the objects that the file has: those whose absence could change the decision.
func (l *lastState) objects(k bus.Decision) (list []*model.Object) {
	for _, kind := range l.Kinds() {
		for o := range k.Snapshot.All(kind) {
			if kind == model.KindClusterInformation || k.Desired.DependsOn(l.Node.Name, nil, o) {
				list = append(list, o)
			}
		}
	}
	return list
}

// Notices implements server.Noticer.
func (l *lastState) Notices() (list []server.Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(topic, subject string, since time.Time, text string) {
		list = append(list, server.Notice{Topic: topic, Subject: subject, Since: since, Text: text})
	}
	if l.failure != nil {
		add("daemon", l.datastore.lastStateFile(), l.failed, fmt.Sprintf(
			"is not kept: a restart without the datastore would have no BGP, or an old one: %v", l.failure))
	}
	switch {
	case !l.since.IsZero():
		add("datastore", l.Node.Datastore, l.since, fmt.Sprintf("has not been read since the start of manxd "+
			"(%v): BGP and routes follow the state of %s, whose last change was at %s; policy and workloads stay as "+
			"they are in the kernel, and no workload can be added", l.why,
			l.earlier.Valid.Local().Format(time.DateTime), l.earlier.Written.Local().Format(time.DateTime)))
	case l.why != nil && l.refused != nil:
		add("datastore", l.datastore.lastStateFile(), time.Time{}, fmt.Sprintf(
			"BGP waits for the datastore, because the last state cannot be used: %v", l.refused))
	}
	return list
}
