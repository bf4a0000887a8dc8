package conversion

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

func TestClusterNetworkPolicyBecomesGlobal(t *testing.T) {
	const all = "subject: {namespaces: {}}\n"
	for _, c := range []struct{ rule, spec, want, notice string }{
		{"subject of namespaces, every action, names of rules", `
subject: {namespaces: {matchLabels: {team: blue}}}
ingress:
- {name: monitoring, action: Accept, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], protocols: [{tcp: {destinationPort: {number: 9090}}}]}
- {action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}], protocols: [{destinationNamedPort: web}, {udp: {}}]}
- {name: rest, action: Deny, from: [{namespaces: {}}]}`,
			pod + " in team == 'blue'\n[Ingress]\n" +
				"in Allow TCP; from in kubernetes.io/metadata.name == 'monitoring'; to ports 9090; " +
				"called monitoring\n" +
				"in Pass; from " + pod + " && app == 'web'; from in all(); to ports web\n" +
				"in Pass UDP; from " + pod + " && app == 'web'; from in all()\n" +
				"in Deny; from in all(); called rest", ""},
		{"subject of pods", `
subject: {pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchExpressions: [{key: c, operator: Exists}]}}}
egress: [{action: Deny, to: [{networks: [10.0.0.5/8]}, {networks: ["fd00::/8"]}], protocols: [{sctp: {destinationPort: {range: {start: 1, end: 1024}}}}, {tcp: {}}]}]`,
			pod + " && has(c) in a == 'b'\n[Egress]\n" +
				"out Deny SCTP; to nets 10.0.0.0/8; to ports 1:1024\n" +
				"out Deny SCTP; to nets fd00::/8; to ports 1:1024\n" +
				"out Deny TCP; to nets 10.0.0.0/8\nout Deny TCP; to nets fd00::/8", ""},
		{"one rule for each protocol, ports of both entries",
			all +
				`ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {range: {start: 80, end: 81}}}}, {destinationNamedPort: web}, {tcp: {destinationPort: {number: 82}}}]}]`,
			pod + " in all()\n[Ingress]\nin Deny; from in all(); to ports web\n" +
				"in Deny TCP; from in all(); to ports 80:82\nin Deny UDP; from in all(); to ports 53", ""},
		{"an Accept that cannot be converted is left out",
			all + `egress: [{action: Accept, to: [{nodes: {}}]}, {action: Pass, to: [{namespaces: {}}]}]`,
			pod + " in all()\n[Egress]\nout Pass; to in all()",
			`ClusterNetworkPolicy c: spec.egress[0].to[0] = "nodes": must be one of namespaces, pods and networks: other peers cannot be matched; the rule is left out, so it allows nothing`},
		{"a Deny that cannot be converted denies everything",
			all + `egress: [{name: names, action: Deny, to: [{namespaces: {}}, {domainNames: [a.example]}]}]`,
			pod + " in all()\n[Egress]\nout Deny; called names", `spec.egress[0].to[1] = "domainNames"`},
		{"a Pass that cannot be converted denies everything",
			all + `ingress: [{action: Pass, from: [{networks: [10.0.0.0/8]}]}]`,
			pod + " in all()\n[Ingress]\nin Deny",
			`spec.ingress[0].from[0] = "networks": must be one of namespaces and pods`},
		{"an unknown action denies everything", all + `ingress: [{action: Log, from: [{namespaces: {}}]}]`,
			pod + " in all()\n[Ingress]\nin Deny",
			`spec.ingress[0].action = "Log": must be Accept, Deny or Pass; the rule denies everything instead`},
		{"no peers", all + `ingress: [{action: Deny}]`, pod + " in all()\n[Ingress]\nin Deny",
			`spec.ingress[0].from = "": must have at least one peer`},
		{"a peer of no kind", all + `ingress: [{action: Deny, from: [{}]}]`, pod + " in all()\n[Ingress]\nin Deny",
			`spec.ingress[0].from[0] = ""`},
		{"a peer of two kinds", all + `ingress: [{action: Accept, from: [{namespaces: {}, pods: {}}]}]`,
			pod + " in all()\n[Ingress]", `spec.ingress[0].from[0] = "namespaces, pods"`},
		{"a bad selector in a peer", all +
			`ingress: [{action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchExpressions: [{key: a, operator: Lt}]}}}]}]`,
			pod + " in all()\n[Ingress]", `spec.ingress[0].from[0].pods.podSelector.matchExpressions[0].operator`},
		{"a bad network", all + `egress: [{action: Deny, to: [{networks: [10.0.0.0/8, x]}]}]`,
			pod + " in all()\n[Egress]\nout Deny", `spec.egress[0].to[0].networks[1] = "x"`},
		{"two protocols in one", all +
			`ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {}, udp: {}}]}]`,
			pod + " in all()\n[Ingress]", `protocols[0] = "2": must have exactly one of`},
		{"a protocol that is not known", all + `ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{}]}]`,
			pod + " in all()\n[Ingress]\nin Deny", `protocols[0] = "0"`},
		{"an invalid port", all +
			`ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 65536}}}]}]`, pod + " in all()\n[Ingress]\nin Deny", `protocols[0].udp.destinationPort = "65536-65536"`},
		{"a range the wrong way round", all +
			`ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {range: {start: 9, end: 8}}}}]}]`, pod + " in all()\n[Ingress]\nin Deny", `"9-8"`},
		{"neither number nor range", all +
			`ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]}]`,
			pod + " in all()\n[Ingress]\nin Deny", `must have exactly one of number and range`},
		{"a range as a name", all +
			`ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [{destinationNamedPort: "1:9"}]}]`,
			pod + " in all()\n[Ingress]", `destinationNamedPort = "1:9"`},
	} {
		for tier, want := range map[string]string{"Admin": "kube-admin", "Baseline": "kube-baseline"} {
			in := &model.ClusterNetworkPolicy{}
			if err := yaml.UnmarshalStrict([]byte(c.spec), &in.Spec); err != nil {
				t.Fatalf("%s: %v", c.rule, err)
			}
			in.Name, in.Spec.Tier, in.Spec.Priority = "c", tier, 7
			p, notices, err := clusterNetworkPolicy(in)
			if err != nil {
				t.Errorf("%s: %v", c.rule, err)
				continue
			}
			if got := render(p.Spec.Selector+" in "+p.Spec.NamespaceSelector, p.Spec.Types, p.Spec.Ingress,
				p.Spec.Egress); got != c.want {
				t.Errorf("%s:\n%s\nwant\n%s", c.rule, got, c.want)
			}
			if got := sentences(notices); !strings.Contains(got, c.notice) || (c.notice == "") != (got == "") {
				t.Errorf("%s: notices %q, want %q", c.rule, got, c.notice)
			}
			if p.Name != "c" || p.Spec.Tier != want || *p.Spec.Order != 7 {
				t.Errorf("%s: %+v", c.rule, p)
			}
			valid(t, c.rule, model.ResourceKey(model.KindGlobalNetworkPolicy, "c"), p)
		}
	}
}

