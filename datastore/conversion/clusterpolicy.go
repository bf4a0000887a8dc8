package conversion

import (
	"cmp"
	"fmt"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/manxnet/manx/datastore/model"
)

const (
	// ruleName is the annotation of a rule with its name from the Kubernetes policy.
	ruleName  = "name"
	deniesAll = "the rule denies everything instead, since less could open what it was to close"
)

// clusterNetworkPolicy converts a cluster administrator's policy to a global policy of the tier kube-admin or
// kube-baseline. An accepting rule that cannot be converted is left out; any other denies all traffic in its place. The
// notices report them. The result is nil for a policy without rules, which has no effect. The error is a
// model.FieldError: the policy's position or its selected pods cannot be determined.
func clusterNetworkPolicy(in *model.ClusterNetworkPolicy) (*v3.GlobalNetworkPolicy, []Notice, error) {
	tier, err := clusterTier(in.Spec.Tier)
	if err != nil {
		return nil, nil, err
	}
	subject, err := clusterSubject(in.Spec.Subject)
	if err != nil {
		return nil, nil, err
	}
	order := float64(in.Spec.Priority)
	p := &v3.GlobalNetworkPolicy{
		TypeMeta:   metav1.TypeMeta{Kind: string(model.KindGlobalNetworkPolicy), APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, UID: DerivedUID(in.UID), CreationTimestamp: in.CreationTimestamp},
		Spec: v3.GlobalNetworkPolicySpec{
			Tier: tier, Order: &order, Selector: subject.Selector, NamespaceSelector: subject.NamespaceSelector,
		},
	}
	n := notices{key: model.ResourceKey(model.KindClusterNetworkPolicy, in.Name)}
	for i, r := range in.Spec.Ingress {
		c := clusterRule{at("spec.ingress", i), "from", r.Name, r.Action, r.From, r.Protocols}
		p.Spec.Ingress = append(p.Spec.Ingress, c.rules(&n)...)
	}
	for i, r := range in.Spec.Egress {
		c := clusterRule{at("spec.egress", i), "to", r.Name, r.Action, r.To, r.Protocols}
		p.Spec.Egress = append(p.Spec.Egress, c.rules(&n)...)
	}
	if len(in.Spec.Ingress) > 0 {
		p.Spec.Types = append(p.Spec.Types, v3.PolicyTypeIngress)
	}
	if len(in.Spec.Egress) > 0 {
		p.Spec.Types = append(p.Spec.Types, v3.PolicyTypeEgress)
	}
	if len(p.Spec.Types) == 0 {
		return nil, nil, nil
	}
	return p, n.list, nil
}

func clusterTier(name string) (string, error) {
	switch name {
	case model.ClusterPolicyAdmin:
		return "kube-admin", nil
	case model.ClusterPolicyBaseline:
		return "kube-baseline", nil
	}
	return "", wrong("spec.tier", name, "must be %s or %s", model.ClusterPolicyAdmin, model.ClusterPolicyBaseline)
}

func clusterSubject(s model.ClusterPolicySubject) (v3.EntityRule, error) {
	if (s.Namespaces == nil) == (s.Pods == nil) {
		return v3.EntityRule{}, wrong("spec.subject", "", "must have exactly one of namespaces and pods")
	}
	e, err := clusterPods("spec.subject", s.Namespaces, s.Pods)
	e.Selector = cmp.Or(e.Selector, isPod)
	return e, err
}

// clusterPods selects some pods, or all pods of some namespaces: as a peer, the latter includes the namespaces' network
// sets, as in Calico.
func clusterPods(
	field string, namespaces *metav1.LabelSelector, pods *model.NamespacedPods,
) (e v3.EntityRule, err error) {
	if pods != nil {
		return selected(field+".pods", &pods.PodSelector, &pods.NamespaceSelector)
	}
	e.NamespaceSelector, err = namespaceSelector(field+".namespaces", namespaces)
	return e, err
}

// clusterRule is one rule of either direction.
type clusterRule struct {
	field, side, name, action string
	peers                     []model.ClusterPolicyPeer
	protocols                 []model.ClusterPolicyProtocol
}

// rules returns one rule for each protocol and peer, or the substitute for a rule that cannot be converted.
func (c clusterRule) rules(n *notices) []v3.Rule {
	list, err := c.convert()
	switch {
	case err != nil && c.action == model.ClusterPolicyAccept:
		n.add(err, leftOut)
		return nil
	case err != nil:
		n.add(err, deniesAll)
		list = []v3.Rule{{Action: v3.Deny}}
	}
	for i := range list {
		if c.name != "" {
			list[i].Metadata = &v3.RuleMetadata{Annotations: map[string]string{ruleName: c.name}}
		}
	}
	return list
}

