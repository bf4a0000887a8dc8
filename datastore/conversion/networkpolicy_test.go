package conversion

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
	"github.com/manxnet/manx/datastore/validation"
)

// render writes the fields that the tests compare: selector, types and one line for each rule.
func render(selector string, types []v3.PolicyType, ingress, egress []v3.Rule) string {
	lines := []string{selector, fmt.Sprint(types)}
	for _, r := range ingress {
		lines = append(lines, "in "+renderRule(r))
	}
	for _, r := range egress {
		lines = append(lines, "out "+renderRule(r))
	}
	return strings.Join(lines, "\n")
}

func renderRule(r v3.Rule) string {
	text := string(r.Action)
	if r.Protocol != nil {
		text += " " + r.Protocol.String()
	}
	for _, side := range []struct {
		name string
		e    v3.EntityRule
	}{{"from", r.Source}, {"to", r.Destination}} {
		for _, part := range []struct{ name, text string }{
			{"", side.e.Selector}, {" in", side.e.NamespaceSelector}, {" nets", strings.Join(side.e.Nets, " ")},
			{" not", strings.Join(side.e.NotNets, " ")}, {" ports", renderPorts(side.e.Ports)},
		} {
			if part.text != "" {
				text += "; " + side.name + part.name + " " + part.text
			}
		}
	}
	if r.Metadata != nil {
		text += "; called " + r.Metadata.Annotations["name"]
	}
	return text
}

func renderPorts(ports []numorstring.Port) string {
	var texts []string
	for _, p := range ports {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " ")
}

func sentences(list []Notice) string {
	var texts []string
	for _, n := range list {
		texts = append(texts, n.String())
	}
	return strings.Join(texts, "\n")
}

const pod = "projectcalico.org/orchestrator == 'k8s'"

