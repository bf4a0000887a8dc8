package hoststate

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
)

// State is the desired state of this host: the datastore, and the decisions for BGP that follow from it.
type State struct {
	Reader  model.Reader // the newest snapshot; nil: as before
	Changed []model.Key  // the objects that differ from the State before; only hints for the cost
	All     bool         // everything may differ
	Statics []Static     // routes to peers behind a gateway
	Peering []Peering    // addresses towards workloads that speak BGP
	Peers   []netip.Addr // the BGP peers that are no workloads of this host
	// DatastoreSynced and BGPSynced report whether each has been read as a whole. Leftovers may be removed only with
	// both.
	DatastoreSynced, BGPSynced bool
	// Last is set if Reader has the last state of an earlier run, because the datastore does not answer: it has no
	// workloads and no policies.
	Last bool
}

// Then returns the newer State next for a reader that has not seen s. The slices of s are appended to.
func (s State) Then(next State) State {
	next.Changed = append(s.Changed, next.Changed...)
	next.All = s.All || next.All
	if next.Reader == nil {
		next.Reader = s.Reader
	}
	return next
}

// sameSettings reports whether two states differ in the datastore's objects alone.
func (s State) sameSettings(other State) bool {
	return s.DatastoreSynced == other.DatastoreSynced && s.BGPSynced == other.BGPSynced &&
		slices.Equal(s.Statics, other.Statics) && slices.Equal(s.Peering, other.Peering) &&
		slices.Equal(s.Peers, other.Peers)
}

// Static is a route to a BGP peer through a gateway (BGPPeer reachableBy), which has to be on a link of this node.
type Static struct {
	Prefix netip.Prefix
	Via    netip.Addr
	// Table is the table of the route, one of those that the routes' target keeps.
	Table kernel.Table
}

// Peering is the address of this node towards a workload that speaks BGP with it; it is put on the workload's
// interface.
type Peering struct {
	Interface string
	Address   netip.Addr
}
