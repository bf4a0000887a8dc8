// Package memory is a datastore in memory for tests of controllers: it stores every kind, including Kubernetes' own,
// and can fail, stop after any number of writes, and lag behind.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// Store is a datastore.Store with one clock for all kinds.
type Store struct {
	mu       sync.Mutex
	revision int64
	objects  map[model.Key]*model.Object
	log      []datastore.Event
	changed  chan struct{}
	writes   int
}

var _ datastore.Store = (*Store)(nil)

// New returns a store that holds these objects.
func New(objects ...*model.Object) *Store {
	s := &Store{objects: map[model.Key]*model.Object{}, changed: make(chan struct{})}
	for _, o := range objects {
		s.Put(o)
	}
	return s
}

// Put stores an object unchanged and unconditionally, without validation, as a test needs it.
func (s *Store) Put(o *model.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(o.Clone())
}

// Remove deletes an object if it exists.
func (s *Store) Remove(key model.Key) {
	_, _ = s.Delete(context.Background(), key, 0)
}

// Writes counts the successful writes by Create, Update and Delete.
func (s *Store) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func (s *Store) set(o *model.Object) *model.Object {
	s.revision++
	o.Revision = s.revision
	s.objects[o.Key] = o
	s.note(datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o, Revision: s.revision})
	return o.Clone()
}

func (s *Store) note(e datastore.Event) {
	s.log = append(s.log, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Get implements datastore.Store.
func (s *Store) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	o, ok := s.objects[key]
	if !ok {
		return nil, &datastore.KeyError{Op: "get", Key: key, Err: datastore.ErrNotFound}
	}
	return o.Clone(), nil
}

// List implements datastore.Store.
func (s *Store) List(_ context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*model.Object
	for key, o := range s.objects {
		in := key.Namespace == namespace
		if aff, ok := key.Affinity(); ok {
			in = string(aff.Type)+"/"+aff.Host == namespace
		}
		if key.Kind == kind && (namespace == "" || in) {
			list = append(list, o.Clone())
		}
	}
	slices.SortFunc(list, func(a, b *model.Object) int {
		return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return list, s.revision, nil
}

// Create implements datastore.Store.
func (s *Store) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	o = o.Clone()
	if err := codec.PrepareCreate(o, time.Now()); err != nil {
		return nil, &datastore.KeyError{Op: "create", Key: o.Key, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if s.objects[o.Key] != nil {
		return nil, &datastore.KeyError{Op: "create", Key: o.Key, Err: datastore.ErrExists}
	}
	s.writes++
	return s.set(o), nil
}

// Update implements datastore.Store.
func (s *Store) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	o = o.Clone()
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	was, err := s.expect("update", o.Key, o.Revision)
	if err != nil {
		return nil, err
	}
	o.Replaces(was)
	if err := codec.PrepareUpdate(o); err != nil {
		return nil, &datastore.KeyError{Op: "update", Key: o.Key, Err: err}
	}
	s.writes++
	return s.set(o), nil
}

// Delete implements datastore.Store.
func (s *Store) Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	was, err := s.expect("delete", key, revision)
	if err != nil {
		return nil, err
	}
	delete(s.objects, key)
	s.revision++
	s.writes++
	s.note(datastore.Event{Type: datastore.EventDelete, Key: key, Revision: s.revision})
	return was.Clone(), nil
}

func (s *Store) expect(op string, key model.Key, revision int64) (*model.Object, error) {
	was := s.objects[key]
	switch {
	case was == nil:
		return nil, &datastore.KeyError{Op: op, Key: key, Err: datastore.ErrNotFound}
	case revision != was.Revision && !(op == "delete" && revision == 0):
		return nil, &datastore.KeyError{Op: op, Key: key, Err: datastore.ErrConflict}
	}
	return was, nil
}

// Watch implements datastore.Store.
func (s *Store) Watch(ctx context.Context, kinds ...model.Kind) <-chan datastore.Event {
	out := make(chan datastore.Event)
	go func() {
		defer close(out)
		s.follow(ctx, kinds, func(e datastore.Event) bool {
			select {
			case out <- e:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()
	return out
}

func (s *Store) follow(ctx context.Context, kinds []model.Kind, send func(datastore.Event) bool) {
	s.mu.Lock()
	at := len(s.log)
	events := make([]datastore.Event, 0, len(s.objects)+1)
	for key, o := range s.objects {
		if slices.Contains(kinds, key.Kind) {
			events = append(events, datastore.Event{Type: datastore.EventUpdate, Key: key, Object: o.Clone(),
				Revision: o.Revision})
		}
	}
	events = append(events, datastore.Event{Type: datastore.EventInSync, Revision: s.revision})
	s.mu.Unlock()
	for {
		for _, e := range events {
			if !send(e) {
				return
			}
		}
		s.mu.Lock()
		later, more := s.changed, s.log[at:]
		events = events[:0]
		for _, e := range more {
			if slices.Contains(kinds, e.Key.Kind) {
				if e.Object != nil {
					e.Object = e.Object.Clone()
				}
				events = append(events, e)
			}
		}
		at = len(s.log)
		s.mu.Unlock()
		if len(more) > 0 {
			continue
		}
		select {
		case <-later:
		case <-ctx.Done():
			return
		}
	}
}

// Close implements datastore.Store.
func (s *Store) Close() error { return nil }

// String lists the keys with their revisions.
func (s *Store) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	for key, o := range s.objects {
		text += fmt.Sprintf("%s@%d\n", key, o.Revision)
	}
	return text
}

// since returns the events after the first n, and their current number: for tests that deliver events themselves.
func (s *Store) since(n int) (events []datastore.Event, total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.log[n:] {
		if e.Object != nil {
			e.Object = e.Object.Clone()
		}
		events = append(events, e)
	}
	return events, len(s.log)
}
