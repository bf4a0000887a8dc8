package route

import (
	"net/netip"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/livemigration"
)

// defaultWorkloadMetric is the metric of routes to local workloads, unless FelixConfiguration's ipv4NormalRoutePriority
// or ipv6NormalRoutePriority is set.
const defaultWorkloadMetric = 1024

// defaultElevatedMetric is the metric of routes to workloads that have just moved here, unless FelixConfiguration's
// ipv4ElevatedRoutePriority or ipv6ElevatedRoutePriority is set.
const defaultElevatedMetric = 512

// Moves are the phases of the workloads that move, by the name of their Endpoint.
type Moves map[string]livemigration.Phase

// The metrics of own blocks' blackholes and of routes to peers: none, as BIRD's static routes have it.
const (
	staticMetric4 = 0
	staticMetric6 = kernel.RouteMetric6
)

// Static is a route to a BGP peer through a gateway (BGPPeer reachableBy), which has to be on a link of this node.
type Static = hoststate.Static

// Endpoint is a workload's interface on this node. Its name is unique.
type Endpoint struct {
	Name      string // namespace/name of the WorkloadEndpoint
	Interface string
	Addresses []netip.Prefix // without host bits
	Refusals  []string       // why further ones are not used
}

// Config has the datastore's settings. Equal values need no change.
type Config struct {
	// Node4 and Node6 are the node's BGP addresses with their subnet's length, invalid if it has none.
	Node4, Node6 netip.Prefix
	Pools        ippool.Table
	// Blocks are the node's own; traffic to their unassigned addresses is dropped.
	Blocks    []netip.Prefix
	Endpoints []Endpoint
	// WorkloadMetric4 and WorkloadMetric6 are the metrics of the routes to local workloads; 0 is defaultWorkloadMetric.
	WorkloadMetric4, WorkloadMetric6 uint32
	// ElevatedMetric4 and ElevatedMetric6 are those of the routes to workloads that have just moved here; 0 is
	// defaultElevatedMetric.
	ElevatedMetric4, ElevatedMetric6 uint32
	// WorkloadSource4 and WorkloadSource6 are the source addresses that the host prefers for packets to local
	// workloads; invalid: the kernel chooses.
	WorkloadSource4, WorkloadSource6 netip.Addr
	// WorkloadProtocol is the protocol of the routes to local workloads; 0 is ProtocolCalico.
	WorkloadProtocol kernel.Protocol
	// RemoveExternal removes the routes of other programs to workload interfaces.
	RemoveExternal bool
	// LeaveWorkloads leaves the routes to workload interfaces to other programs, except those of BGP.
	LeaveWorkloads bool
	// WorkloadPrefixes are the prefixes of the names of workload interfaces.
	WorkloadPrefixes []string
	// ForeignPrefixes are those of the interfaces of workloads that another network connects: their routes are left
	// alone.
	ForeignPrefixes []string
	// Tables are the routing tables that hold routes of this node; main always is one. No other is touched.
	Tables []kernel.Table
	// IsNode reports whether an address belongs to a node of the cluster. May be nil.
	IsNode func(netip.Addr) bool
}

// Source is the origin of a desired route.
type Source string

const (
	SourceBGP      Source = "bgp"
	SourceBlock    Source = "block"
	SourceWorkload Source = "workload"
	SourceStatic   Source = "static" // to a peer that is reached by a gateway
	SourceIPAM     Source = "ipam"   // to the node that has the addresses, by IPAM's blocks
	SourceNone     Source = ""       // not desired
)

// Status is one row of the route table for users.
type Status struct {
	Prefix netip.Prefix
	Table  kernel.Table
	Source Source
	// Desired and Actual are written as by ip(8); empty for none.
	Desired string
	Actual  []string
	// Interface is through which the first of Actual leads; empty for none.
	Interface string
	// NextHops are the learned ones, or the gateway to a peer; Endpoint names the workload.
	NextHops []netip.Addr
	Endpoint string
	reconcile.Status
}
