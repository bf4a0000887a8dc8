package storetest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
)

// perKindStore is a datastore in memory in which each kind has its own clock and watch, as with Kubernetes: the tests
// of every store must not require features of etcd alone.
type perKindStore struct {
	mu      sync.Mutex
	clocks  map[model.Kind]int64
	objects map[model.Key]*model.Object
	history map[model.Kind][]datastore.Event
	changed chan struct{} // closed at the next write, cut or mending
	cut     bool
}

// begin returns where the clock of a kind begins: far from the others'.
func begin(kind model.Kind) int64 {
	i := slices.IndexFunc(model.Kinds(), func(k model.KindInfo) bool { return k.Kind == kind })
	return int64(i * i * 1_000_000)
}

func (a *perKindStore) signal() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *perKindStore) setCut(cut bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cut = cut
	a.signal()
}

// tick returns the next revision of a kind.
func (a *perKindStore) tick(kind model.Kind) int64 {
	a.clocks[kind] = max(a.clocks[kind], begin(kind)) + 1
	a.signal()
	return a.clocks[kind]
}

// client is a client of the store, directly or over the line.
type client struct {
	datastore.Elector // none
	*perKindStore
	remote bool
	ctx    context.Context
	cancel context.CancelFunc
}

// do runs an operation, unless the line is cut.
func (c *client) do(
	ctx context.Context, op string, key model.Key, f func() (*model.Object, error),
) (*model.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var o *model.Object
	err := ctx.Err()
	if _, known := model.Lookup(key.Kind); err == nil && !known {
		err = fmt.Errorf("unknown kind %q", key.Kind)
	}
	if err == nil && c.remote && c.cut {
		err = datastore.ErrUnavailable
	}
	if err == nil {
		o, err = f()
	}
	if err != nil {
		return nil, &datastore.KeyError{Op: op, Key: key, Err: err}
	}
	return o, nil
}

func (c *client) put(o *model.Object) (*model.Object, error) {
	raw, err := codec.Encode(o)
	if err != nil {
		return nil, err
	}
	stored := codec.Decode(o.Key, raw, c.tick(o.Key.Kind))
	c.objects[o.Key] = stored
	c.note(datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: stored, Revision: stored.Revision})
	return stored, nil
}

func (a *perKindStore) note(e datastore.Event) {
	a.history[e.Key.Kind] = append(a.history[e.Key.Kind], e)
}

func (c *client) Get(ctx context.Context, k model.Key) (*model.Object, error) {
	return c.do(ctx, "get", k, func() (*model.Object, error) {
		if o := c.objects[k]; o != nil {
			return o, nil
		}
		return nil, datastore.ErrNotFound
	})
}

func (c *client) List(
	ctx context.Context, kind model.Kind, namespace string,
) (list []*model.Object, at int64, err error) {
	_, err = c.do(ctx, "list", model.Key{Kind: kind, Name: "*"}, func() (*model.Object, error) {
		list, at = c.all(kind), max(c.clocks[kind], begin(kind))
		return nil, nil
	})
	return slices.DeleteFunc(list, func(o *model.Object) bool {
		affinity, ok := o.Key.Affinity()
		return namespace != "" && o.Key.Namespace != namespace && !(ok && "host/"+affinity.Host == namespace)
	}), at, err
}

// all returns the objects of a kind, in key order.
func (a *perKindStore) all(kind model.Kind) []*model.Object {
	list := slices.Collect(maps.Values(a.objects))
	list = slices.DeleteFunc(list, func(o *model.Object) bool { return o.Key.Kind != kind })
	slices.SortFunc(list, func(x, y *model.Object) int {
		return cmp.Or(cmp.Compare(x.Key.Namespace, y.Key.Namespace), cmp.Compare(x.Key.Name, y.Key.Name))
	})
	return list
}

func (c *client) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	return c.do(ctx, "create", o.Key, func() (*model.Object, error) {
		if c.objects[o.Key] != nil {
			return nil, datastore.ErrExists
		}
		o := o.Clone()
		if err := codec.PrepareCreate(o, time.Now()); err != nil {
			return nil, err
		}
		return c.put(o)
	})
}

func (c *client) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	return c.do(ctx, "update", o.Key, func() (*model.Object, error) {
		if o.Revision == 0 {
			return nil, errors.New("revision is missing")
		}
		if err := c.current(o.Key, o.Revision); err != nil {
			return nil, err
		}
		o := o.Clone()
		if len(o.Raw) == 0 {
			o.Replaces(c.objects[o.Key])
		}
		if err := codec.PrepareUpdate(o); err != nil {
			return nil, err
		}
		return c.put(o)
	})
}

