package validation

import (
	"fmt"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Kubernetes validates its own objects. The rules here are for documents, and for staged policies, which only Calico
// has. None of them makes a policy unusable: an unusable rule is left out, and traffic that only it would allow is
// denied.

func checkKubernetesNetworkPolicy(c *check, v *networkingv1.NetworkPolicy) {
	checkKubernetesPolicySpec(c, v.Spec)
}

func checkStagedKubernetesNetworkPolicy(c *check, v *v3.StagedKubernetesNetworkPolicy) {
	s := v.Spec
	brokenEnum(c, "spec.stagedAction", s.StagedAction, stagedActions...)
	if s.StagedAction == v3.StagedActionDelete {
		c.failIf(len(s.Ingress)+len(s.Egress)+len(s.PolicyTypes)+len(s.PodSelector.MatchLabels)+
			len(s.PodSelector.MatchExpressions) > 0,
			"spec", "set", "stagedAction Delete allows nothing else")
		return
	}
	checkKubernetesPolicySpec(c, networkingv1.NetworkPolicySpec{
		PodSelector: s.PodSelector, Ingress: s.Ingress, Egress: s.Egress, PolicyTypes: s.PolicyTypes,
	})
}

func checkKubernetesPolicySpec(c *check, s networkingv1.NetworkPolicySpec) {
	checkTypes(c, "spec.policyTypes", s.PolicyTypes, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	for i, r := range s.Ingress {
		checkKubernetesRule(c, at("spec.ingress", i), "from", r.From, r.Ports)
	}
	for i, r := range s.Egress {
		checkKubernetesRule(c, at("spec.egress", i), "to", r.To, r.Ports)
	}
}

func checkKubernetesRule(
	c *check, field, side string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort,
) {
	for i, p := range peers {
		f := at(field+"."+side, i)
		c.failIf(p.IPBlock == nil && p.PodSelector == nil && p.NamespaceSelector == nil, f, "",
			"must have an ipBlock or selectors")
		if p.IPBlock != nil {
			c.failIf(p.PodSelector != nil || p.NamespaceSelector != nil, f+".ipBlock", p.IPBlock.CIDR,
				"cannot stand beside selectors")
			checkIPBlock(c, f+".ipBlock", p.IPBlock)
		}
	}
	for i, p := range ports {
		checkKubernetesPort(c, at(field+".ports", i), p)
	}
}

func checkIPBlock(c *check, field string, b *networkingv1.IPBlock) {
	block, rule := parseNet(b.CIDR, 0)
	if rule != "" {
		c.fail(field+".cidr", b.CIDR, "%s", rule)
		return
	}
	for i, x := range b.Except {
		except, rule := parseNet(x, 0)
		switch {
		case rule != "":
			c.fail(at(field+".except", i), x, "%s", rule)
		case !block.Contains(except.Addr()) || except.Bits() <= block.Bits():
			c.fail(at(field+".except", i), x, "must be a part of %s", block)
		}
	}
}

func checkKubernetesPort(c *check, field string, p networkingv1.NetworkPolicyPort) {
	if p.Protocol != nil {
		enum(c, field+".protocol", *p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	}
	switch {
	case p.Port == nil:
		c.failIf(p.EndPort != nil, field+".endPort", printable(p.EndPort), "needs port, where the range begins")
	case p.Port.Type == intstr.String:
		if msgs := validation.IsValidPortName(p.Port.StrVal); len(msgs) > 0 {
			c.fail(field+".port", p.Port.StrVal, "must be the name of a port: %s", msgs[0])
		}
		c.failIf(p.EndPort != nil, field+".endPort", printable(p.EndPort), "cannot stand beside the name of a port")
	default:
		c.portNumber(field+".port", p.Port.IntVal)
		if p.EndPort != nil {
			c.portNumber(field+".endPort", *p.EndPort)
			c.failIf(*p.EndPort < p.Port.IntVal, field+".endPort", *p.EndPort,
				fmt.Sprintf("cannot be below port, which is %d", p.Port.IntVal))
		}
	}
}

func (c *check) portNumber(field string, n int32) {
	c.failIf(n < 1 || n > 65535, field, n, "must be from 1 to 65535")
}
