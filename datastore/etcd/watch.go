package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// watchBackoff is the pause before a watch that has ended begins again.
var watchBackoff = retry.Backoff{Min: 50 * time.Millisecond, Max: 10 * time.Second, Spread: true}

// queued is the number of events that may wait for the reader, so that it can take them in batches.
const queued = 1024

var errConnectionLost = errors.New("the connection was lost")

// Watch implements datastore.Store.
//
// All kinds are read at one revision and then followed by a single etcd watch over the range of keys that contains
// them. So events come in the order of the datastore's history, whatever their kind. After EventInSync with revision R
// and the events up to revision S the reader has the datastore's state at S. While the reader is not in sync (before
// the first EventInSync, and from EventLost to the next one), it gets differences to an older state in no particular
// order, at most one for each key: only at EventInSync do they add up to a state that existed.
//
// After a lost connection, the loss of the cluster's leader, or compaction, Watch reads keys and revisions again, and
// delivers only the differences, with EventDelete for deleted objects. A change that was undone meanwhile is not
// reported. If the datastore was replaced or restored to an earlier state, everything is read again.
//
// EventLost is sent for each failed attempt, with the reason. The channel is closed when ctx or the Store ends.
func (s *Store) Watch(ctx context.Context, kinds ...model.Kind) <-chan datastore.Event {
	out := make(chan datastore.Event, queued)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	w := &watcher{store: s, out: out, kinds: map[model.Kind]bool{}}
	s.watches.Add(1)
	go func() {
		defer s.watches.Done()
		defer close(out)
		defer cancel()
		defer stop()
		if err := w.cover(kinds); err != nil {
			w.send(ctx, datastore.Event{Type: datastore.EventLost, Err: err})
			return
		}
		w.run(ctx)
	}()
	return out
}

type watcher struct {
	store    *Store
	out      chan<- datastore.Event
	kinds    map[model.Kind]bool
	prefixes []string
	from, to string // the range that contains all prefixes

	known map[string]struct{} // paths of all delivered objects that exist; nil before the first read
	at    position            // everything up to here was delivered

	followed bool // a watch has begun before
}

// cover determines the keys of the kinds.
func (w *watcher) cover(kinds []model.Kind) error {
	if len(kinds) == 0 {
		return errors.New("watch: no kind is given")
	}
	for _, kind := range kinds {
		prefixes, err := Prefixes(kind, "")
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if w.kinds[kind] {
			continue
		}
		w.kinds[kind] = true
		for _, p := range prefixes {
			w.prefixes = append(w.prefixes, p)
			if end := clientv3.GetPrefixRangeEnd(p); end > w.to {
				w.to = end
			}
		}
	}
	slices.Sort(w.prefixes)
	w.from = w.prefixes[0]
	return nil
}

func (w *watcher) run(ctx context.Context) {
	_ = watchBackoff.Repeat(ctx, func(ctx context.Context) error {
		if err := w.refresh(ctx); err != nil {
			return err
		}
		return w.follow(ctx)
	}, func(err error) bool {
		return w.send(ctx, datastore.Event{Type: datastore.EventLost, Revision: w.at.revision,
			Err: w.store.explain(ctx, err)})
	})
}

// refresh reads the stored objects and delivers the differences to those delivered before, page by page: a large
// cluster's objects are never all in memory at a time.
func (w *watcher) refresh(ctx context.Context) error {
	at, err := w.readDifferences(ctx)
	for attempt := 1; errors.Is(err, rpctypes.ErrCompacted) && attempt < readRetries; attempt++ {
		at, err = w.readDifferences(ctx) // compaction overtook a read of many pages
	}
	if err != nil {
		return err
	}
	w.at = at
	w.send(ctx, datastore.Event{Type: datastore.EventInSync, Revision: at.revision})
	return nil
}

// readDifferences delivers new and changed entries, and the deletion of missing ones.
func (w *watcher) readDifferences(ctx context.Context) (at position, err error) {
	deliver := func(page []*mvccpb.KeyValue) error {
		for _, kv := range page {
			if e, ok := w.changed(kv); ok && !w.send(ctx, e) {
				return ctx.Err()
			}
		}
		return nil
	}
	if w.known == nil { // with nothing known, nothing can be gone
		w.known = map[string]struct{}{}
		return w.store.readPages(ctx, w.prefixes, 0, deliver)
	}
	present := make(map[string]struct{}, len(w.known))
	at, err = w.store.readPages(ctx, w.prefixes, 0, func(page []*mvccpb.KeyValue) error {
		for _, kv := range page {
			present[string(kv.Key)] = struct{}{}
		}
		return nil
	}, clientv3.WithKeysOnly())
	if err != nil {
		return at, err
	}
	for path := range w.known {
		if _, ok := present[path]; !ok && !w.deliverDelete(ctx, path, at.revision) {
			return at, ctx.Err()
		}
	}
	since := w.at.revision + 1
	if at.cluster != w.at.cluster || at.revision < w.at.revision {
		since = 0 // another history: equal revisions prove nothing
	}
	_, err = w.store.readPages(ctx, w.prefixes, at.revision, deliver, clientv3.WithMinModRev(since))
	return at, err
}

