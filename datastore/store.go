package datastore

import (
	"context"
	"fmt"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Store reads and writes single objects with compare-and-swap revisions. It is safe for concurrent use.
//
// Returned objects may have Err set: the entry exists but cannot be decoded or is invalid.
//
// A revision identifies one version of one object: it changes with each write (with Kubernetes, with each effective
// one), and an object that was deleted and created again gets another one. Revisions are ordered within a kind, because
// each kind has a clock. Kinds may have separate clocks (Kubernetes) or share one (etcd): compare only revisions of one
// kind, and use Snapshot.Contains to wait for the effect of a write.
type Store interface {
	// Get returns the object, or an error that Is ErrNotFound.
	Get(ctx context.Context, key model.Key) (*model.Object, error)
	// List returns the objects of a kind, of one namespace if that is not empty, in key order, and the revision of the
	// list on the kind's clock. A BlockAffinity's namespace is its owner: "host/node-1".
	List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error)
	// Create stores a new object, or fails with ErrExists. It sets defaults and validates the object first.
	Create(ctx context.Context, o *model.Object) (*model.Object, error)
	// Update replaces the object whose revision is o.Revision, or fails with ErrConflict or ErrNotFound. It keeps
	// fields of the stored object that this version does not know.
	Update(ctx context.Context, o *model.Object) (*model.Object, error)
	// Delete deletes the object and returns its last version. Revision 0 matches any version.
	Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error)
	// Watch delivers the stored objects of the given kinds and then each change, until ctx or the Store ends; then it
	// closes the channel. For a kind that cannot be watched it sends an EventLost with the reason, and closes the
	// channel.
	//
	// Kinds may be followed together or separately. For each kind, after EventInSync with revision R and the events up
	// to revision S the reader has the state at S: the events come in the order of their revisions. Between EventLost
	// and the next EventInSync (and before the first) it gets differences to an older state, in any order and at most
	// one for each key, which add up at EventInSync. Kinds that are followed together are consistent with each other.
	// Kinds that are followed separately are not: one may be ahead, and one may be lost while others continue. A kind
	// may be followed in two parts, for which all of this holds separately: see Part.
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

// EventType is the type of an Event.
type EventType int

const (
	// EventUpdate: Object was created or changed.
	EventUpdate EventType = iota
	// EventDelete: the object of Key was deleted.
	EventDelete
	// EventInSync: all objects of Kinds at Revision have been delivered. Sent once after each full read; later full
	// reads (after compaction or a lost connection) first deliver the differences, so that every change is delivered
	// exactly once.
	EventInSync
	// EventAlive: the datastore has answered that nothing has changed about Kinds, up to Revision if that is not 0. It
	// answers at least every Heartbeat.
	EventAlive
	// EventLost: the connection is lost; the delivered state of Kinds may be out of date until their next EventInSync.
	// Err is the reason.
	EventLost
)

// Heartbeat is the interval at which a datastore shows that it still answers, on a watch without changes.
const Heartbeat = time.Minute

// Part is a part of a kind that is followed separately from the rest. A key stays in one part.
type Part int

// The parts. Both clocks of Own and Others are that of the kind, but one may be ahead.
const (
	Whole  Part = iota // the kind is followed in one piece
	Own                // the objects of the reader's node
	Others             // those of all other nodes
)

// Event is one step of a watch.
type Event struct {
	Type     EventType
	Part     Part // of its kind
	Key      model.Key
	Object   *model.Object // EventUpdate only
	Revision int64         // on the clock of the kind
	Err      error         // EventLost only
	// Kinds are the kinds of an EventInSync, EventAlive or EventLost. If empty, the event is about all watched kinds,
	// which then share one clock; otherwise each kind has its own clock.
	Kinds []model.Kind
	// More is set if the next event follows at once, and both are one step: those of a transaction, or read together.
	More bool
}