func TestNetworkPolicyBecomesCalicos(t *testing.T) {
	for _, c := range []struct{ rule, spec, want, notice string }{
		{"one rule for each peer, ports of both kinds", `
podSelector: {matchLabels: {role: db}}
ingress: [{from: [{podSelector: {matchLabels: {app: web}}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: 5432}, {port: metrics}]}]`,
			pod + " && role == 'db'\n[Ingress]\n" +
				"in Allow TCP; from " + pod + " && app == 'web'; to ports metrics 5432\n" +
				"in Allow TCP; from nets 10.0.0.0/8; from not 10.1.0.0/16; to ports metrics 5432", ""},
		{"nothing selects all pods, no types are ingress", `{podSelector: {}}`, pod + "\n[Ingress]", ""},
		{"no types are ingress even beside egress rules", `{podSelector: {}, egress: [{}]}`,
			pod + "\n[Ingress]\nout Allow", ""},
		{"types are taken over in one order", `{podSelector: {}, policyTypes: [Egress, Ingress]}`,
			pod + "\n[Ingress Egress]", ""},
		{"labels are sorted, expressions follow", `
podSelector: {matchLabels: {b: "2", a: ""}, matchExpressions: [{key: z, operator: In, values: [p, q]}, {key: v, operator: NotIn, values: [r]}, {key: x, operator: Exists}, {key: w, operator: DoesNotExist}]}`,
			pod + " && a == '' && b == '2' && z in { 'p', 'q' } && v not in { 'r' } && has(x) && ! has(w)\n[Ingress]",
			""},
		{"an empty selector of namespaces is all, none is the own", `
podSelector: {}
ingress: [{from: [{namespaceSelector: {}}, {podSelector: {}}, {podSelector: {matchLabels: {a: b}}, namespaceSelector: {matchLabels: {c: d}}}]}]`,
			pod + "\n[Ingress]\nin Allow; from " + pod + "; from in all()\nin Allow; from " + pod +
				"\nin Allow; from " + pod + " && a == 'b'; from in c == 'd'", ""},
		{"no peers are anybody", `{podSelector: {}, ingress: [{from: []}]}`, pod + "\n[Ingress]\nin Allow", ""},
		{"protocols are sorted, one rule for each and each peer", `
podSelector: {}
policyTypes: [Egress]
egress: [{to: [{podSelector: {}}, {ipBlock: {cidr: "fd00::5/64"}}], ports: [{port: 1, protocol: UDP}, {port: 2, protocol: SCTP}, {port: 3}]}]`,
			pod + "\n[Egress]\n" +
				"out Allow SCTP; to " + pod + "; to ports 2\nout Allow SCTP; to nets fd00::/64; to ports 2\n" +
				"out Allow TCP; to " + pod + "; to ports 3\nout Allow TCP; to nets fd00::/64; to ports 3\n" +
				"out Allow UDP; to " + pod + "; to ports 1\nout Allow UDP; to nets fd00::/64; to ports 1", ""},
		{"ports become as few ranges as possible", `
podSelector: {}
ingress: [{ports: [{port: 82}, {port: 81}, {port: 80}, {port: 100, endPort: 200}, {port: 150, endPort: 300}, {port: 65535}, {port: 301}, {port: 80}, {port: 65533}]}]`,
			pod + "\n[Ingress]\nin Allow TCP; to ports 80:82 100:301 65533 65535", ""},
		{"a port without a number is the whole protocol",
			`{podSelector: {}, ingress: [{ports: [{port: 80}, {protocol: TCP}, {port: 53, protocol: UDP}]}]}`,
			pod + "\n[Ingress]\nin Allow TCP\nin Allow UDP; to ports 53", ""},
		{"a value stays a value whatever is in it", `{podSelector: {matchLabels: {a: "x' || all() || b == 'y"}}}`,
			pod + ` && a == "x' || all() || b == 'y"` + "\n[Ingress]", ""},
		{"a value that no label can have",
			`{podSelector: {matchLabels: {a: "'\""}, matchExpressions: [{key: b, operator: NotIn, values: ["\"'", c]}]}}`,
			pod + " && a in {  } && b not in { 'c' }\n[Ingress]", ""},

		{"no peer at all in a peer", `{podSelector: {}, ingress: [{from: [{}]}, {from: [{podSelector: {}}]}]}`,
			pod + "\n[Ingress]\nin Allow; from " + pod,
			`KubernetesNetworkPolicy y/p: spec.ingress[0].from[0] = "": must have an ipBlock or selectors; the rule is left out, so it allows nothing`},
		{"block beside a selector",
			`{podSelector: {}, ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]}`,
			pod + "\n[Ingress]", "spec.ingress[0].from[0].ipBlock"},
		{"no CIDR", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0}}]}]}`, pod + "\n[Ingress]",
			`ipBlock.cidr = "10.0.0.0": must be a CIDR`},
		{"an IPv4 block in IPv6's clothes",
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "::ffff:10.0.0.0/104"}}]}]}`, pod + "\n[Ingress]",
			`ipBlock.cidr`},
		{"an exception outside",
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: ["::/0"]}}]}]}`,
			pod + "\n[Ingress]", `ipBlock.except[0] = "::/0"`},
		{"an exception of everything",
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [0.0.0.0/0]}}]}]}`,
			pod + "\n[Ingress]", `ipBlock.except[0]`},
		{"unknown operator of a peer",
			`{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}}]}]}`, pod + "\n[Ingress]", `podSelector.matchExpressions[0].operator = "Gt"`},
		{"In without values",
			`{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: In}]}}]}]}`,
			pod + "\n[Ingress]", `matchExpressions[0].values`},
		{"Exists with values",
			`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}]}`, pod + "\n[Ingress]", `namespaceSelector.matchExpressions[0].values = "b"`},
		{"an invalid key",
			`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {"a) || all(": b}}}]}]}`,
			pod + "\n[Ingress]", `namespaceSelector.matchLabels`},
		{"end without beginning", `{podSelector: {}, ingress: [{ports: [{endPort: 80}]}]}`, pod + "\n[Ingress]",
			`ports[0].endPort = "80": needs port`},
		{"end before beginning", `{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 79}]}]}`,
			pod + "\n[Ingress]", `ports[0].endPort = "79"`},
		{"end beside a name", `{podSelector: {}, ingress: [{ports: [{port: web, endPort: 80}]}]}`, pod + "\n[Ingress]",
			`ports[0].endPort = "80"`},
		{"port 0", `{podSelector: {}, egress: [{ports: [{port: 0}]}, {}]}`, pod + "\n[Ingress]\nout Allow",
			`spec.egress[0].ports[0].port = "0"`},
		{"a range as a name", `{podSelector: {}, ingress: [{ports: [{port: "1:65535"}]}]}`, pod + "\n[Ingress]",
			`ports[0].port = "1:65535": must be the name of a port`},
		{"unknown protocol", `{podSelector: {}, ingress: [{ports: [{port: 80, protocol: ICMP}]}]}`, pod + "\n[Ingress]",
			`ports[0].protocol = "ICMP"`},
	} {
		in := &networkingv1.NetworkPolicy{}
		if err := yaml.UnmarshalStrict([]byte(c.spec), &in.Spec); err != nil {
			t.Fatalf("%s: %v", c.rule, err)
		}
		in.Namespace, in.Name = "y", "p"
		p, notices, err := NetworkPolicy(in)
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		if got := render(p.Spec.Selector, p.Spec.Types, p.Spec.Ingress, p.Spec.Egress); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.rule, got, c.want)
		}
		if got := sentences(notices); !strings.Contains(got, c.notice) || (c.notice == "") != (got == "") {
			t.Errorf("%s: notices %q, want %q", c.rule, got, c.notice)
		}
		if p.Namespace != "y" || p.Name != "p" || p.Spec.Tier != "default" || p.Spec.Order == nil ||
			*p.Spec.Order != 1000 {
			t.Errorf("%s: %+v", c.rule, p)
		}
		valid(t, c.rule, model.Key{Kind: model.KindNetworkPolicy, Namespace: "y", Name: "p"}, p)
	}
}

