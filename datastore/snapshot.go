package datastore

import (
	"cmp"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Snapshot is the state of the tables at one moment. It never changes, holds no lock and costs nothing to keep, except
// that the changes since it cannot be forgotten. It implements model.Reader: of an object that is quarantined readers
// see the last valid version, if these tables have seen one, and else nothing.
//
// Published snapshots hold, of each kind, what the datastore held at one revision of the kind's clock: at the same one
// of all watched kinds, if these have one clock.
type Snapshot struct {
	views    []*view // in the order of the kinds
	revision int64   // 0 if the kinds have several clocks
	inSync   bool
	later    chan struct{} // closed when a newer snapshot replaces this one
	log      *logEntry
}

// view is what a snapshot holds of one kind.
type view struct {
	kind        model.Kind
	objects     tree[*model.Object]
	quarantined tree[Quarantined]
	revision    int64 // everything up to here is in it
}

// of is what the snapshot holds of a kind, nil if there is nothing.
func (s *Snapshot) of(kind model.Kind) *view {
	i, ok := slices.BinarySearchFunc(s.views, kind, func(v *view, k model.Kind) int { return cmp.Compare(v.kind, k) })
	if !ok {
		return nil
	}
	return s.views[i]
}

// logEntry tells how one snapshot differs from the one before. Entries are linked forward: as long as somebody holds a
// snapshot the changes since are there, and no longer.
type logEntry struct {
	changed []model.Key
	next    atomic.Pointer[logEntry]
}

var _ model.Reader = (*Snapshot)(nil)

// Quarantined is an entry that exists in the datastore, but cannot be used. Object.Err says why.
type Quarantined struct {
	Object *model.Object
	Since  time.Time
	// InUse is the revision of the last valid version, which stays in use; 0 if there is none.
	InUse int64
}

// Replaced returns a channel that is closed as soon as the tables have a newer snapshot.
func (s *Snapshot) Replaced() <-chan struct{} { return s.later }

func newSnapshot() *Snapshot { return &Snapshot{later: make(chan struct{}), log: new(logEntry)} }

// Revision returns the datastore's revision of the newest change in the snapshot, 0 if kinds have clocks of their own.
// It is to be shown, not to be compared with the revision of an object: see Contains.
func (s *Snapshot) Revision() int64 { return s.revision }

// RevisionOf returns the revision of a kind, on its clock, up to which the snapshot holds everything; 0 if it holds
// nothing of it.
func (s *Snapshot) RevisionOf(kind model.Kind) int64 {
	if v := s.of(kind); v != nil {
		return max(v.revision, s.revision)
	}
	return s.revision
}

// Contains reports whether the snapshot holds that version of an object or a later one, of which the object's deletion
// is one: whether it is the state as of that write. A version that was found invalid counts, because readers will see
// no more of it.
func (s *Snapshot) Contains(k model.Key, revision int64) bool {
	if s.RevisionOf(k.Kind) >= revision {
		return true
	}
	v := s.of(k.Kind) // one object may be ahead of its kind: see Tables.Reread
	if v == nil {
		return false
	}
	good, _ := v.objects.get(k)
	bad, _ := v.quarantined.get(k)
	return max(revisionOf(good), revisionOf(bad.Object)) >= revision
}

// InSync is false before the first full read, when the snapshot is empty, and while a watched kind is lost, of which it
// then holds the last state that was seen: still good to act upon, but not to conclude that something new is absent.
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

// In visits the objects of a kind that a list of a namespace has, in key order: see model.Key.In. The cost follows
// their number.
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

// Len returns the number of objects that readers see.
func (s *Snapshot) Len() (n int) {
	for _, v := range s.views {
		n += v.objects.Len()
	}
	return n
}

// Quarantined visits the entries that cannot be used, in key order.
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

// Change is how one object differs between two snapshots. Old is nil for one that appeared, New for one that went, be
// it because it was deleted or because it became invalid.
type Change struct {
	Key      model.Key
	Old, New *model.Object
}

// Changes visits what readers of s see differently from readers of since, in key order, each object once. since must be
// an earlier snapshot of the same tables; nil stands for the empty one. The cost follows the number of changes, not the
// size of the tables.
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

// keysSince lists, in order and once each, the keys that were touched from since to s.
func (s *Snapshot) keysSince(since *Snapshot) []model.Key {
	var keys []model.Key
	for step := since.log; step != s.log; {
		if step = step.next.Load(); step == nil {
			break // s is not later than since
		}
		keys = append(keys, step.changed...)
	}
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
}
