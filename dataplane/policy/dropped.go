package policy

import "github.com/manxnet/manx/dataplane/ruleset"

// Reason is why rules drop or reject packets. Each has a counter, which only packets meet that are dropped.
type Reason string

// The reasons of policy, in the order in which packets meet them.
const (
	DroppedByPolicy   Reason = "policy"             // a rule with the action Deny
	droppedUnusable   Reason = "policy_unusable"    // the policy is missing, above its budget, or being computed
	droppedAtTierEnd  Reason = "end_of_tier"        // policies of a tier select the endpoint, and none decides
	droppedByDefault  Reason = "no_policy"          // no policy and no profile allows it
	droppedToHost     Reason = "endpoint_to_host"   // defaultEndpointToHostAction
	droppedUnknown    Reason = "unknown_endpoint"   // the interface has no endpoint
	droppedUndecided  Reason = "undecided"          // while rules change
	DroppedRefused    Reason = "refused_by_kernel"  // the kernel refuses the rules, in whose place all is dropped
	droppedSource     Reason = "source_check"       // not an address of the workload that sends it
	droppedBorrowed   Reason = "borrowed_address"   // from elsewhere, with an address of this node or of its workloads
	droppedLoopback   Reason = "loopback"           // from a workload to a loopback address of this host
	droppedTunnel     Reason = "tunnel"             // of a tunnel between nodes, but not from a node
	droppedPlain      Reason = "unencrypted"        // to a pod of another node, and encryption is required
	droppedInvalid    Reason = "invalid_connection" // of no connection
	droppedICMP       Reason = "icmp_error"         // a redirect, or an error about a connection of others
	droppedService    Reason = "unserved_service"   // to an address of a Service without endpoints
	droppedPacketRate Reason = "packet_rate"        // packetRate of qosControls
	droppedConnection Reason = "connection_limit"   // maxConnections of qosControls, or --workload-max-connections
	droppedFragments  Reason = "fragment_limit"     // --workload-max-fragments
	droppedNeighbours Reason = "neighbour_limit"    // too many packets of neighbour discovery
)

// Reasons are all of them.
var Reasons = []Reason{DroppedByPolicy, droppedUnusable, droppedAtTierEnd, droppedByDefault, droppedToHost,
	droppedUnknown, droppedUndecided, DroppedRefused, droppedSource, droppedBorrowed, droppedLoopback, droppedTunnel,
	droppedPlain, droppedInvalid, droppedICMP, droppedService, droppedPacketRate, droppedConnection, droppedFragments,
	droppedNeighbours}

// Counter is the name of the reason's counter in the table.
func (r Reason) Counter() string { return "dropped-" + string(r) }

// uncounted is the chain without named counters, for a kernel that has none.
func uncounted(rules []ruleset.Rule) []ruleset.Rule {
	list := append([]ruleset.Rule(nil), rules...)
	for i := range list {
		list[i].CountedBy = ""
	}
	return list
}
