package datastore

import (
	"context"
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

// Store reads and writes single objects with compare-and-swap revisions. It is safe for concurrent use.
//
// Objects that it returns may have Err set: the entry exists but cannot be decoded or is invalid.
type Store interface {
	// Get returns the object, or an error that Is ErrNotFound.
	Get(ctx context.Context, key model.Key) (*model.Object, error)
	// List returns the objects of a kind, of one namespace if that is not empty, in key order, and the revision of the list.
	// A BlockAffinity's namespace is its owner: "host/node-1".
	List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error)
	// Create stores a new object, or fails with ErrExists. Defaults are filled in and the object is validated before.
	Create(ctx context.Context, o *model.Object) (*model.Object, error)
	// Update replaces the object whose revision is o.Revision, or fails with ErrConflict or ErrNotFound.
	// Fields of the stored object that this version does not know are kept.
	Update(ctx context.Context, o *model.Object) (*model.Object, error)
	// Delete removes the object and returns what it was. Revision 0 deletes whatever is there; otherwise it must match.
	Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error)
	// Watch delivers every change of the given kinds until ctx ends. See Event.
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
	// EventInSync: everything that existed at Revision has been delivered. Sent once after each full read; later
	// full reads (after compaction or a lost connection) first deliver the differences, so that no change is missed or invented.
	EventInSync
	// EventLost: the connection is lost; what was delivered may be out of date until the next EventInSync. Err says why.
	EventLost
)

// Event is one step of a watch.
type Event struct {
	Type     EventType
	Key      model.Key
	Object   *model.Object // EventUpdate only
	Revision int64
	Err      error // EventLost only
	// More: the next event was written in the same transaction, and both are one step.
	More bool
}
