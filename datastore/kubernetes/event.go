package kubernetes

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

func (f *feed) inSync(ctx context.Context) bool {
	f.lost, f.none = false, false
	return f.send(ctx, datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{f.kind}, Revision: f.at})
}

// follow delivers changes as they happen, until the watch ends. Those that have arrived together become one step of the
// reader.
func (f *feed) follow(ctx context.Context, r resource, events frames) error {
	defer func() { f.hold = false; f.release(ctx) }()
	if again := f.store.config.Rewatched; again != nil && f.followed {
		again()
	}
	f.followed = true
	for {
		if !events.ready() {
			f.release(ctx)
		}
		e, err := events.next()
		f.hold = err == nil && events.ready()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f.event(ctx, r, e)
		}
		if err != nil {
			return err
		}
	}
}

// event processes one event of a watch.
func (f *feed) event(ctx context.Context, r resource, e frame) error {
	switch e.typ {
	case "ERROR":
		return e.status(r.protobuf)
	case "BOOKMARK":
		m, err := e.bookmark(r.protobuf)
		if err != nil {
			return err
		}
		at, err := strconv.ParseInt(m.Metadata.ResourceVersion, 10, 64)
		switch {
		case err != nil:
		case at < f.at:
			return f.putBack()
		default:
			f.at = at
		}
		if !f.alive(ctx) {
			return ctx.Err()
		}
		return nil
	}
	if revision, same := f.latest.same(e); same {
		f.advance(revision)
		return nil
	}
	o, err := r.decode(e.object)
	if err != nil {
		f.store.log.Warn("an object cannot be read", zap.Stringer("resource", r), zap.Error(err))
		return nil
	}
	if o == nil {
		return nil
	}
	deliver := f.changed
	if e.typ == "DELETED" || form.Deleted(o) {
		deliver = f.gone
	}
	if !deliver(ctx, o) {
		return ctx.Err()
	}
	f.advance(o.Revision)
	return nil
}

// alive reports to the reader that the server still answers.
func (f *feed) alive(ctx context.Context) bool {
	return f.send(ctx, datastore.Event{Type: datastore.EventAlive, Kinds: []model.Kind{f.kind}, Revision: f.at})
}

// advance records that a change was delivered.
func (f *feed) advance(revision int64) {
	f.at, f.newest = max(f.at, revision), max(f.newest, revision)
}

// changed delivers a version of an object. A repaired IPAM object loses the key that it had while it was invalid.
func (f *feed) changed(ctx context.Context, o *model.Object) bool {
	if form.TwoSteps(f.kind) && o.Err == nil {
		name := f.nameOf(o)
		if bad := model.ResourceKey(f.kind, name); bad != o.Key && !f.deleted(ctx, bad, o) {
			return false
		}
		f.names[name] = o.Key
	}
	f.known.set(o.Key, o.Revision)
	f.newest = max(f.newest, o.Revision)
	return f.send(ctx, datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o, Revision: o.Revision})
}

// nameOf returns the name of the custom resource of an object of IPAM.
func (f *feed) nameOf(o *model.Object) string {
	if name, err := form.Name(o.Key); err == nil {
		return name
	}
	return o.Key.Name
}

// gone delivers the deletion of an object, whatever its key was.
func (f *feed) gone(ctx context.Context, o *model.Object) bool {
	if form.TwoSteps(f.kind) {
		name := f.nameOf(o)
		last, ok := f.names[name]
		delete(f.names, name)
		if ok && !f.deleted(ctx, last, o) || !f.deleted(ctx, model.ResourceKey(f.kind, name), o) {
			return false
		}
	}
	return f.deleted(ctx, o.Key, o)
}

// deleted delivers the deletion of a key with a version of the object, if known.
func (f *feed) deleted(ctx context.Context, k model.Key, with *model.Object) bool {
	if last, known := f.known.get(k); !known || k == with.Key && last > with.Revision {
		return true
	}
	return f.drop(ctx, k, with.Revision)
}

func (f *feed) drop(ctx context.Context, k model.Key, revision int64) bool {
	f.known.remove(k)
	f.store.forget(k)
	return f.send(ctx, datastore.Event{Type: datastore.EventDelete, Key: k, Revision: revision})
}

// forget drops the notices of a deleted object.
func (s *Store) forget(k model.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reported, k)
}

// send delivers an event to the reader, after the held one. It returns false if ctx ended first.
func (f *feed) send(ctx context.Context, e datastore.Event) bool {
	if held := f.held; held != nil {
		f.held, held.More = nil, true
		if !f.emit(ctx, *held) {
			return false
		}
	}
	if f.hold {
		f.held = &e
		return true
	}
	return f.emit(ctx, e)
}

// release delivers the held event, which nothing follows.
func (f *feed) release(ctx context.Context) {
	if held := f.held; held != nil {
		f.held = nil
		f.emit(ctx, *held)
	}
}

func (f *feed) emit(ctx context.Context, e datastore.Event) bool {
	e.Part = f.part
	if e.Type != datastore.EventLost {
		f.heard.Store(time.Now().UnixNano())
	}
	select {
	case f.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
