package datastore

import (
	"context"
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

// Store reads and writes single objects with compare-and-swap revisions. It is safe for concurrent use.
//
// Objects that it returns may have Err set: the entry exists but cannot be decoded or is invalid.
//
// A revision names one version of one object: it changes with each write (with Kubernetes, with each that changes
// something), and an object that was deleted and created again gets another one. Revisions are ordered within a kind,
// because each kind has a clock. Kinds may have clocks of their own (Kubernetes) or one clock together (etcd): whoever
// compares revisions compares those of one kind, and whoever needs the state as of a write calls Snapshot.Contains.
type Store interface {
	// Get returns the object, or an error that Is ErrNotFound.
	Get(ctx context.Context, key model.Key) (*model.Object, error)
	// List returns the objects of a kind, of one namespace if that is not empty, in key order, and the revision of the
	// list on the kind's clock. A BlockAffinity's namespace is its owner: "host/node-1".
	List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error)
	// Create stores a new object, or fails with ErrExists. Defaults are filled in and the object is validated before.
	Create(ctx context.Context, o *model.Object) (*model.Object, error)
	// Update replaces the object whose revision is o.Revision, or fails with ErrConflict or ErrNotFound.
	// Fields of the stored object that this version does not know are kept.
	Update(ctx context.Context, o *model.Object) (*model.Object, error)
	// Delete removes the object and returns what it was. Revision 0 deletes whatever is there; otherwise it must match.
	Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error)
	// Watch delivers what is stored of the given kinds and then each change, until ctx or the Store ends; then it
	// closes the channel. A kind that cannot be watched is an EventLost that says so, after which the channel is
	// closed.
	//
	// Kinds may be followed together or each on its own. Of one kind, after EventInSync with revision R and the events
	// up to revision S the reader has what was stored at S: the events come in the order of their revisions. Between
	// EventLost and the next EventInSync (and before the first) he is given differences to an older state, in any order
	// and at most one of each key, which add up at EventInSync. Kinds that are followed together are consistent with
	// each other; those that are followed on their own are not: one may be ahead, and one may be lost while others go
	// on.
	Watch(ctx context.Context, kinds ...model.Kind) <-chan Event
	Close() error
}

// Errors that a Store returns, wrapped with the key. Test with errors.Is.
var (
	ErrNotFound     = model.ErrNotFound
	ErrExists       = model.ErrExists
	ErrConflict     = model.ErrConflict
	ErrUnauthorized = model.ErrUnauthorized
	ErrUnavailable  = model.ErrUnavailable
)

// KeyError is an error about one object.
type KeyError struct {
	Op  string // get, list, create, update, delete
	Key model.Key
	Err error
}

func (e *KeyError) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Key, e.Err) }
func (e *KeyError) Unwrap() error { return e.Err }

// EventType says what an Event reports.
type EventType int

const (
	// EventUpdate: Object was created or changed.
	EventUpdate EventType = iota
	// EventDelete: the object of Key is gone.
	EventDelete
	// EventInSync: everything of Kinds that existed at Revision has been delivered. Sent once after each full read;
	// later full reads (after compaction or a lost connection) first deliver the differences, so that no change is
	// missed or invented.
	EventInSync
	// EventLost: the connection is lost; what was delivered of Kinds may be out of date until their next EventInSync.
	// Err says why.
	EventLost
)

// Event is one step of a watch.
type Event struct {
	Type     EventType
	Key      model.Key
	Object   *model.Object // EventUpdate only
	Revision int64         // on the clock of the kind
	Err      error         // EventLost only
	// Kinds are those that EventInSync or EventLost is about. None stands for all that are watched, which then have one
	// clock; otherwise each kind has a clock of its own.
	Kinds []model.Kind
	// More: the next event was written in the same transaction, and both are one step.
	More bool
}