func TestClusterNetworkPolicyThatCannotBePlacedIsAnError(t *testing.T) {
	for _, c := range []struct{ rule, spec, want string }{
		{"tier", `{tier: Other, subject: {namespaces: {}}}`, `spec.tier = "Other": must be Admin or Baseline`},
		{"no subject", `{tier: Admin}`, `spec.subject = "": must have exactly one of namespaces and pods`},
		{"two subjects", `{tier: Admin, subject: {namespaces: {}, pods: {}}}`,
			`spec.subject = "": must have exactly one of namespaces and pods`},
		{"selector",
			`{tier: Admin, subject: {pods: {namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}}}`,
			`spec.subject.pods.namespaceSelector.matchExpressions[0].values = "": must have at least one value for In`},
	} {
		in := &model.ClusterNetworkPolicy{}
		if err := yaml.Unmarshal([]byte(c.spec), &in.Spec); err != nil {
			t.Fatal(err)
		}
		if p, _, err := clusterNetworkPolicy(in); p != nil || err == nil || err.Error() != c.want {
			t.Errorf("%s: %v %v", c.rule, p, err)
		}
	}
}

func TestClusterNetworkPolicyWithoutRulesIsNothing(t *testing.T) {
	in := &model.ClusterNetworkPolicy{}
	if err := yaml.Unmarshal([]byte(`{spec: {tier: Admin, subject: {namespaces: {}}}}`), in); err != nil {
		t.Fatal(err)
	}
	if p, notices, err := clusterNetworkPolicy(in); p != nil || len(notices) > 0 || err != nil {
		t.Errorf("%v %v %v", p, notices, err)
	}
}

// FuzzClusterNetworkPolicy checks for any policy: the conversion does not panic, and keeps each rule that denies or
// passes.
func FuzzClusterNetworkPolicy(f *testing.F) {
	f.Add(
		[]byte(
			`{"tier":"Admin","subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"networks":["10.0.0.0/8"]}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		in := &model.ClusterNetworkPolicy{}
		if yaml.Unmarshal(text, &in.Spec) != nil {
			return
		}
		p, _, err := clusterNetworkPolicy(in)
		if err != nil || p == nil {
			return
		}
		if _, err := selector.Parse(p.Spec.Selector); err != nil {
			t.Fatal(err)
		}
		closes := 0
		for _, r := range in.Spec.Ingress {
			if r.Action != model.ClusterPolicyAccept {
				closes++
			}
		}
		if len(p.Spec.Ingress) < closes {
			t.Fatalf("%d rules of %d are left", len(p.Spec.Ingress), closes)
		}
	})
}
