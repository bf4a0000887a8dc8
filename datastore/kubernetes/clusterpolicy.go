package kubernetes

import (
	"fmt"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

var clusterTiers = map[string]string{model.ClusterPolicyAdmin: "kube-admin", model.ClusterPolicyBaseline: "kube-baseline"}

var clusterActions = map[string]v3.Action{
	model.ClusterPolicyAccept: v3.Allow, model.ClusterPolicyDeny: v3.Deny, model.ClusterPolicyPass: v3.Pass,
}

// ClusterNetworkPolicy turns a cluster administrator's policy into a global policy of the tier kube-admin or kube-baseline. A
// rule that cannot be converted is left out if it accepts; if it denies or passes, it denies everything in its place, since
// less would open what was meant to be closed. The notices tell of them.
func ClusterNetworkPolicy(in *model.ClusterNetworkPolicy) (*v3.GlobalNetworkPolicy, []string, error) {
	tier, ok := clusterTiers[in.Spec.Tier]
	if !ok {
		return nil, nil, fmt.Errorf("spec.tier = %q: must be Admin or Baseline", in.Spec.Tier)
	}
	order := float64(in.Spec.Priority)
	p := &v3.GlobalNetworkPolicy{
		TypeMeta:   metav1.TypeMeta{Kind: string(model.KindGlobalNetworkPolicy), APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, UID: in.UID, CreationTimestamp: in.CreationTimestamp},
		Spec:       v3.GlobalNetworkPolicySpec{Tier: tier, Order: &order},
	}
	var err error
	switch s := in.Spec.Subject; {
	case s.Namespaces != nil:
		p.Spec.Selector = isPod
		p.Spec.NamespaceSelector, err = namespaceSelector(s.Namespaces)
	case s.Pods != nil:
		if p.Spec.Selector, err = podSelector(&s.Pods.PodSelector); err == nil {
			p.Spec.NamespaceSelector, err = namespaceSelector(&s.Pods.NamespaceSelector)
		}
	default:
		err = fmt.Errorf("must be namespaces or pods")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("spec.subject: %w", err)
	}
	var notices []string
	for i, r := range in.Spec.Ingress {
		list, notice := clusterRules(r.Name, r.Action, r.From, r.Protocols, false)
		if notice != "" {
			notices = append(notices, fmt.Sprintf("spec.ingress[%d] %s", i, notice))
		}
		p.Spec.Ingress = append(p.Spec.Ingress, list...)
	}
	for i, r := range in.Spec.Egress {
		list, notice := clusterRules(r.Name, r.Action, r.To, r.Protocols, true)
		if notice != "" {
			notices = append(notices, fmt.Sprintf("spec.egress[%d] %s", i, notice))
		}
		p.Spec.Egress = append(p.Spec.Egress, list...)
	}
	if len(in.Spec.Ingress) > 0 {
		p.Spec.Types = append(p.Spec.Types, v3.PolicyTypeIngress)
	}
	if len(in.Spec.Egress) > 0 {
		p.Spec.Types = append(p.Spec.Types, v3.PolicyTypeEgress)
	}
	if len(p.Spec.Types) == 0 {
		return nil, nil, nil // no direction is affected
	}
	return p, notices, nil
}

func clusterRules(name, action string, peers []model.ClusterPolicyPeer, protocols []model.ClusterPolicyProtocol, egress bool) ([]v3.Rule, string) {
	rules, err := convertClusterRules(action, peers, protocols, egress)
	notice := ""
	switch {
	case err != nil && action == model.ClusterPolicyAccept:
		return nil, "is left out: " + err.Error()
	case err != nil:
		rules, notice = []v3.Rule{{Action: v3.Deny}}, "denies everything: "+err.Error()
	}
	if name != "" {
		for i := range rules {
			rules[i].Metadata = &v3.RuleMetadata{Annotations: map[string]string{"name": name}}
		}
	}
	return rules, notice
}

func convertClusterRules(action string, peers []model.ClusterPolicyPeer, protocols []model.ClusterPolicyProtocol, egress bool) ([]v3.Rule, error) {
	calico, ok := clusterActions[action]
	if !ok {
		return nil, fmt.Errorf("action = %q: must be Accept, Deny or Pass", action)
	}
	if len(peers) == 0 {
		return nil, fmt.Errorf("it names no peers")
	}
	matches := []protocolPorts{{}}
	if len(protocols) > 0 {
		matches = nil
		for i, p := range protocols {
			m, err := clusterProtocol(p)
			if err != nil {
				return nil, fmt.Errorf("protocols[%d]: %w", i, err)
			}
			matches = append(matches, m)
		}
	}
	var rules []v3.Rule
	for _, m := range matches {
		for i, p := range peers {
			e, err := clusterPeer(p, egress)
			if err != nil {
				return nil, fmt.Errorf("peer %d: %w", i, err)
			}
			r := v3.Rule{Action: calico, Protocol: m.protocol}
			if egress {
				r.Destination = e
			} else {
				r.Source = e
			}
			r.Destination.Ports = m.ports
			rules = append(rules, r)
		}
	}
	return rules, nil
}

func clusterPeer(p model.ClusterPolicyPeer, egress bool) (v3.EntityRule, error) {
	var e v3.EntityRule
	var err error
	switch {
	case p.Namespaces != nil:
		e.Selector = isPod
		e.NamespaceSelector, err = namespaceSelector(p.Namespaces)
	case p.Pods != nil:
		if e.Selector, err = podSelector(&p.Pods.PodSelector); err == nil {
			e.NamespaceSelector, err = namespaceSelector(&p.Pods.NamespaceSelector)
		}
	case len(p.Networks) > 0 && egress:
		e.Nets, err = masked(p.Networks...)
	default:
		err = fmt.Errorf("this kind of peer is not supported here")
	}
	return e, err
}

func clusterProtocol(p model.ClusterPolicyProtocol) (protocolPorts, error) {
	for name, ports := range map[string]*model.ClusterPolicyPorts{"TCP": p.TCP, "UDP": p.UDP, "SCTP": p.SCTP} {
		if ports == nil {
			continue
		}
		protocol := numorstring.ProtocolFromString(name)
		out := protocolPorts{protocol: &protocol}
		if ports.DestinationPort == nil {
			return out, nil
		}
		port, err := clusterPort(ports.DestinationPort)
		out.ports = []numorstring.Port{port}
		return out, err
	}
	if p.DestinationNamedPort != "" {
		return protocolPorts{ports: []numorstring.Port{numorstring.NamedPort(p.DestinationNamedPort)}}, nil
	}
	return protocolPorts{}, fmt.Errorf("this kind of protocol is not supported")
}

func clusterPort(p *model.ClusterPolicyPort) (numorstring.Port, error) {
	low, high := p.Number, p.Number
	if p.Range != nil {
		low, high = p.Range.Start, p.Range.End
	}
	if low < 1 || high > 65535 || high < low {
		return numorstring.Port{}, fmt.Errorf("%d to %d is not a range of ports", low, high)
	}
	return numorstring.Port{MinPort: uint16(low), MaxPort: uint16(high)}, nil
}
