package datastore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// Reread is what came of reading quarantined objects again.
type Reread struct {
	Quarantined int // before
	Still       int // of them
	Reason      string
}

// Reread reads every quarantined object again, one by one, and takes over what it finds, as the watch would. An object
// that is gone is left to the watch, which knows when it was deleted. The error is why not all could be read.
func (t *Tables) Reread(ctx context.Context, store Store) (Reread, error) {
	bad := slices.Collect(t.Snapshot().Quarantined())
	r := Reread{Quarantined: len(bad)}
	var failed error
	for _, q := range bad {
		if errors.Is(q.Object.Err, errSpelledTwice) {
			continue // nothing is wrong with the object itself
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

// takeRead enters what was read beside the watch. While that is out of sync it is left out: what the watch has
// delivered since could not be told from older states. The revision of the kind stays: the watch has yet to deliver
// what came before.
func (t *Tables) takeRead(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.of(e.Key.Kind); w.inSync && w.take(e, t.now) {
		t.publish()
	}
}

// Wrote takes over a version of an object that this process has just stored, as the watch would a moment later. One
// that the tables do not know is left to the watch, which alone tells when such an object is gone.
func (t *Tables) Wrote(o *model.Object) {
	if o.Err == nil && t.Snapshot().Get(o.Key) != nil {
		t.takeRead(Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: o.Revision})
	}
}
