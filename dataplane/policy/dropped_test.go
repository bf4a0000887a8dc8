package policy

import (
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// droppingState has objects for rules of each reason, but for that of the kernel's refusals.
func droppingState() (Config, model.Set) {
	w := workload("a", "cali1")
	spec := &w.Value.(*model.WorkloadEndpoint).Spec
	spec.QoSControls = &model.QoSControls{IngressMaxConnections: 3, EgressPacketRate: 10}
	spec.Profiles, spec.IPNetworks = []string{"missing"}, []string{"10.65.0.1/32", "fd65::1/128"}
	pool := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: model.IPPoolSpec{CIDR: "10.65.0.0/16",
		IPIPMode: v3.IPIPModeAlways}}
	services := &model.BGPConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	services.Spec.ServiceClusterIPs = []v3.ServiceClusterIPBlock{{CIDR: "10.96.0.0/16"}, {CIDR: "fd96::/112"}}
	set := model.NewSet(w, workload("b", "cali2"), model.NewObject(model.ResourceKey(model.KindIPPool, "p"), pool),
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"), services))
	p := globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes, Ingress: []v3.Rule{{Action: v3.Deny,
		Source: v3.EntityRule{Nets: []string{"10.1.0.0/16"}}}}, Egress: []v3.Rule{{Action: v3.Deny}}})
	set[p.Key] = p
	return Config{Node: testNode, Fragments: Fragments{Packets: 2000, Bytes: 1 << 20}}, set
}

// Each rule that drops or rejects has the counter of a reason, and so have no others.
func TestDropsHaveReasons(t *testing.T) {
	for _, action := range []string{"Drop", "Reject"} {
		config, set := droppingState()
		config.Felix = &felixconfig.Local{}
		config.Felix.Spec.NftablesFilterDenyAction = action
		config.EncryptionRequired, config.Felix.Spec.WireguardEnabled = true, new(true)
		c := Build(config, set, nil)
		c.SetLimited([]Limit{{Interface: "cali1"}, {Interface: "cali1", To: true}})
		c.Settle()
		seen := map[string]bool{}
		rules(c, func(chain string, r ruleset.Rule) {
			drops := slices.Contains([]ruleset.Action{ruleset.Drop, ruleset.Reject, ruleset.RejectTCP},
				r.Verdict.Action)
			if drops != (r.CountedBy != "") {
				t.Errorf("chain %s: counted by %q: %s", chain, r.CountedBy, r)
			}
			seen[r.CountedBy] = true
		})
		for _, why := range Reasons {
			if seen[why.Counter()] != (why != DroppedRefused) {
				t.Errorf("%s: a rule has the reason %s: %t", action, why, seen[why.Counter()])
			}
		}
		if len(seen) != len(Reasons) { // "" stands for the refusals
			t.Errorf("counters are %v", seen)
		}
	}
}

func TestNoNamedCounters(t *testing.T) {
	config, set := droppingState()
	config.NoNamedCounters = true
	rules(Build(config, set, nil), func(chain string, r ruleset.Rule) {
		if r.CountedBy != "" || strings.Contains(r.String(), "counter name") {
			t.Errorf("chain %s: %s", chain, r)
		}
	})
}

func rules(c *Calculator, visit func(chain string, r ruleset.Rule)) {
	for _, name := range c.Table().Chains() {
		for _, r := range c.Table().Chain(name).Rules {
			visit(name, r)
		}
	}
}
