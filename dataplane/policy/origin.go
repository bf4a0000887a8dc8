package policy

// The sources of the chains, rules and sets of the table: the values of their Origin fields. Explanations and counters
// go by these; names and comments are for people.

// ChainOf is the origin of the chain of a policy or profile for one direction.
type ChainOf struct {
	ID      ID
	Ingress bool
}

// EndpointChain is the origin of the chains that evaluate the tiers and profiles of endpoints, in their order.
type EndpointChain struct{}

// Stage is the origin of a base chain in which policy is enforced.
type Stage struct {
	Subject Subject
	// Option is the one that policies evaluated here have in their spec: "doNotTrack", "preDNAT" or "applyOnForward".
	// It is empty where policies without any are evaluated.
	Option string
}

// Subject is whose policies a stage evaluates.
type Subject uint8

// The interfaces are those of the host, which host endpoints protect.
const (
	SourceWorkload Subject = iota + 1
	DestinationWorkload
	HostItself
	InInterface
	OutInterface
)

// Ingress reports whether packets come to the subject there, rather than leave it.
func (s Subject) Ingress() bool {
	return s == DestinationWorkload || s == HostItself || s == InInterface
}

// RuleNumber is the origin of a rule in a ChainOf: the number of the policy's rule that it implements, alone or with
// others. It counts from 1 in each direction.
type RuleNumber int

// TierEnd is the origin of the rule that drops packets that none of the policies of a tier decided about: the tier's
// name.
type TierEnd string

// Unserved is the origin of the rule that drops packets to addresses of services which nothing translated.
type Unserved struct{}

// SetOrigin is the origin of a set: the source of its elements.
type SetOrigin uint8

const (
	// LiteralSet has networks or ports that rules of policies spell out.
	LiteralSet SetOrigin = iota + 1
	// MemberSet has the addresses for selectors, named ports and services of rules.
	MemberSet
	// ClusterSet has addresses or ports that the settings of the cluster and its node list decide, such as IP pools.
	ClusterSet
	// EndpointSet has addresses of this node and of its workloads.
	EndpointSet
)
