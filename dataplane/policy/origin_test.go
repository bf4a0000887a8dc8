package policy

import (
	"fmt"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// manyOrigins is a node with a workload and a host endpoint, and policies in all places of the table.
func manyOrigins() *Calculator {
	allow := func(ports ...numorstring.Port) v3.Rule {
		return v3.Rule{Action: v3.Allow, Protocol: protocolOf("TCP"), Destination: v3.EntityRule{Ports: ports},
			Source: v3.EntityRule{Nets: []string{"10.1.0.0/16", "10.3.0.0/16", "2001:db8::/32", "2001:db9::/32"}}}
	}
	named := v3.Rule{Action: v3.Deny, Protocol: protocolOf("TCP"), Source: v3.EntityRule{Selector: "has(role)"},
		Destination: v3.EntityRule{Ports: []numorstring.Port{numorstring.NamedPort("web")}},
		Metadata:    &v3.RuleMetadata{Annotations: map[string]string{"name": "ingress 7"}}}
	rules := []v3.Rule{allow(), {Action: v3.Log}, allow(numorstring.SinglePort(80), numorstring.SinglePort(443)), named,
		{Action: v3.Pass}}
	spec := func(change func(*v3.GlobalNetworkPolicySpec)) v3.GlobalNetworkPolicySpec {
		s := v3.GlobalNetworkPolicySpec{Selector: "all()", Types: twoTypes, Ingress: rules, Egress: rules[:1]}
		change(&s)
		return s
	}
	exception := func(change func(*v3.GlobalNetworkPolicySpec)) v3.GlobalNetworkPolicySpec {
		return spec(func(s *v3.GlobalNetworkPolicySpec) {
			s.Ingress, s.Types, s.Egress = rules[:1], twoTypes[:1], nil
			change(s)
		})
	}
	h := &v3.HostEndpoint{Spec: v3.HostEndpointSpec{Node: testNode, InterfaceName: "eth0"}}
	set := model.NewSet(pod("default", "w", "10.0.0.1", nil), namespace("default", nil),
		model.NewObject(model.ResourceKey(model.KindHostEndpoint, "h"), h),
		globalPolicy("p", spec(func(s *v3.GlobalNetworkPolicySpec) { s.ApplyOnForward = true })),
		globalPolicy("early", exception(func(s *v3.GlobalNetworkPolicySpec) { s.DoNotTrack = true })),
		globalPolicy("translated", exception(func(s *v3.GlobalNetworkPolicySpec) { s.PreDNAT = true })))
	return Build(Config{Node: testNode}, set, nil)
}

// Origins for programs agree with names and comments for people.
func TestOriginsAgreeWithNamesAndComments(t *testing.T) {
	table := manyOrigins().Table()
	stages, numbers, chains := map[Stage]bool{}, map[string]bool{}, 0
	for _, name := range table.Chains() {
		chain := table.Chain(name)
		switch o := chain.Origin.(type) {
		case Stage:
			stages[o] = true
			if chain.Base == nil || o.Subject == 0 {
				t.Errorf("chain %s is the stage %+v", name, o)
			}
		case ChainOf:
			if name != ChainName(o.ID, o.Ingress) {
				t.Errorf("chain %s is that of %+v", name, o)
			}
			checkRuleNumbers(t, chain, o, numbers)
		case EndpointChain:
			if chains++; !strings.Contains(name, "/") {
				t.Errorf("chain %s evaluates endpoints' policies", name)
			}
		default:
			if base := chain.Base; base != nil && base.Type != ruleset.NAT ||
				strings.Contains(name, "/") && !strings.HasPrefix(name, "neighbours/") &&
					!strings.HasPrefix(name, early+"/") &&

					!strings.HasPrefix(name, "icmp-errors/") {
				t.Errorf("chain %s has the origin %v", name, o)
			}
		}
		checkTierEnds(t, chain)
	}
	want := []Stage{{Subject: SourceWorkload}, {Subject: DestinationWorkload}, {Subject: HostItself}}
	for _, s := range []Subject{InInterface, OutInterface} {
		want = append(want, Stage{s, ""}, Stage{s, "doNotTrack"}, Stage{s, "applyOnForward"})
	}
	for _, s := range append(want, Stage{InInterface, "preDNAT"}) {
		if !stages[s] {
			t.Errorf("no base chain is the stage %+v", s)
		}
	}
	if len(numbers) < 8 || chains < 6 {
		t.Errorf("%d rules of policies in %d chains of endpoints: too few to test anything", len(numbers), chains)
	}
}

// checkRuleNumbers requires each rule in the chain of a policy to have the number in its comment.
func checkRuleNumbers(t *testing.T, chain *ruleset.Chain, o ChainOf, numbers map[string]bool) {
	t.Helper()
	for i := range chain.Rules {
		r := &chain.Rules[i]
		if r.Comment == o.ID.String()+" does not exist" {
			continue // a profile that is not stored
		}
		n, ok := r.Origin.(RuleNumber)
		comment := fmt.Sprintf("%s %s %d", o.ID, DirectionName(o.Ingress), n)
		if rest, same := strings.CutPrefix(r.Comment, comment); !ok || !same || rest != "" && rest[0] != ' ' {
			t.Errorf("chain %s: the origin of %q is %v", chain.Name, r.Comment, r.Origin)
		}
		numbers[comment] = true
	}
}

// checkTierEnds requires the rules at the ends of tiers, and no others, to have the tier as their origin.
func checkTierEnds(t *testing.T, chain *ruleset.Chain) {
	t.Helper()
	for i := range chain.Rules {
		tier, is := chain.Rules[i].Origin.(TierEnd)
		if says := strings.HasPrefix(chain.Rules[i].Comment, "end of tier "); says != is ||
			is && chain.Rules[i].Comment != "end of tier "+string(tier) {
			t.Errorf("chain %s: the origin of %q is %v", chain.Name, chain.Rules[i].Comment, chain.Rules[i].Origin)
		}
	}
}

func TestOriginsOfSets(t *testing.T) {
	table := manyOrigins().Table()
	seen := map[ruleset.Origin]int{}
	for _, name := range table.Sets() {
		s, _, _ := table.Set(name)
		seen[s.Origin]++
		kind, _, shared := strings.Cut(name, "/")
		want := ClusterSet
		switch {
		case shared && strings.Contains(" c4 c6 p ", " "+kind+" "):
			want = LiteralSet
		case shared:
			want = MemberSet
		case strings.HasPrefix(name, localSet) || name == ownSet:
			want = EndpointSet
		}
		if s.Origin != want {
			t.Errorf("set %s has the origin %v, want %v", name, s.Origin, want)
		}
	}
	for _, o := range []SetOrigin{LiteralSet, MemberSet, ClusterSet, EndpointSet} {
		if seen[o] == 0 {
			t.Errorf("no set has the origin %d", o)
		}
	}
}
