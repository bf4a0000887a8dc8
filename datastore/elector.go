package datastore

import (
	"context"
	"errors"

	"github.com/manxnet/manx/datastore/model"
)

// Elector elects one of several candidates, for instance the manxd of a cluster that runs the controllers. An election
// is a name that its candidates share: lower-case letters, digits, dots and dashes. It is safe for concurrent use.
//
// Leadership is a lease: the leader renews it, and stops by its own clock before another candidate can have it. That
// requires that the clocks of leader and datastore run at about the same speed and that the leader's process is not
// stopped; so a leader must still write with compare-and-swap.
type Elector interface {
	// Campaign returns when the candidate leads, or with an error when ctx ends or the datastore refuses. It waits for
	// a datastore that does not answer. Each campaign is a separate candidate, even with an equal name.
	Campaign(ctx context.Context, election, candidate string) (Leadership, error)
	// Observe delivers the name of the leader, empty for none: first the current one, then each change, until ctx or
	// the store ends; then it closes the channel. A slow reader misses intermediate names. While the datastore does not
	// answer, the last name stays.
	Observe(ctx context.Context, election string) <-chan string
}

// Leadership is the result of a won Campaign.
type Leadership interface {
	// Context ends when leadership does, and before the next candidate leads. Its cause Is ErrNotLeading, with the
	// reason, unless the caller ended the campaign's context or closed the store.
	Context() context.Context
	// Resign ends leadership, so that the next candidate need not wait for the lease to expire: call it after all work
	// of Context has ended. The error explains why the others do have to wait. It may be called again.
	Resign(ctx context.Context) error
}

// ErrNotLeading is the cause of the end of a Leadership's context.
var ErrNotLeading = errors.New("this candidate does not lead any more")

// Backend is a datastore as opened by its package.
type Backend interface {
	Store
	Elector
	// Keeps reports whether the datastore stores a kind, so that Watch can follow it. Calico's datastore in etcd does
	// not store Kubernetes' kinds, for instance.
	Keeps(kind model.Kind) bool
	// Source names for a person from where Watch reads a kind: the endpoints of etcd, or the resource and the server of
	// the Kubernetes API. It is empty for a kind that the datastore does not keep.
	Source(kind model.Kind) string
	// UpgradeNode converts the entries that older releases wrote for a node to this release's form. It may be called
	// again.
	UpgradeNode(ctx context.Context, node string) error
	// Notices returns the current remarks on the datastore for an operator, a sentence each.
	Notices() []string
}
