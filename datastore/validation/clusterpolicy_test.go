package validation_test

import (
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation/validationtest"
)

const isolate = `apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: isolate}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {matchLabels: {team: blue}}, podSelector: {}}}
  ingress:
  - {name: monitoring, action: Accept, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], protocols: [{tcp: {destinationPort: {number: 9090}}}]}
  - {action: Pass, from: [{pods: {namespaceSelector: {}, podSelector: {}}}], protocols: [{destinationNamedPort: web}, {udp: {}}]}
  egress:
  - {action: Deny, to: [{networks: [10.0.0.0/8, "fd00::/8"]}], protocols: [{sctp: {destinationPort: {range: {start: 1, end: 1024}}}}]}
  - {action: Accept, to: [{nodes: {}}, {domainNames: ["*.example.com"]}]}
`

func TestClusterNetworkPolicyIsReadWhole(t *testing.T) {
	objects, err := document.Parse([]byte(isolate))
	if err != nil {
		t.Fatal(err)
	}
	p := model.Get[model.ClusterNetworkPolicy](model.NewSet(objects...),
		model.ResourceKey(model.KindClusterNetworkPolicy, "isolate"))
	if p == nil {
		t.Fatal("absent")
	}
	s := p.Spec
	if s.Tier != model.ClusterPolicyAdmin || s.Priority != 10 ||
		s.Subject.Pods.NamespaceSelector.MatchLabels["team"] != "blue" ||
		s.Ingress[0].Protocols[0].TCP.DestinationPort.Number != 9090 ||
		s.Ingress[1].Protocols[0].DestinationNamedPort != "web" ||
		s.Egress[0].To[0].Networks[1] != "fd00::/8" ||
		s.Egress[0].Protocols[0].SCTP.DestinationPort.Range.End != 1024 ||
		s.Egress[1].To[0].Nodes == nil || s.Egress[1].To[1].DomainNames[0] != "*.example.com" {
		t.Errorf("%+v", s)
	}
	if err := codec.PrepareCreate(objects[0], created); err != nil {
		t.Error(err)
	}
}

func TestClusterNetworkPolicyRules(t *testing.T) {
	for _, c := range []struct{ rule, from, to, want string }{
		{"tier", "tier: Admin", "tier: Other", `spec.tier = "Other": must be Admin or Baseline`},
		{"priority", "priority: 10", "priority: 1001", `spec.priority = "1001": must be from 0 to 1000`},
		{"no subject", "subject: {pods: {namespaceSelector: {matchLabels: {team: blue}}, podSelector: {}}}",
			"subject: {}", "spec.subject"},
		{"unknown action", "action: Deny", "action: Drop",
			`spec.egress[0].action = "Drop": must be one of Accept, Deny, Pass`},
		{"no action", "{action: Deny, ", "{", `spec.egress[0].action = "": is required`},
		{"long name", "name: monitoring", "name: " + strings.Repeat("a", 101), "spec.ingress[0].name"},
		{"no peers", "from: [{pods: {namespaceSelector: {}, podSelector: {}}}]", "from: []", "spec.ingress[1].from"},
		{"peer of no known kind", "to: [{nodes: {}}, ", "to: [{planets: {}}, ", "spec.egress[1].to[0]"},
		{"networks as the source", "from: [{pods: {namespaceSelector: {}, podSelector: {}}}]",
			"from: [{networks: [10.0.0.0/8]}]", "spec.ingress[1].from[0]"},
		{"network with host bits", "10.0.0.0/8", "10.0.0.1/8", "spec.egress[0].to[0].networks[0]"},
		{"two protocols in one", "{udp: {}}", "{udp: {}, tcp: {}}", "spec.ingress[1].protocols[1]"},
		{"port", "number: 9090", "number: 65536", "spec.ingress[0].protocols[0].tcp.destinationPort.number"},
		{"range the wrong way round", "start: 1, end: 1024", "start: 5, end: 5",
			`range.start = "5": must be below end, which is 5`},
		{"26 networks", `"fd00::/8"`, validationtest.Numbered("10.0.%d.0/24", 25), "can have at most 25 entries"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			if !strings.Contains(isolate, c.from) {
				t.Fatalf("there is no %q", c.from)
			}
			objects, err := document.Parse([]byte(strings.Replace(isolate, c.from, c.to, 1)))
			if err != nil {
				t.Fatal(err)
			}
			if err := codec.PrepareCreate(objects[0], created); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}
