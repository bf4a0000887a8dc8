package policy

import (
	"math"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// ID names a policy or a profile.
type ID struct {
	Kind            model.Kind
	Namespace, Name string
}

// String returns the name for people, comments and chain names: "NetworkPolicy/default/web".
func (i ID) String() string {
	if i.Namespace == "" {
		return string(i.Kind) + "/" + i.Name
	}
	return string(i.Kind) + "/" + i.Namespace + "/" + i.Name
}

// rank is Calico's order among policies of the same order: by name, then namespace, then kind.
func (p *Policy) rank() string {
	kind := p.ID.Kind
	if kind == model.KindClusterNetworkPolicy {
		kind = "Kubernetes" + kind // as Calico calls it
	}
	return p.name + "/" + p.ID.Namespace + "/" + string(kind)
}

// Policy is a policy or profile, compiled: selectors are about endpoints' labels, names are numbers.
type Policy struct {
	ID    ID
	Tier  string
	Order float64
	// Selector selects the endpoints of the policy; nil for a profile.
	Selector *selector.Selector
	// Staged policies are computed and counted, never enforced.
	Staged                              bool
	DoNotTrack, PreDNAT, ApplyOnForward bool
	Ingress, Egress                     Direction
	// name is its author's name for it; old versions of Calico store it under another one.
	name string
	// tooMany is the number of its rules if it is above the budget with these alone: they are left out.
	tooMany int
}

// Direction is the half of a policy about packets to (ingress) or from (egress) an endpoint.
type Direction struct {
	Applies bool // of types
	Rules   []Rule
}

// Action is the action of a rule.
type Action uint8

// Calico's actions.
const (
	Allow Action = iota + 1
	Deny
	Pass
	Log
)

func (a Action) String() string { return [...]string{"", "Allow", "Deny", "Pass", "Log"}[a] }

// Rule acts on packets that all its conditions hold for.
type Rule struct {
	Action              Action
	Family              int // 4 or 6; 0 for both
	Protocol            uint8
	NotProtocol         uint8
	ICMP, NotICMP       *ICMP
	Source, Destination Entity
	// Name is the rule's own, of its metadata.
	Name string
	// Never is why the rule can match nothing, for people.
	Never string
}

// ICMP is a type and perhaps a code of ICMP or ICMPv6.
type ICMP struct {
	Type    uint8
	HasCode bool
	Code    uint8
}

// Entity is one end of a packet.
type Entity struct {
	Nets, NotNets         []netip.Prefix
	Selector, NotSelector *selector.Selector // nil for none
	Ports, NotPorts       PortList
	Service               Service // with its ports if it is a destination, its addresses if a source
}

// Service names a Kubernetes service; the zero value none.
type Service struct{ Namespace, Name string }

// PortList is numbers and names.
type PortList struct {
	Ranges [][2]uint16
	Names  []string
}

func (p PortList) empty() bool { return len(p.Ranges) == 0 && len(p.Names) == 0 }

// Compare orders the policies of a tier as they are evaluated.
func (p *Policy) Compare(o *Policy) int {
	switch {
	case p.Order < o.Order:
		return -1
	case p.Order > o.Order:
		return 1
	}
	return strings.Compare(p.rank(), o.rank())
}

func orderOf(o *float64) float64 {
	if o == nil {
		return math.Inf(1)
	}
	return *o
}

func (p *Policy) hasPass(in bool) bool {
	d := p.Direction(in)
	for i := range d.Rules {
		if d.Rules[i].Action == Pass {
			return true
		}
	}
	return false
}