func (a *perKindStore) current(k model.Key, revision int64) error {
	switch o := a.objects[k]; {
	case o == nil:
		return datastore.ErrNotFound
	case revision != 0 && o.Revision != revision:
		return datastore.ErrConflict
	}
	return nil
}

func (c *client) Delete(ctx context.Context, k model.Key, revision int64) (*model.Object, error) {
	return c.do(ctx, "delete", k, func() (*model.Object, error) {
		if err := c.current(k, revision); err != nil {
			return nil, err
		}
		o := c.objects[k]
		delete(c.objects, k)
		c.note(datastore.Event{Type: datastore.EventDelete, Key: k, Revision: c.tick(k.Kind)})
		return o, nil
	})
}

func (c *client) Close() error { c.cancel(); return nil }

func (c *client) Keeps(kind model.Kind) bool {
	_, ok := model.Lookup(kind)
	return ok
}

func (c *client) Source(model.Kind) string { return "memory" }

func (c *client) Notices() []string { return nil }

func (c *client) UpgradeNode(context.Context, string) error { return nil }

func (c *client) Watch(ctx context.Context, kinds ...model.Kind) <-chan datastore.Event {
	out := make(chan datastore.Event)
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(c.ctx, cancel)
	var watches sync.WaitGroup
	for _, kind := range kinds {
		watches.Go(func() { c.follow(ctx, kind, out) })
	}
	go func() {
		watches.Wait()
		cancel()
		close(out)
	}()
	return out
}

// follow is the watch of one kind. After a cut it receives the differences, and otherwise each write.
func (c *client) follow(ctx context.Context, kind model.Kind, out chan<- datastore.Event) {
	send := func(events ...datastore.Event) {
		for _, e := range events {
			select {
			case out <- e:
			case <-ctx.Done():
			}
		}
	}
	if _, ok := model.Lookup(kind); !ok {
		send(datastore.Event{Type: datastore.EventLost, Err: fmt.Errorf("unknown kind %q", kind)})
		return
	}
	known, inSync, lost := map[model.Key]int64{}, false, false
	for seen := 0; ctx.Err() == nil; {
		c.mu.Lock()
		cut, changed, now, at := c.remote && c.cut, c.changed, c.all(kind), max(c.clocks[kind], begin(kind))
		news := c.history[kind][seen:]
		c.mu.Unlock()
		switch {
		case cut && !lost:
			lost, inSync = true, false
			send(datastore.Event{Type: datastore.EventLost, Kinds: []model.Kind{kind}, Err: datastore.ErrUnavailable})
		case !cut && !inSync:
			inSync, lost = true, false
			send(differences(known, now, at)...)
			send(datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{kind}, Revision: at})
			seen += len(news)
		case !cut:
			differences(known, now, at)
			send(news...)
			seen += len(news)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// differences returns the events that lead to the current state, in the order of the revisions.
func differences(known map[model.Key]int64, now []*model.Object, at int64) (events []datastore.Event) {
	present := map[model.Key]bool{}
	for _, o := range now {
		present[o.Key] = true
		if known[o.Key] != o.Revision {
			known[o.Key] = o.Revision
			events = append(events, datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o,
				Revision: o.Revision})
		}
	}
	for k := range known {
		if !present[k] {
			delete(known, k)
			events = append(events, datastore.Event{Type: datastore.EventDelete, Key: k, Revision: at})
		}
	}
	return events
}

func TestStoreWhoseKindsHaveClocksOfTheirOwn(t *testing.T) {
	storetest.RunStore(t, func(t *testing.T) storetest.System {
		a := &perKindStore{clocks: map[model.Kind]int64{}, objects: map[model.Key]*model.Object{},
			history: map[model.Kind][]datastore.Event{}, changed: make(chan struct{})}
		open := func(remote bool) func(*testing.T) datastore.Backend {
			return func(t *testing.T) datastore.Backend {
				c := &client{perKindStore: a, remote: remote}
				c.ctx, c.cancel = context.WithCancel(context.Background())
				t.Cleanup(c.cancel)
				return c
			}
		}
		return storetest.System{
			Open: open(false), OpenRemote: open(true),
			Cut:    func() { a.setCut(true) },
			Mend:   func() { a.setCut(false) },
			Forget: func(*testing.T) {},
		}
	})
}
