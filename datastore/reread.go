package datastore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// Reread is the result of reading quarantined objects again.
type Reread struct {
	Quarantined int // before
	Still       int // still quarantined
	Reason      string
}

// Reread reads every quarantined object again, one by one, and applies the results as the watch would. It leaves
// deleted objects to the watch, which has the deletions' revisions. The error explains why not all could be read.
func (t *Tables) Reread(ctx context.Context, store Store) (Reread, error) {
	bad := slices.Collect(t.Snapshot().Quarantined())
	r := Reread{Quarantined: len(bad)}
	var failed error
	for _, q := range bad {
		if errors.Is(q.Object.Err, errSpelledTwice) {
			continue // the error does not concern the object
		}
		o, err := store.Get(ctx, q.Object.Key)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		if o.Err == nil || o.Revision != q.Object.Revision {
			t.takeRead(Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: o.Revision})
		}
	}
	still := t.Snapshot()
	for _, q := range bad {
		if now, ok := still.of(q.Object.Key.Kind).quarantined.get(q.Object.Key); ok {
			r.Still++
			r.Reason = cmp.Or(r.Reason, now.Object.Err.Error())
		}
	}
	return r, failed
}

// takeRead applies an object that was read outside the watch. It ignores the object while the watch is out of sync:
// newer events of the watch could not be distinguished from older states. The revision of the kind stays: the watch has
// yet to deliver earlier events.
func (t *Tables) takeRead(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.of(e.Key.Kind)
	if e.Part = w.partOf(e.Key); w.parts[e.Part].inSync && w.take(e, t.now) {
		t.publish()
	}
}

// Wrote applies a version of an object that this process has just stored, as the watch would a moment later. An object
// that the tables do not have is new to them, or its deletion has come already: then the watch is past its revision. An
// endpoint without addresses is left to the watch, which may leave out a pod that has ended.
func (t *Tables) Wrote(o *model.Object) {
	if o.Err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.of(o.Key.Kind)
	part := w.partOf(o.Key)
	p := &w.parts[part]
	if !p.inSync {
		return // see takeRead
	}
	if _, known := w.objects.get(o.Key); !known {
		e, isEndpoint := o.Value.(*model.WorkloadEndpoint)
		if o.Revision <= p.revision || isEndpoint && len(e.Spec.IPNetworks) == 0 && e.Spec.Claim == nil {
			return
		}
		p.early[o.Key] = o.Revision
	}
	if w.take(Event{Type: EventUpdate, Part: part, Key: o.Key, Object: o, Revision: o.Revision}, t.now) {
		t.publish()
	}
}
