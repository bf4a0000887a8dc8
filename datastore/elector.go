package datastore

import (
	"context"
	"errors"

	"github.com/manxnet/manx/datastore/model"
)

// Elector lets one of several candidates lead, such as one manxd of a cluster that runs the controllers. An election is
// a name that its candidates have agreed on: lower-case letters, digits, dots and dashes. It is safe for concurrent
// use.
//
// Leadership is a lease: the leader renews it, and stops by its own clock before anybody else can have it. That holds
// as long as the clocks of leader and datastore run at about the same speed and the leader's process is not stopped; so
// what a leader writes is still to be written with compare-and-swap.
type Elector interface {
	// Campaign returns as soon as the candidate leads, or with an error when ctx ends or the datastore refuses. A
	// datastore that does not answer is waited for. Candidates are told apart by who campaigns, not by name.
	Campaign(ctx context.Context, election, candidate string) (Leadership, error)
	// Observe delivers the name of the leader, empty if nobody leads: first that of now, and then each change, until
	// ctx or the store ends; then it closes the channel. Names that were overtaken by later ones while nobody read are
	// left out. While the datastore does not answer, the last name stays.
	Observe(ctx context.Context, election string) <-chan string
}

// Leadership is what Campaign won.
type Leadership interface {
	// Context ends when leadership does, and before the next candidate leads. Its cause Is ErrNotLeading, and says why,
	// unless the caller ended the campaign's context or closed the store.
	Context() context.Context
	// Resign ends leadership, so that the next candidate need not wait for the lease to run out: call it when the work
	// of Context has come to rest. The error says why the others do have to wait. It may be called again.
	Resign(ctx context.Context) error
}

// ErrNotLeading is why the context of a Leadership ended.
var ErrNotLeading = errors.New("this candidate does not lead any more")

// Backend is a datastore as its package opens it.
type Backend interface {
	Store
	Elector
	// Keeps reports whether there can be objects of a kind that Watch follows. Calico's datastore in etcd does not keep
	// Kubernetes' own kinds, for instance.
	Keeps(kind model.Kind) bool
	// UpgradeNode brings what older releases wrote about a node into the form that this one needs. It may be called
	// again.
	UpgradeNode(ctx context.Context, node string) error
	// Notices are what a person should know of the datastore as it is now, a sentence each.
	Notices() []string
}
