package explain

import (
	"net/netip"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// Answer is the explanation of one packet.
type Answer struct {
	Source, Destination End
	Flow                Flow
	// Notes are assumptions and further remarks for the reader.
	Notes []string
	// Stages are the places where policy is evaluated, in the order of the packet's way.
	Stages []Stage
	// Hops are the nodes on the packet's way, whether or not policy lets it go so far.
	Hops   []Hop
	Routes []Route
	// Allowed reports whether it arrives, as far as policy decides about that.
	Allowed bool
	// By names the rule, tier or default that dropped it, or those that allowed it.
	By string
}

// Hop is the packet on its arrival at a node.
type Hop struct {
	Node                string
	Source, Destination netip.Addr
	In, Out             string // interfaces; empty if it begins or ends at this node
}

// Addresses returns the addresses that the end may have in packets of the explained family: one if the query gave its
// address.
func (e End) Addresses() []netip.Addr {
	list := []netip.Addr{e.Address}
	for _, a := range e.addresses {
		if a.Is4() == e.Address.Is4() && a != e.Address {
			list = append(list, a)
		}
	}
	return list
}

// HopAt returns the packet on its arrival at a node; false if it does not arrive there.
func (a *Answer) HopAt(node string) (Hop, bool) {
	for _, h := range a.Hops {
		if h.Node == node {
			return h, true
		}
	}
	return Hop{}, false
}

// Stage is one place of one node where policy is evaluated.
type Stage struct {
	Node string
	// Programmed: evaluated with the rules that this node's daemon keeps in its kernel. If not, they were computed for
	// that node from the same objects.
	Programmed bool
	Direction  string // "egress" or "ingress"
	About      string // whose policy it is: "pod default/web"
	Hook       ruleset.Hook
	Base       string // the base chain
	// Reached: the packet came so far. If not, this is the decision that would have been made.
	Reached bool
	// Before are rules that decided before any policy was evaluated, such as failsafe ports.
	Before  []string
	Tiers   []Tier
	Allowed bool
	By      string
	// Rule is the ID of the rule that decided, empty if none did and the packet was let through.
	Rule string
}

// Tier is a group of policies that were evaluated in order. Profiles are a group without a name, after all
// tiers.
type Tier struct {
	Name          string
	Order         string
	DefaultAction string
	Policies      []Policy
	// End is the fate of a packet that none of the policies decided about, empty if one did.
	End string
}

// Policy is one policy or profile that the end is subject to.
type Policy struct {
	Name   string // "NetworkPolicy/default/web"
	Order  string
	Staged bool
	Rules  []Rule
	// Decision is empty if no rule matched.
	Decision string
}

// Rule is one evaluated rule of a policy.
type Rule struct {
	Number  int
	Text    string // the text of the rule
	Matches bool
	Why     string // the first condition that does not hold
}

// Route is the way from one node on.
type Route struct {
	Node      string
	Prefix    string
	Next      string // "dev cali1", "via 10.0.0.2 dev eth0"
	Installed bool   // as read from the node's routes; if not, it follows from IPAM
	Note      string
}
