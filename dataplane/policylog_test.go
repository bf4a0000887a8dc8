package dataplane

import (
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// A kernel that lacks one of its logs, or both, or limits: rules that cannot log are no reason to drop anything.
func TestRulesThatCannotLogChangeNoVerdict(t *testing.T) {
	workload := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"},
		&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali1", IPNetworks: []string{"10.0.0.1/32"}}})
	p := &v3.GlobalNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v3.GlobalNetworkPolicySpec{Selector: "all()",
		Types: []v3.PolicyType{v3.PolicyTypeIngress}, Ingress: []v3.Rule{{Action: v3.Log}, {Action: v3.Deny}}}}
	limit := "10/minute"
	felix := &model.FelixConfiguration{}
	felix.Spec.LogActionRateLimit = &limit
	set := model.NewSet(workload, model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, "p"), p),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))

	kernelLog := func(l ruleset.Log) bool { return l.Kernel != "" }
	nflog := func(l ruleset.Log) bool { return l.Group != 0 }
	for _, c := range []struct {
		name    string
		lacks   func(ruleset.Log) bool
		flowLog uint16
		want    ruleset.Log // of the Log rule
		missing []string
	}{
		{"nothing is missing", func(ruleset.Log) bool { return false }, 7, ruleset.Log{Kernel: "calico-packet: ", Group: 7,
			Prefix: "log GlobalNetworkPolicy/p ingress 1", Rate: 10, Burst: 5, Per: ruleset.PerMinute}, nil},
		{"no log of the kernel", kernelLog, 7, ruleset.Log{Group: 7, Prefix: "log GlobalNetworkPolicy/p ingress 1", Rate: 10, Burst: 5, Per: ruleset.PerMinute},
			[]string{"the kernel's log"}},
		{"no log of the kernel, no flow log", kernelLog, 0, ruleset.Log{}, []string{"the kernel's log"}},
		{"no NFLOG", nflog, 7, ruleset.Log{Kernel: "calico-packet: ", Rate: 10, Burst: 5, Per: ruleset.PerMinute}, []string{"the flow log"}},
		{"no NFLOG, no flow log", nflog, 0, ruleset.Log{Kernel: "calico-packet: ", Rate: 10, Burst: 5, Per: ruleset.PerMinute}, nil},
		{"no logs", ruleset.Log.Tells, 7, ruleset.Log{}, []string{"the kernel's log", "the flow log"}},
		{"no limits", func(l ruleset.Log) bool { return l.Rate > 0 }, 7, ruleset.Log{}, []string{"the kernel's log", "the flow log"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := kernel.NewFakeRules()
			rules.Refuse(func(changes ruleset.Changes) error {
				for _, ch := range changes.Chains {
					if ch.New != nil && slices.ContainsFunc(ch.New.Rules, func(r ruleset.Rule) bool { return c.lacks(r.Log) }) {
						return unix.ENOENT
					}
				}
				return nil
			})
			a := NewPolicy(PolicyConfig{Rules: rules, Logger: zap.NewNop(), Policy: policy.Config{Node: "here", FlowLog: c.flowLog}})
			a.SetState(set)
			a.step()
			st := a.Status()
			if !st.InSync || len(st.Refused) > 0 || rules.Commits() != 1 {
				t.Errorf("in sync %v after %d transactions, refused %v", st.InSync, rules.Commits(), st.Refused)
			}
			if !slices.EqualFunc(st.MissingLogs, c.missing, strings.Contains) {
				t.Errorf("missing are %q, want %q", st.MissingLogs, c.missing)
			}
			a.Look(func(_ *policy.Calculator, table *ruleset.Table) {
				list := table.Chain("pi/GlobalNetworkPolicy/p").Rules
				if len(list) != 2 || list[0].Log != c.want || list[0].Verdict.Action != ruleset.Continue || list[1].Verdict.Action != ruleset.Drop {
					t.Errorf("the rules are %v", list)
				}
			})
		})
	}
}