// follow delivers changes as they happen, until an error.
func (w *watcher) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	w.store.cancelWhenLost(ctx, cancel)
	events := w.store.client.Watch(ctx, w.from, clientv3.WithRange(w.to), clientv3.WithRev(w.at.revision+1))
	if again := w.store.config.Rewatched; again != nil && w.followed {
		again()
	}
	w.followed = true
	alive := make(chan struct{}, 1)
	w.store.watches.Go(func() { w.store.ask(ctx, w.from, alive) })
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-alive:
			if !w.send(ctx, datastore.Event{Type: datastore.EventAlive}) {
				return context.Cause(ctx)
			}
		case resp, ok := <-events:
			if !ok {
				return cmp.Or(context.Cause(ctx), errConnectionLost)
			}
			if err := resp.Err(); err != nil {
				return err
			}
			if resp.Header.ClusterId != w.at.cluster || resp.Header.Revision < w.at.revision {
				return errors.New("the datastore was replaced or put back to an earlier state")
			}
			if !w.deliverEvents(ctx, resp.Events) {
				return context.Cause(ctx)
			}
		}
	}
}

// ask requests a key on the connection of a watch at an interval, until ctx ends, and puts a token into alive for each
// answer of a majority of the cluster. Progress notifications of the watch would do, too, but etcd before 3.4.25 and
// 3.5.8 may send them ahead of earlier events, which the client then leaves out when it resumes a stream.
func (s *Store) ask(ctx context.Context, key string, alive chan<- struct{}) {
	tick := time.NewTicker(datastore.Heartbeat / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(ctx, s.config.RequestTimeout)
		_, err := s.client.Get(limited, key, clientv3.WithCountOnly())
		cancel()
		if err != nil {
			continue // the connection is given up, or the reader sees the silence
		}
		select {
		case alive <- struct{}{}:
		default:
		}
	}
}

// cancelWhenLost ends ctx when no endpoint is connected any more. The etcd client would reconnect silently, and the
// reader would take old state for current.
func (s *Store) cancelWhenLost(ctx context.Context, cancel context.CancelCauseFunc) {
	conn := s.client.ActiveConnection()
	s.watches.Add(1)
	go func() {
		defer s.watches.Done()
		if conn.WaitForStateChange(ctx, connectivity.Ready) {
			cancel(errConnectionLost)
		}
	}()
}

// change is an event with etcd's revision of it. The event has the object's, which may be of another clock.
type change struct {
	datastore.Event
	at int64
}

// deliverEvents delivers changes as they came in one response.
func (w *watcher) deliverEvents(ctx context.Context, events []*clientv3.Event) bool {
	var list []change
	for _, e := range events {
		var event datastore.Event
		var ok bool
		if e.Type == clientv3.EventTypeDelete {
			event, ok = w.deleted(string(e.Kv.Key), e.Kv.ModRevision)
		} else {
			event, ok = w.changed(e.Kv)
		}
		if ok {
			list = append(list, change{event, e.Kv.ModRevision})
		}
	}
	if !w.deliver(ctx, list) {
		return false
	}
	if n := len(events); n > 0 {
		w.at.revision = events[n-1].Kv.ModRevision
	}
	return true
}

// deliver sends changes, and advances the position in etcd's history. All of one transaction are in one list; they are
// marked, so that the reader can apply them as one step.
func (w *watcher) deliver(ctx context.Context, list []change) bool {
	for i, c := range list {
		c.More = i+1 < len(list) && list[i+1].at == c.at
		if !w.send(ctx, c.Event) {
			return false
		}
		if !c.More {
			w.at.revision = c.at
		}
	}
	return true
}

func (w *watcher) deliverDelete(ctx context.Context, path string, revision int64) bool {
	e, ok := w.deleted(path, revision)
	return !ok || w.send(ctx, e)
}

// changed returns the event of a key that has a new value, false if its kind is not watched.
func (w *watcher) changed(kv *mvccpb.KeyValue) (datastore.Event, bool) {
	path := string(kv.Key)
	o := parse(path, kv)
	if o == nil || !w.kinds[o.Key.Kind] {
		return datastore.Event{}, false
	}
	w.known[path] = struct{}{}
	return datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o, Revision: o.Revision}, true
}

func (w *watcher) deleted(path string, revision int64) (datastore.Event, bool) {
	key, ok, _ := ParsePath(path)
	if !ok || !w.kinds[key.Kind] {
		return datastore.Event{}, false
	}
	delete(w.known, path)
	return datastore.Event{Type: datastore.EventDelete, Key: key, Revision: revision}, true
}

// send delivers an event to the reader. It returns false if ctx ended first.
func (w *watcher) send(ctx context.Context, e datastore.Event) bool {
	select {
	case w.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