// valid checks a result against the rules for stored objects of Calico.
func valid(t *testing.T, rule string, key model.Key, value any) {
	t.Helper()
	if errs := validation.Validate(key, value); len(errs) > 0 {
		t.Errorf("%s: the result is not valid: %v", rule, errs)
	}
}

func TestNetworkPolicyWhosePodsAreUnknownIsAnError(t *testing.T) {
	in := &networkingv1.NetworkPolicy{}
	if err := yaml.Unmarshal([]byte(`{podSelector: {matchExpressions: [{key: a, operator: Other}]}}`),
		&in.Spec); err != nil {
		t.Fatal(err)
	}
	const want = `spec.podSelector.matchExpressions[0].operator = "Other": must be In, NotIn, Exists or DoesNotExist`
	if p, _, err := NetworkPolicy(in); p != nil || err == nil || err.Error() != want {
		t.Errorf("%v %v", p, err)
	}
}

func TestStagedKubernetesNetworkPolicyInfersItsTypes(t *testing.T) {
	for spec, want := range map[string]string{
		`{podSelector: {}}`:                                      "[Ingress]",
		`{podSelector: {}, egress: [{}]}`:                        "[Ingress Egress]",
		`{podSelector: {}, egress: [{}], policyTypes: [Egress]}`: "[Egress]",
	} {
		in := &v3.StagedKubernetesNetworkPolicy{}
		if err := yaml.Unmarshal([]byte(spec), &in.Spec); err != nil {
			t.Fatal(err)
		}
		p, _, err := stagedKubernetesNetworkPolicy(in)
		if err != nil || fmt.Sprint(p.Spec.Types) != want {
			t.Errorf("%s: %v %v", spec, p, err)
		}
	}
}

// TestRangesAreMinimal compares merged ranges with a plain set of ports: the same ports, and a gap between any two
// ranges.
func TestRangesAreMinimal(t *testing.T) {
	seed := uint32(1)
	next := func(n uint32) uint16 { seed = seed*1664525 + 1013904223; return uint16(seed >> 8 % n) }
	for range 200 {
		var in [][2]uint16
		ports := map[int]bool{}
		for range next(7) {
			low := next(300)
			r := [2]uint16{low, low + next(30)}
			if next(5) == 0 {
				r = [2]uint16{65535 - next(4), 65535}
			}
			in = append(in, r)
			for p := int(r[0]); p <= int(r[1]); p++ {
				ports[p] = true
			}
		}
		out := merge(slices.Clone(in))
		covered := 0
		for i, r := range out {
			for p := int(r[0]); p <= int(r[1]); p++ {
				if !ports[p] {
					t.Fatalf("%v: %v has %d", in, out, p)
				}
				covered++
			}
			if i > 0 && int(r[0]) <= int(out[i-1][1])+1 {
				t.Fatalf("%v: %v could be shorter", in, out)
			}
		}
		if covered != len(ports) {
			t.Fatalf("%v: %v has %d ports of %d", in, out, covered, len(ports))
		}
	}
}

// FuzzNetworkPolicy checks for any policy: the conversion does not panic, selectors parse, and the result is safe.
func FuzzNetworkPolicy(f *testing.F) {
	f.Add(
		[]byte(
			`{"podSelector":{"matchLabels":{"a":"b"}},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":80,"endPort":90}]}]}`))
	f.Add(
		[]byte(
			`{"podSelector":{"matchExpressions":[{"key":"a","operator":"NotIn","values":["'"]}]},"egress":[{"to":[{"namespaceSelector":{}}],"ports":[{"port":"x"}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		in := &networkingv1.NetworkPolicy{}
		if yaml.Unmarshal(text, &in.Spec) != nil {
			return
		}
		in.Namespace, in.Name = "y", "p"
		p, _, err := NetworkPolicy(in)
		if err != nil {
			return
		}
		if _, err := selector.Parse(p.Spec.Selector); err != nil {
			t.Fatalf("%s: %v", p.Spec.Selector, err)
		}
		key := model.Key{Kind: model.KindNetworkPolicy, Namespace: "y", Name: "p"}
		if data, err := codec.Encode(model.NewObject(key, p)); err != nil {
			t.Fatal(err)
		} else if o := codec.Decode(key, data, 1); o.Err != nil {
			t.Fatalf("quarantined: %v", o.Err)
		}
	})
}
