package datastore

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Snapshot is the state of the tables at one moment. It never changes, holds no lock and costs nothing to keep, except
// that the changes since it cannot be forgotten. It implements model.Reader: of an object that is quarantined readers see
// the last valid version, if these tables have seen one, and else nothing.
//
// Published snapshots hold what the datastore held at one revision, of all watched kinds.
type Snapshot struct {
	objects     tree[*model.Object]
	quarantined tree[Quarantined]
	revision    int64
	inSync      bool
	later       chan struct{} // closed when a newer snapshot replaces this one
	log         *logEntry
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

func newSnapshot() *Snapshot {
	return &Snapshot{
		objects:     newObjects(),
		quarantined: newQuarantine(),
		later:       make(chan struct{}),
		log:         new(logEntry),
	}
}

// Revision is the datastore's revision of the newest change in the snapshot.
func (s *Snapshot) Revision() int64 { return s.revision }

// InSync is false before the first full read, when the snapshot is empty, and while the connection is lost, when it
// holds the last state that was seen: still good to act upon, but not to conclude that something new is absent.
func (s *Snapshot) InSync() bool { return s.inSync }

// Get implements model.Reader.
func (s *Snapshot) Get(k model.Key) *model.Object {
	o, _ := s.objects.get(k)
	return o
}

// All implements model.Reader.
func (s *Snapshot) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		s.objects.AscendGreaterOrEqual(s.objects.at(model.Key{Kind: kind}), func(o *model.Object) bool { return o.Key.Kind == kind && yield(o) })
	}
}

// Len is the number of objects that readers see.
func (s *Snapshot) Len() int { return s.objects.Len() }

// Quarantined visits the entries that cannot be used, in key order.
func (s *Snapshot) Quarantined() iter.Seq[Quarantined] {
	return func(yield func(Quarantined) bool) {
		s.quarantined.Ascend(func(q Quarantined) bool {
			q.InUse = revisionOf(s.Get(q.Object.Key))
			return yield(q)
		})
	}
}

// Change is how one object differs between two snapshots. Old is nil for one that appeared, New for one that went, be it
// because it was deleted or because it became invalid.
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
			s.objects.Ascend(func(o *model.Object) bool { return yield(Change{Key: o.Key, New: o}) })
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
