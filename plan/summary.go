package plan

import (
	"maps"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/datastore/model"
)

// Summary is the effect of a change on all nodes. Its JSON form is stable.
type Summary struct {
	Nodes  []NodeSummary `json:"nodes"` // those that change, by name
	Totals Totals        `json:"totals"`
	// Modes are the pools whose encapsulation changes.
	Modes []ModeChange `json:"modes"`
	// Notices are those that the later State alone has, each once. They are for standard error.
	Notices []string `json:"-"`
}

// NodeSummary is the effect on one node. Sessions are the addresses of the peers.
type NodeSummary struct {
	Node             string   `json:"node"`
	New              bool     `json:"new"`             // it is in the later State alone
	Gone             bool     `json:"gone"`            // it is in the earlier State alone
	SpeakerRestarts  bool     `json:"speakerRestarts"` // which resets all sessions
	SessionsReset    []string `json:"sessionsReset"`
	SessionsAdded    []string `json:"sessionsAdded"`
	SessionsRemoved  []string `json:"sessionsRemoved"`
	SessionsChanged  []string `json:"sessionsChanged"`  // without a reset
	PoliciesChanged  []string `json:"policiesChanged"`  // rules, order, or the endpoints that they apply to
	SelectorsChanged []string `json:"selectorsChanged"` // the members of selectors in rules
	RoutesAnnounced  []string `json:"routesAnnounced"`  // to at least one peer more
	RoutesWithdrawn  []string `json:"routesWithdrawn"`  // from at least one peer
	// OtherChanges counts what is in none of the lists, such as filters and attributes of routes.
	OtherChanges int `json:"otherChanges"`
}

// Totals are sums over the nodes.
type Totals struct {
	Nodes           int `json:"nodes"` // compared
	NodesChanged    int `json:"nodesChanged"`
	SessionsReset   int `json:"sessionsReset"`
	SessionsAdded   int `json:"sessionsAdded"`
	SessionsRemoved int `json:"sessionsRemoved"`
	PoliciesChanged int `json:"policiesChanged"` // different policies
	PolicyNodes     int `json:"policyNodes"`     // nodes with one of them
	RoutesAnnounced int `json:"routesAnnounced"`
	RoutesWithdrawn int `json:"routesWithdrawn"`
}

// Summarize compares two States on all nodes that either has. with.Node is ignored.
func Summarize(from, to State, with Settings) Summary {
	before, old := from.AsStored()
	after, remarks := to.AsStored()
	names := append(from.Nodes(), to.Nodes()...)
	slices.Sort(names)
	names = slices.Compact(names)
	list := make([]NodeSummary, len(names))
	notices := make([][]string, len(names))
	sessions := make([]int, len(names))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		group.Go(func() error {
			s := with
			s.Node = name
			earlier, later := from.Compute(s), to.Compute(s)
			sessions[i] = len(later.Sessions)
			notices[i] = added(Notices(earlier), Notices(later))
			d := Compare(name, earlier, later)
			d.ComparePolicy(before, after)
			list[i] = summaryOf(d)
			key := model.ResourceKey(model.KindNode, name)
			list[i].New, list[i].Gone = from.Objects[key] == nil, to.Objects[key] == nil
			return nil
		})
	}
	_ = group.Wait() // no function has an error
	sum := total(list)
	count := map[string]int{}
	for i, name := range names {
		count[name] = sessions[i]
	}
	sum.Modes = modeChanges(from, to, count)
	sum.Notices = slices.Concat(append(notices, added(old, remarks))...)
	slices.Sort(sum.Notices)
	sum.Notices = slices.Compact(sum.Notices)
	return sum
}

// added returns the texts that the later list alone has.
func added(earlier, later []string) (list []string) {
	for _, text := range later {
		if !slices.Contains(earlier, text) {
			list = append(list, text)
		}
	}
	return list
}

func total(list []NodeSummary) Summary {
	s := Summary{Nodes: []NodeSummary{}, Totals: Totals{Nodes: len(list)}}
	policies := map[string]bool{}
	for _, n := range list {
		if n.empty() {
			continue
		}
		s.Nodes = append(s.Nodes, n)
		t := &s.Totals
		t.NodesChanged++
		t.SessionsReset += len(n.SessionsReset)
		t.SessionsAdded += len(n.SessionsAdded)
		t.SessionsRemoved += len(n.SessionsRemoved)
		t.RoutesAnnounced += len(n.RoutesAnnounced)
		t.RoutesWithdrawn += len(n.RoutesWithdrawn)
		for _, p := range n.PoliciesChanged {
			policies[p] = true
		}
		if len(n.PoliciesChanged) > 0 {
			t.PolicyNodes++
		}
	}
	s.Totals.PoliciesChanged = len(policies)
	return s
}

// summaryOf takes the consequences out of a difference.
func summaryOf(d Diff) NodeSummary {
	n := NodeSummary{Node: d.Node, SpeakerRestarts: len(d.Changed.Speaker) > 0, SessionsReset: []string{},
		SessionsAdded: addresses(d.Added.Sessions), SessionsRemoved: addresses(d.Removed.Sessions),
		SessionsChanged: []string{}, RoutesAnnounced: prefixes(d.Added.Exports),
		RoutesWithdrawn: prefixes(d.Removed.Exports)}
	for _, s := range d.Changed.Sessions {
		if s.Resets {
			n.SessionsReset = append(n.SessionsReset, s.Address)
		} else {
			n.SessionsChanged = append(n.SessionsChanged, s.Address)
		}
	}
	n.PoliciesChanged, n.SelectorsChanged = policyNames(d.Changed.Policy)
	n.OtherChanges = len(d.Added.Conflicts) + len(d.Removed.Conflicts) + len(d.Changed.Conflicts) +
		len(d.Changed.Originated) + len(d.Changed.Rules)
	return n
}

func (n NodeSummary) empty() bool {
	return !n.New && !n.Gone && !n.SpeakerRestarts && n.OtherChanges == 0 && len(n.SessionsReset)+len(n.SessionsAdded)+
		len(n.SessionsRemoved)+len(n.SessionsChanged)+len(n.PoliciesChanged)+len(n.SelectorsChanged)+
		len(n.RoutesAnnounced)+len(n.RoutesWithdrawn) == 0
}

func addresses(sessions []Session) []string {
	list := []string{}
	for _, s := range sessions {
		list = append(list, s.Address)
	}
	return list
}

// prefixes returns the different prefixes of exports by peer, sorted.
func prefixes(exports map[string][]string) []string {
	all := map[string]bool{}
	for _, list := range exports {
		for _, p := range list {
			all[p] = true
		}
	}
	return append([]string{}, slices.Sorted(maps.Keys(all))...)
}

// policyNames returns the policies that changes of a packet filter are about, and the selectors whose members change.
func policyNames(changes []RuleChange) (policies, selectors []string) {
	names := map[string]bool{}
	selectors = []string{}
	for _, c := range changes {
		subject, rest, _ := strings.Cut(c.Rule, " ")
		switch {
		case isDirection(subject): // "ingress of WorkloadEndpoint shop/web": the policies of an endpoint
			for _, text := range append(texts(c.Added), c.Removed...) {
				name, _, _ := strings.Cut(text, " ")
				names[name] = true
			}
		case isDirection(rest): // "NetworkPolicy/shop/web ingress": its rules
			names[subject] = true
		default:
			selectors = append(selectors, c.Rule)
		}
	}
	return append([]string{}, slices.Sorted(maps.Keys(names))...), selectors
}

func isDirection(word string) bool { return word == "ingress" || word == "egress" }
