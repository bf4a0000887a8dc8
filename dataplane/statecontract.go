package dataplane

import (
	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

// State is what the datastore, and what was decided from it for BGP, want of this host.
type State struct {
	Reader  model.Reader   // the newest snapshot
	Changed []model.Key    // what differs from the State before; only hints for the cost
	All     bool           // everything may differ
	Statics []route.Static // routes to peers behind a gateway
	Peering []link.Peering // addresses towards workloads that speak BGP
	// Both: what nobody wants may be removed.
	DatastoreSynced, BGPSynced bool
}
