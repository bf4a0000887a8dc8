package datastore

import (
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// working is the unpublished state of one kind.
type working struct {
	view
	reducer         *reducer
	shown           *view // as last published
	parts           [3]progress
	since, answered time.Time // of the last change of inSync; of the last event but a loss
}

// progress is how far one Part of a kind has come.
type progress struct {
	inSync, read bool  // now; at least once
	revision     int64 // all changes up to here are included
	// moved is set if the view differs from the published one, and changed where it does.
	moved   bool
	changed []model.Key
	// deleted has the revisions of recent deletions, so that a late older update does not undo them.
	deleted map[model.Key]int64
	// early has the revisions of new objects that this process has stored and the watch has not delivered yet: a watch
	// that reads everything again does not report the deletion of an object that it never delivered.
	early map[model.Key]int64

	lost   error
	lostAt time.Time
}

func newWorking(kind model.Kind, r *reducer, inSync bool, at time.Time) *working {
	w := &working{view: view{kind: kind, objects: newObjects(), quarantined: newQuarantine()}, reducer: r, since: at}
	for i := range w.parts {
		w.parts[i].deleted, w.parts[i].early = map[model.Key]int64{}, map[model.Key]int64{}
	}
	w.parts[Whole].inSync = inSync
	w.shown = &view{kind: kind, objects: newObjects(), quarantined: newQuarantine(), later: make(chan struct{})}
	return w
}

// inSync reports whether the kind is in sync, in one piece or in both parts.
func (w *working) inSync() bool {
	return w.parts[Whole].inSync || w.parts[Own].inSync && w.parts[Others].inSync
}

// advance records that a part is complete up to a revision, if that is later than before.
func (w *working) advance(p Part, revision int64) {
	w.parts[p].revision = max(w.parts[p].revision, revision)
	w.complete()
}

// complete sets the revision of the kind to that of the part that is behind.
func (w *working) complete() {
	w.revision = max(w.parts[Whole].revision, min(w.parts[Own].revision, w.parts[Others].revision))
}

// whyLost returns the part that was lost last and still is, nil if none is.
func (w *working) whyLost() (why *progress) {
	for i := range w.parts {
		p := &w.parts[i]
		if !p.inSync && p.lost != nil && (why == nil || p.lostAt.After(why.lostAt)) {
			why = p
		}
	}
	return why
}

// partOf returns the part of an endpoint that did not come by the watch. No other kind has parts.
func (w *working) partOf(k model.Key) Part {
	if w.parts[Own].revision == 0 && w.parts[Others].revision == 0 {
		return Whole
	}
	if ids, err := model.ParseWorkloadEndpointName(k.Name); err == nil && ids.Node == w.reducer.node {
		return Own
	}
	return Others
}

// moved reports whether a part that is in sync differs from what is published.
func (w *working) moved() bool {
	return slices.ContainsFunc(w.parts[:], func(p progress) bool { return p.inSync && p.moved })
}

// freeze publishes the state, and returns the keys in which it differs from the one before.
func (w *working) freeze() (changed []model.Key) {
	inSync := w.inSync()
	for i := range w.parts {
		if p := &w.parts[i]; inSync || p.inSync {
			changed = append(p.changed, changed...) // in no order
			p.moved, p.changed = false, nil
		}
	}
	from := &w.view
	if !inSync {
		from = w.shown
	}
	next := &view{kind: w.kind, objects: from.objects.clone(), quarantined: w.shown.quarantined,
		revision: from.revision, later: make(chan struct{})}
	if w.quarantined.Len() > 0 || next.quarantined.Len() > 0 { // usually there are none
		next.quarantined = from.quarantined.clone()
	}
	if !inSync { // the lost part stays as it was
		next.objects.copy(w.objects, changed)
		next.quarantined.copy(w.quarantined, changed)
	}
	w.shown = next
	return changed
}

// take applies one event, and returns false if it is late. The state of a key depends on the newest valid version, the
// newest invalid one and the newest deletion, in any order: a valid version without a later deletion is in use, and
// stays so while a newer one is invalid.
func (w *working) take(e Event, now func() time.Time) bool {
	good, _ := w.objects.get(e.Key)
	bad, wasBad := w.quarantined.get(e.Key)
	p := &w.parts[e.Part]
	if !p.inSync {
		// A full read replaces newer revisions, too: the datastore may have been restored to an earlier state.
		delete(p.deleted, e.Key)
		if e.Type == EventUpdate && e.Object.Err != nil && e.Revision < revisionOf(good) {
			w.objects.remove(e.Key)
			good = nil
		}
	}
	goodAt, badAt, goneAt := revisionOf(good), revisionOf(bad.Object), p.deleted[e.Key]
	newer := func(revisions ...int64) bool { return !p.inSync || e.Revision >= slices.Max(revisions) }
	valid := e.Type == EventUpdate && e.Object.Err == nil
	switch {
	case valid && p.inSync && !wasBad && e.Revision == goodAt:
		return true // this process has written it: see Tables.Wrote
	case valid && newer(goodAt, goneAt):
		o := w.reducer.reduce(e.Object)
		if p.inSync && !wasBad && model.SameRemote(good, o) {
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
		if p.inSync {
			p.remember(e)
		}
	default:
		return false
	}
	if wasBad && newer(badAt) && (valid || e.Type == EventDelete) {
		w.quarantined.remove(e.Key)
	}
	p.touch(e.Key)
	w.settleSpelling(e.Key, now)
	return true
}

// fallBack has the version of an earlier run stay in use if the first full read finds a newer one that is invalid.
func (w *working) fallBack(e Event, earlier map[model.Key]*model.Object) {
	o := earlier[e.Key]
	if o == nil || w.parts[e.Part].read || e.Type != EventUpdate || e.Object.Err == nil || o.Revision > e.Revision {
		return
	}
	if good, _ := w.objects.get(e.Key); good == nil {
		w.objects.set(w.reducer.reduce(o))
	}
}

// touch records that readers may see another object under a key.
func (p *progress) touch(k model.Key) {
	p.changed, p.moved = append(p.changed, k), true
}

func revisionOf(o *model.Object) int64 {
	if o == nil {
		return 0
	}
	return o.Revision
}

// remembered bounds the size of deleted; lateness bounds the age of a late update, in revisions.
const remembered, lateness = 4096, 1024

func (p *progress) remember(e Event) {
	p.deleted[e.Key] = e.Revision
	if len(p.deleted) <= remembered {
		return
	}
	for k, revision := range p.deleted {
		if revision < p.revision-lateness {
			delete(p.deleted, k)
		}
	}
}

// synced ends the full read of a part.
func (w *working) synced(e Event, now func() time.Time) {
	was, p := w.inSync(), &w.parts[e.Part]
	for k, stored := range p.early {
		if stored <= e.Revision || e.Revision < p.revision { // it was not read, or the datastore was put back
			delete(p.early, k)
			w.objects.remove(k)
			p.touch(k)
			w.settleSpelling(k, now)
		}
	}
	p.moved = p.moved || p.revision != e.Revision || !p.inSync
	p.revision, p.inSync, p.read, p.lost = e.Revision, true, true, nil
	clear(p.deleted)
	w.complete()
	if !was && w.inSync() {
		w.since = now()
	}
}
