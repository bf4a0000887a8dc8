package datastore

import (
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// working is the unpublished state of one kind.
type working struct {
	view
	reducer *reducer
	shown   *view // as last published
	// moved is set if the view differs from shown, and changed where it does.
	moved   bool
	changed []model.Key
	// deleted has the revisions of recent deletions, so that a late older update does not undo them.
	deleted map[model.Key]int64
	// early has the revisions of new objects that this process has stored and the watch has not delivered yet: a watch
	// that reads everything again does not report the deletion of an object that it never delivered.
	early map[model.Key]int64

	inSync, read    bool      // now; at least once
	since, answered time.Time // of inSync's last change; of the last event but a loss
	lost            error
	lostAt          time.Time
}

func newWorking(kind model.Kind, r *reducer, inSync bool, at time.Time) *working {
	w := &working{
		view:    view{kind: kind, objects: newObjects(), quarantined: newQuarantine()},
		reducer: r, deleted: map[model.Key]int64{}, early: map[model.Key]int64{}, inSync: inSync, since: at,
	}
	w.shown = &view{kind: kind, objects: newObjects(), quarantined: newQuarantine(), later: make(chan struct{})}
	return w
}

// freeze publishes the state, and returns the keys in which it differs from the one before.
func (w *working) freeze() (changed []model.Key) {
	next := &view{kind: w.kind, objects: w.objects.clone(), quarantined: w.shown.quarantined, revision: w.revision,
		later: make(chan struct{})}
	if w.quarantined.Len() > 0 || next.quarantined.Len() > 0 { // usually there are none
		next.quarantined = w.quarantined.clone()
	}
	w.shown, w.moved = next, false
	changed, w.changed = w.changed, nil
	return changed
}

// take applies one event, and returns false if it is late. The state of a key depends on the newest valid version, the
// newest invalid one and the newest deletion, in any order: a valid version without a later deletion is in use, and
// stays so while a newer one is invalid.
func (w *working) take(e Event, now func() time.Time) bool {
	good, _ := w.objects.get(e.Key)
	bad, wasBad := w.quarantined.get(e.Key)
	if !w.inSync {
		// A full read replaces newer revisions, too: the datastore may have been restored to an earlier state.
		delete(w.deleted, e.Key)
		if e.Type == EventUpdate && e.Object.Err != nil && e.Revision < revisionOf(good) {
			w.objects.remove(e.Key)
			good = nil
		}
	}
	goodAt, badAt, goneAt := revisionOf(good), revisionOf(bad.Object), w.deleted[e.Key]
	newer := func(revisions ...int64) bool { return !w.inSync || e.Revision >= slices.Max(revisions) }
	valid := e.Type == EventUpdate && e.Object.Err == nil
	switch {
	case valid && w.inSync && !wasBad && e.Revision == goodAt:
		return true // this process has written it: see Tables.Wrote
	case valid && newer(goodAt, goneAt):
		o := w.reducer.reduce(e.Object)
		if w.inSync && !wasBad && model.SameRemote(good, o) {
			return true // its kept fields are equal: most of a pod's changes are irrelevant to other nodes
		}
		w.objects.set(o)
	case e.Type == EventUpdate && !valid && newer(goodAt, badAt, goneAt):
		q := Quarantined{Object: e.Object, Since: now()}
		if wasBad {
			q.Since = bad.Since
		}
		w.quarantined.set(q)
	case e.Type == EventDelete && newer(goneAt):
		if good != nil && newer(goodAt) {
			w.objects.remove(e.Key)
			delete(w.reducer.confirmed, e.Key)
		}
		if w.inSync {
			w.remember(e)
		}
	default:
		return false
	}
	if wasBad && newer(badAt) && (valid || e.Type == EventDelete) {
		w.quarantined.remove(e.Key)
	}
	w.touch(e.Key)
	w.settleSpelling(e.Key, now)
	return true
}

// touch records that readers may see another object under a key.
func (w *working) touch(k model.Key) {
	w.changed, w.moved = append(w.changed, k), true
}

func revisionOf(o *model.Object) int64 {
	if o == nil {
		return 0
	}
	return o.Revision
}

// remembered bounds the size of deleted; lateness bounds the age of a late update, in revisions.
const remembered, lateness = 4096, 1024

func (w *working) remember(e Event) {
	w.deleted[e.Key] = e.Revision
	if len(w.deleted) <= remembered {
		return
	}
	for k, revision := range w.deleted {
		if revision < w.revision-lateness {
			delete(w.deleted, k)
		}
	}
}

// synced ends a full read.
func (w *working) synced(revision int64, now func() time.Time) {
	for k, stored := range w.early {
		if stored <= revision || revision < w.revision { // it was not read, or the datastore was put back
			delete(w.early, k)
			w.objects.remove(k)
			w.touch(k)
			w.settleSpelling(k, now)
		}
	}
	w.moved = w.moved || w.revision != revision || !w.inSync
	if !w.inSync {
		w.since = now()
	}
	w.revision, w.inSync, w.read = revision, true, true
	w.lost = nil
	clear(w.deleted)
}