func (c clusterRule) convert() ([]v3.Rule, error) {
	action, err := c.calicoAction()
	if err != nil {
		return nil, err
	}
	if len(c.peers) == 0 {
		return nil, wrong(c.field+"."+c.side, "", "must have at least one peer")
	}
	var entities []v3.EntityRule
	for i, p := range c.peers {
		e, err := c.peer(at(c.field+"."+c.side, i), p)
		if err != nil {
			return nil, err
		}
		entities = append(entities, e)
	}
	protocols, err := clusterProtocols(c.field+".protocols", c.protocols)
	if err != nil {
		return nil, err
	}
	var list []v3.Rule
	for _, p := range protocols {
		for _, e := range entities {
			list = append(list, rule(action, p, e, c.side == "to"))
		}
	}
	return list, nil
}

func (c clusterRule) calicoAction() (v3.Action, error) {
	switch c.action {
	case model.ClusterPolicyAccept:
		return v3.Allow, nil
	case model.ClusterPolicyDeny:
		return v3.Deny, nil
	case model.ClusterPolicyPass:
		return v3.Pass, nil
	}
	return "", wrong(c.field+".action", c.action, "must be Accept, Deny or Pass")
}

func (c clusterRule) peer(field string, p model.ClusterPolicyPeer) (v3.EntityRule, error) {
	var kinds []string
	for _, k := range []struct {
		name string
		set  bool
	}{
		{"namespaces", p.Namespaces != nil}, {"pods", p.Pods != nil}, {"networks", len(p.Networks) > 0},
		{"nodes", p.Nodes != nil}, {"domainNames", len(p.DomainNames) > 0},
	} {
		if k.set {
			kinds = append(kinds, k.name)
		}
	}
	switch kind := strings.Join(kinds, ", "); {
	case kind == "namespaces", kind == "pods":
		return clusterPods(field, p.Namespaces, p.Pods)
	case kind == "networks" && c.side == "to":
		return networks(field+".networks", p.Networks)
	case c.side == "to":
		return v3.EntityRule{}, wrong(field, kind, "must be one of namespaces, pods and networks: other peers "+
			"cannot be matched")
	default:
		return v3.EntityRule{}, wrong(field, kind, "must be one of namespaces and pods: other peers cannot "+
			"be the source")
	}
}

func networks(field string, texts []string) (v3.EntityRule, error) {
	var e v3.EntityRule
	for i, t := range texts {
		n, err := network(at(field, i), t)
		if err != nil {
			return v3.EntityRule{}, err
		}
		e.Nets = append(e.Nets, n.String())
	}
	return e, nil
}

// clusterProtocols groups protocols as byProtocol does. An empty list matches any protocol.
func clusterProtocols(field string, list []model.ClusterPolicyProtocol) ([]protocolPorts, error) {
	if len(list) == 0 {
		return []protocolPorts{{}}, nil
	}
	groups := portGroups{}
	for i, p := range list {
		if err := addClusterProtocol(groups, at(field, i), p); err != nil {
			return nil, err
		}
	}
	return groups.list(), nil
}

func addClusterProtocol(groups portGroups, field string, p model.ClusterPolicyProtocol) error {
	found := 0
	for _, x := range []struct {
		name  corev1.Protocol
		ports *model.ClusterPolicyPorts
	}{{corev1.ProtocolTCP, p.TCP}, {corev1.ProtocolUDP, p.UDP}, {corev1.ProtocolSCTP, p.SCTP}} {
		if x.ports == nil {
			continue
		}
		found++
		where := field + "." + strings.ToLower(string(x.name)) + ".destinationPort"
		if err := groups.of(string(x.name)).addCluster(where, x.ports.DestinationPort); err != nil {
			return err
		}
	}
	if name := p.DestinationNamedPort; name != "" {
		found++
		if msgs := validation.IsValidPortName(name); len(msgs) > 0 {
			return wrong(field+".destinationNamedPort", name, "must be the name of a port: %s", msgs[0])
		}
		groups.of("").names = append(groups.of("").names, name)
	}
	if found != 1 {
		return wrong(field, found, "must have exactly one of tcp, udp, sctp and destinationNamedPort")
	}
	return nil
}

// addCluster adds a port or range; nil is the whole protocol.
func (g *portGroup) addCluster(field string, p *model.ClusterPolicyPort) error {
	if p == nil {
		g.all = true
		return nil
	}
	if (p.Number == 0) == (p.Range == nil) {
		return wrong(field, "", "must have exactly one of number and range")
	}
	low, high := p.Number, p.Number
	if p.Range != nil {
		low, high = p.Range.Start, p.Range.End
	}
	if low < 1 || high < low || high > 65535 {
		return wrong(field, fmt.Sprintf("%d-%d", low, high), "must be ports from 1 to 65535, the lower first")
	}
	g.ranges = append(g.ranges, [2]uint16{uint16(low), uint16(high)})
	return nil
}
