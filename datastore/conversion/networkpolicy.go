package conversion

import (
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// networkPolicyOrder is the order of Kubernetes' policies among Calico's in the default tier.
const networkPolicyOrder = 1000.0

const leftOut = "the rule is left out, so it allows nothing"

// NetworkPolicy converts a Kubernetes NetworkPolicy to one of Calico's, of the same name. Rules that cannot be
// converted are left out, which only forbids more since the policy still selects its pods; the notices report them. The
// error is a model.FieldError: the selected pods cannot be determined.
func NetworkPolicy(in *networkingv1.NetworkPolicy) (*v3.NetworkPolicy, []Notice, error) {
	return networkPolicy(model.KindKubernetesNetworkPolicy, in.ObjectMeta, in.Spec)
}

// stagedKubernetesNetworkPolicy converts a staged policy in the same way. One without policyTypes but with egress rules
// applies to both directions: no API server has set its default. The staged action is ignored.
func stagedKubernetesNetworkPolicy(in *v3.StagedKubernetesNetworkPolicy) (*v3.NetworkPolicy, []Notice, error) {
	spec := networkingv1.NetworkPolicySpec{
		PodSelector: in.Spec.PodSelector, Ingress: in.Spec.Ingress, Egress: in.Spec.Egress,
		PolicyTypes: in.Spec.PolicyTypes,
	}
	if len(spec.PolicyTypes) == 0 && len(spec.Egress) > 0 {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	return networkPolicy(model.KindStagedKubernetesNetworkPolicy, in.ObjectMeta, spec)
}

func networkPolicy(
	kind model.Kind, meta metav1.ObjectMeta, in networkingv1.NetworkPolicySpec,
) (*v3.NetworkPolicy, []Notice, error) {
	pods, err := podSelector("spec.podSelector", &in.PodSelector)
	if err != nil {
		return nil, nil, err
	}
	order := networkPolicyOrder
	p := &v3.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{Kind: string(model.KindNetworkPolicy), APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name, UID: DerivedUID(meta.UID),
			CreationTimestamp: meta.CreationTimestamp},
		Spec: v3.NetworkPolicySpec{Tier: model.DefaultTier, Order: &order, Selector: pods,
			Types: policyTypes(in.PolicyTypes)},
	}
	n := notices{key: model.Key{Kind: kind, Namespace: meta.Namespace, Name: meta.Name}}
	for i, r := range in.Ingress {
		list, err := rules(at("spec.ingress", i), "from", r.Ports, r.From)
		if err != nil {
			n.add(err, leftOut)
		}
		p.Spec.Ingress = append(p.Spec.Ingress, list...)
	}
	for i, r := range in.Egress {
		list, err := rules(at("spec.egress", i), "to", r.Ports, r.To)
		if err != nil {
			n.add(err, leftOut)
		}
		p.Spec.Egress = append(p.Spec.Egress, list...)
	}
	return p, n.list, nil
}

// policyTypes returns the directions to which the policy applies, always at least one.
func policyTypes(in []networkingv1.PolicyType) []v3.PolicyType {
	var types []v3.PolicyType
	for _, t := range []v3.PolicyType{v3.PolicyTypeIngress, v3.PolicyTypeEgress} {
		if slices.Contains(in, networkingv1.PolicyType(t)) {
			types = append(types, t)
		}
	}
	if len(types) == 0 {
		return []v3.PolicyType{v3.PolicyTypeIngress}
	}
	return types
}

// rules returns one rule for each protocol and peer. side is "from" or "to".
func rules(
	field, side string, ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer,
) ([]v3.Rule, error) {
	protocols, err := byProtocol(field+".ports", ports)
	if err != nil {
		return nil, err
	}
	var entities []v3.EntityRule
	for i, p := range peers {
		e, err := peer(at(field+"."+side, i), p)
		if err != nil {
			return nil, err
		}
		entities = append(entities, e)
	}
	if len(peers) == 0 {
		entities = []v3.EntityRule{{}} // any peer
	}
	var list []v3.Rule
	for _, p := range protocols {
		for _, e := range entities {
			list = append(list, rule(v3.Allow, p, e, side == "to"))
		}
	}
	return list, nil
}

// rule assembles a rule. The peer of egress is the destination. Ports are always the destination's.
func rule(action v3.Action, p protocolPorts, peer v3.EntityRule, egress bool) v3.Rule {
	r := v3.Rule{Action: action, Protocol: p.protocol}
	if egress {
		r.Destination = peer
	} else {
		r.Source = peer
	}
	r.Destination.Ports = p.ports
	return r
}

func peer(field string, p networkingv1.NetworkPolicyPeer) (v3.EntityRule, error) {
	switch selects := p.PodSelector != nil || p.NamespaceSelector != nil; {
	case p.IPBlock != nil && selects:
		return v3.EntityRule{}, wrong(field+".ipBlock", p.IPBlock.CIDR, "cannot stand beside selectors")
	case p.IPBlock != nil:
		return ipBlock(field+".ipBlock", p.IPBlock)
	case !selects:
		return v3.EntityRule{}, wrong(field, "", "must have an ipBlock or selectors")
	}
	return selected(field, p.PodSelector, p.NamespaceSelector)
}

// selected converts a selector of pods, in the policy's own namespace if namespaces is nil.
func selected(field string, pods, namespaces *metav1.LabelSelector) (e v3.EntityRule, err error) {
	if e.Selector, err = podSelector(field+".podSelector", pods); err != nil {
		return v3.EntityRule{}, err
	}
	if e.NamespaceSelector, err = namespaceSelector(field+".namespaceSelector", namespaces); err != nil {
		return v3.EntityRule{}, err
	}
	return e, nil
}

func ipBlock(field string, b *networkingv1.IPBlock) (v3.EntityRule, error) {
	block, err := network(field+".cidr", b.CIDR)
	if err != nil {
		return v3.EntityRule{}, err
	}
	e := v3.EntityRule{Nets: []string{block.String()}}
	for i, x := range b.Except {
		except, err := network(at(field+".except", i), x)
		if err != nil {
			return v3.EntityRule{}, err
		}
		if !block.Contains(except.Addr()) || except.Bits() <= block.Bits() {
			return v3.EntityRule{}, wrong(at(field+".except", i), x, "must be a part of %s", block)
		}
		e.NotNets = append(e.NotNets, except.String())
	}
	return e, nil
}

// network parses a CIDR and clears its host bits.
func network(field, text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, wrong(field, text, "must be a CIDR: ADDRESS/LENGTH")
	}
	return p.Masked(), nil
}
