package policy

import (
	"slices"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// A rejected client gets a reply in its own protocol, so that it fails at once.
func TestRejectByProtocol(t *testing.T) {
	protocol := func(name string) *numorstring.Protocol { p := numorstring.ProtocolFromString(name); return &p }
	reset, unreachable := ruleset.RejectTCP, ruleset.Reject
	for _, x := range []struct {
		name string
		rule v3.Rule
		want []ruleset.Action
	}{
		{"any protocol", v3.Rule{Action: v3.Deny}, []ruleset.Action{reset, unreachable}},
		{"TCP", v3.Rule{Action: v3.Deny, Protocol: protocol("TCP")}, []ruleset.Action{reset}},
		{"UDP", v3.Rule{Action: v3.Deny, Protocol: protocol("UDP")}, []ruleset.Action{unreachable}},
		{"all but TCP", v3.Rule{Action: v3.Deny, NotProtocol: protocol("TCP")}, []ruleset.Action{unreachable}},
		{"all but UDP", v3.Rule{Action: v3.Deny, NotProtocol: protocol("UDP")}, []ruleset.Action{reset, unreachable}},
	} {
		t.Run(x.name, func(t *testing.T) {
			felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
			felix.Spec.NftablesFilterDenyAction = "Reject"
			set := model.NewSet(workload("a", "cali1"),
				model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix),
				globalPolicy("deny", v3.GlobalNetworkPolicySpec{Types: twoTypes, Ingress: []v3.Rule{x.rule}}))
			table := Build(Config{Node: testNode}, set, nil).Table()
			actions := func(chain string) (list []ruleset.Action) {
				for _, r := range table.Chain(chain).Rules {
					if list = append(list, r.Verdict.Action); r.Verdict.Action == reset &&
						!slices.Contains(r.Matches, ruleset.Match{Field: ruleset.Protocol, Low: protoTCP}) {
						t.Errorf("%s resets what is not TCP: %+v", chain, r)
					}
				}
				return list
			}
			if got := actions("pi/GlobalNetworkPolicy/deny"); !slices.Equal(got, x.want) {
				t.Errorf("the policy does %v, want %v", got, x.want)
			}
			if got := actions(toWorkload); !slices.Equal(got[1:], []ruleset.Action{reset, unreachable}) {
				t.Errorf("what is sent to an interface without an endpoint meets %v", got)
			}
		})
	}
}
