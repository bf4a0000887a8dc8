package datastore

import (
	"cmp"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Snapshot is the state of the tables at one moment. It never changes and holds no lock; keeping it only keeps the
// changes since. It implements model.Reader: for a quarantined object readers get the last valid version, if these
// tables have seen one, and else nothing.
//
// A published snapshot has, for each kind, the datastore's state at one revision of the kind's clock: at the same one
// for all watched kinds, if these share a clock.
type Snapshot struct {
	views    []*view // in the order of the kinds
	revision int64   // 0 if the kinds have several clocks
	inSync   bool
	later    chan struct{} // closed when a newer snapshot replaces this one
	log      *logEntry
}

// view is a snapshot's content of one kind.
type view struct {
	kind        model.Kind
	objects     tree[*model.Object]
	quarantined tree[Quarantined]
	revision    int64         // all changes up to here are included
	later       chan struct{} // closed when snapshots have a newer view of the kind; nil for an unpublished one
}

// of returns the snapshot's view of a kind, nil for none.
func (s *Snapshot) of(kind model.Kind) *view {
	i, ok := slices.BinarySearchFunc(s.views, kind, func(v *view, k model.Kind) int { return cmp.Compare(v.kind, k) })
	if !ok {
		return nil
	}
	return s.views[i]
}

// logEntry is the place of a snapshot in the list of differences between snapshots; next is nil for the newest one.
// Entries are linked forward: the changes since a snapshot live as long as it does.
type logEntry struct {
	next atomic.Pointer[difference]
}

// difference has the keys in which the snapshot at an entry differs from the one before. Only earlier snapshots refer
// to it: the first one names every object of the cluster.
type difference struct {
	changed []model.Key
	to      *logEntry
}

var _ model.Reader = (*Snapshot)(nil)

// Quarantined is an entry of the datastore that cannot be used. Object.Err is the reason.
type Quarantined struct {
	Object *model.Object
	Since  time.Time
	// InUse is the revision of the last valid version, which stays in use; 0 if there is none.
	InUse int64
}

// Replaced returns a channel that is closed as soon as the tables have a newer snapshot.
func (s *Snapshot) Replaced() <-chan struct{} { return s.later }

// ReplacedOf returns a channel that is closed as soon as the tables have a newer state of a kind. It does not keep the
// snapshot in memory.
func (s *Snapshot) ReplacedOf(kind model.Kind) <-chan struct{} {
	if v := s.of(kind); v != nil {
		return v.later
	}
	return s.later // before the first full read, or the kind is not watched
}

func newSnapshot() *Snapshot { return &Snapshot{later: make(chan struct{}), log: new(logEntry)} }

// Revision returns the datastore's revision of the newest change in the snapshot, 0 if kinds have separate clocks. It
// is for display, not for comparison with an object's revision: see Contains.
func (s *Snapshot) Revision() int64 { return s.revision }

// RevisionOf returns the revision of a kind, on its clock, up to which the snapshot is complete in all parts; 0 if it
// has nothing of the kind.
func (s *Snapshot) RevisionOf(kind model.Kind) int64 {
	if v := s.of(kind); v != nil {
		return max(v.revision, s.revision)
	}
	return s.revision
}

// Contains reports whether the snapshot includes that version of an object, or a later one or its deletion: whether it
// includes the effect of that write. An invalid version counts, because readers get no newer one.
func (s *Snapshot) Contains(k model.Key, revision int64) bool {
	if s.RevisionOf(k.Kind) >= revision {
		return true
	}
	v := s.of(k.Kind) // one object may be ahead of its kind: see Tables.Reread and Part
	if v == nil {
		return false
	}
	good, _ := v.objects.get(k)
	bad, _ := v.quarantined.get(k)
	return max(revisionOf(good), revisionOf(bad.Object)) >= revision
}

// InSync is false before the first full read, when the snapshot is empty, and while a watched kind is lost. Of a lost
// kind the snapshot has the last known state: valid to act on, but not to conclude that a new object is absent.
func (s *Snapshot) InSync() bool { return s.inSync }

// Get implements model.Reader.
func (s *Snapshot) Get(k model.Key) *model.Object {
	if v := s.of(k.Kind); v != nil {
		o, _ := v.objects.get(k)
		return o
	}
	return nil
}

// All implements model.Reader.
func (s *Snapshot) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		if v := s.of(kind); v != nil {
			v.objects.Ascend(yield)
		}
	}
}

// In visits the objects of a kind in a namespace, in key order: see model.Key.In. The cost is that of their number.
func (s *Snapshot) In(kind model.Kind, namespace string) iter.Seq[*model.Object] {
	first := model.Key{Kind: kind, Namespace: namespace}
	if kind == model.KindBlockAffinity && namespace != "" {
		first = model.Key{Kind: kind, Name: namespace + "/"}
	}
	return func(yield func(*model.Object) bool) {
		if v := s.of(kind); v != nil {
			v.objects.AscendGreaterOrEqual(v.objects.at(first), func(o *model.Object) bool {
				return o.Key.In(namespace) && yield(o)
			})
		}
	}
}

// Len returns the number of objects visible to readers.
func (s *Snapshot) Len() (n int) {
	for _, v := range s.views {
		n += v.objects.Len()
	}
	return n
}

// Quarantined visits the unusable entries, in key order.
func (s *Snapshot) Quarantined() iter.Seq[Quarantined] {
	return func(yield func(Quarantined) bool) {
		more := true
		for _, v := range s.views {
			v.quarantined.Ascend(func(q Quarantined) bool {
				good, _ := v.objects.get(q.Object.Key)
				q.InUse = revisionOf(good)
				more = yield(q)
				return more
			})
			if !more {
				return
			}
		}
	}
}

// Change is the difference of one object between two snapshots. Old is nil for a new one, New for one that was deleted
// or became invalid.
type Change struct {
	Key      model.Key
	Old, New *model.Object
}

// Changes visits the differences that readers see from since to s, in key order, each object once. since must be an
// earlier snapshot of the same tables; nil is the empty one. The cost is that of the changes, not of the size of the
// tables.
func (s *Snapshot) Changes(since *Snapshot) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		if since == nil {
			s.changesFromNothing(yield)
			return
		}
		for _, key := range s.keysSince(since) {
			c := Change{Key: key, Old: since.Get(key), New: s.Get(key)}
			if c.Old != c.New && !yield(c) {
				return
			}
		}
	}
}

func (s *Snapshot) changesFromNothing(yield func(Change) bool) {
	more := true
	for _, v := range s.views {
		v.objects.Ascend(func(o *model.Object) bool {
			more = yield(Change{Key: o.Key, New: o})
			return more
		})
		if !more {
			return
		}
	}
}

// keysSince lists, in order and once each, the keys that changed from since to s.
func (s *Snapshot) keysSince(since *Snapshot) []model.Key {
	var keys []model.Key
	for at := since.log; at != s.log; {
		step := at.next.Load()
		if step == nil {
			break // s is not later than since
		}
		keys, at = append(keys, step.changed...), step.to
	}
	slices.SortFunc(keys, model.Key.Compare)
	return slices.Compact(keys)
}
