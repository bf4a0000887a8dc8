package dataplane

import (
	"time"

	"github.com/manxnet/manx/dataplane/device"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/filter"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/mtufile"
	"github.com/manxnet/manx/dataplane/neighbour"
	"github.com/manxnet/manx/dataplane/offload"
	"github.com/manxnet/manx/dataplane/pathmtu"
	"github.com/manxnet/manx/dataplane/peering"
	"github.com/manxnet/manx/dataplane/proxyneighbour"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/shape"
	"github.com/manxnet/manx/dataplane/sysctl"
	"github.com/manxnet/manx/dataplane/vxlan"
	"github.com/manxnet/manx/dataplane/wireguard"
)

// Target keeps one kind of object on this host as desired: routes, say, or files. An Agent calls its methods one at a
// time, with its lock held. SetState, Handle, Resync and Retry take note and may compute; Flush alone changes the host.
// A target that needs another one gets it by its constructor. Nothing is undone when its agent ends.
type Target interface {
	// Name is the target's in logs.
	Name() string
	// SetState applies the newest state. It is called for each one, the first of which has a snapshot; h belongs to the
	// agent and changes with the next one.
	SetState(h *hoststate.Host)
	// Handle receives events of the kernel, also before the first SetState.
	Handle(events []kernel.Event)
	// Resync makes a Flush soon compare the desired state with the actual one, object by object.
	Resync()
	// Retry makes the next Flush repeat failed steps without waiting for their time, and compare as Resync does.
	Retry()
	// Flush brings the host to the desired state as far as it can. It returns how many changes were tried, how many of
	// them failed, and any other error. It is not called before the first SetState.
	Flush() (steps, failures int, err error)
	// Next returns how long the next Flush may wait if nothing happens before.
	Next() time.Duration
	// Health returns the target's health.
	Health() reconcile.Health
	// Notices are further facts that a person should know.
	Notices() []reconcile.Notice
	// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there
	// were.
	Repairs() (list []reconcile.Repair, more int)
}

// Learner is a Target that receives the routes that BGP has learned.
type Learner interface {
	// Learn sets the whole new state of each prefix. It may keep next hops, but not the slice.
	Learn([]locrib.Route)
	// OnlyLearned reports whether only learned routes wait for the next Flush: then no other target is concerned.
	OnlyLearned() bool
}

// lister is a Target that lists its objects for people. One with very many, such as the routes, has calls of its own.
type lister interface {
	// Rows returns the objects that are wanted or there.
	Rows() []reconcile.Row
	// Counts returns how many of them are in each phase.
	Counts() map[reconcile.Phase]int
}

// Object is an object of a target.
type Object struct {
	Target string // its Name
	reconcile.Row
}

var (
	_, _, _ Target  = (*device.Target)(nil), (*route.Target)(nil), (*shape.Target)(nil)
	_, _, _ Target  = (*endpointstatus.Files)(nil), (*filter.Target)(nil), (*neighbour.Target)(nil)
	_, _, _ Target  = (*sysctl.Target)(nil), (*mtufile.Target)(nil), (*peering.Target)(nil)
	_, _    Target  = (*proxyneighbour.Target)(nil), (*vxlan.Target)(nil)
	_, _, _ Target  = (*pathmtu.Target)(nil), (*wireguard.Target)(nil), (*offload.Target)(nil)
	_       Learner = (*route.Target)(nil)
	_, _    lister  = (*device.Target)(nil), (*sysctl.Target)(nil)
	_, _    lister  = (*endpointstatus.Files)(nil), (*neighbour.Target)(nil)
	_, _, _ lister  = (*vxlan.Target)(nil), (*pathmtu.Target)(nil), (*wireguard.Target)(nil)
	_       lister  = (*offload.Target)(nil)
)

// State is the desired state of this host: the datastore, and the decisions for BGP that follow from it.
type State = hoststate.State

// Notice is something about this host that a person should know.
type Notice = reconcile.Notice
