package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/manxnet/manx/datastore/model"
)

// networkPolicyOrder is where Kubernetes' policies stand among Calico's in the default tier.
const networkPolicyOrder = 1000.0

// NetworkPolicy turns a Kubernetes NetworkPolicy into one of Calico's, of the same name. Rules that cannot be converted are
// left out, which only forbids more since the policy still selects its pods; the notices tell of them.
func NetworkPolicy(in *networkingv1.NetworkPolicy) (*v3.NetworkPolicy, []string, error) {
	spec, notices, err := networkPolicySpec(&in.Spec)
	if err != nil {
		return nil, nil, err
	}
	return &v3.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{Kind: string(model.KindNetworkPolicy), APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Namespace: in.Namespace, Name: in.Name, UID: in.UID, CreationTimestamp: in.CreationTimestamp},
		Spec:       spec,
	}, notices, nil
}

func networkPolicySpec(in *networkingv1.NetworkPolicySpec) (v3.NetworkPolicySpec, []string, error) {
	order := networkPolicyOrder
	spec := v3.NetworkPolicySpec{Tier: "default", Order: &order}
	var err error
	if spec.Selector, err = podSelector(&in.PodSelector); err != nil {
		return spec, nil, fmt.Errorf("spec.podSelector: %w", err)
	}
	var notices []string
	for i, r := range in.Ingress {
		rules, err := rules(r.Ports, r.From, func(rule *v3.Rule, peer v3.EntityRule) { rule.Source = peer })
		if err != nil {
			notices = append(notices, fmt.Sprintf("spec.ingress[%d] is left out: %v", i, err))
		}
		spec.Ingress = append(spec.Ingress, rules...)
	}
	for i, r := range in.Egress {
		rules, err := rules(r.Ports, r.To, func(rule *v3.Rule, peer v3.EntityRule) {
			peer.Ports = rule.Destination.Ports
			rule.Destination = peer
		})
		if err != nil {
			notices = append(notices, fmt.Sprintf("spec.egress[%d] is left out: %v", i, err))
		}
		spec.Egress = append(spec.Egress, rules...)
	}
	for _, t := range in.PolicyTypes {
		spec.Types = append(spec.Types, v3.PolicyType(t))
	}
	if len(spec.Types) == 0 {
		spec.Types = []v3.PolicyType{v3.PolicyTypeIngress}
	}
	return spec, notices, nil
}

// rules makes one rule for each protocol and peer.
func rules(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, set func(*v3.Rule, v3.EntityRule)) ([]v3.Rule, error) {
	protocols, err := byProtocol(ports)
	if err != nil {
		return nil, err
	}
	entities := []v3.EntityRule{{}}
	if len(peers) > 0 {
		entities = nil
		for i, p := range peers {
			e, err := peer(p)
			if err != nil {
				return nil, fmt.Errorf("peer %d: %w", i, err)
			}
			entities = append(entities, e)
		}
	}
	var list []v3.Rule
	for _, p := range protocols {
		for _, e := range entities {
			r := v3.Rule{Action: v3.Allow, Protocol: p.protocol}
			r.Destination.Ports = p.ports
			set(&r, e)
			list = append(list, r)
		}
	}
	return list, nil
}

// protocolPorts is one protocol, nil for any, with its ports, none for all.
type protocolPorts struct {
	protocol *numorstring.Protocol
	ports    []numorstring.Port
}

// byProtocol groups ports: numbers as few ranges, after the names. A port without a number is the whole protocol.
func byProtocol(ports []networkingv1.NetworkPolicyPort) ([]protocolPorts, error) {
	if len(ports) == 0 {
		return []protocolPorts{{}}, nil
	}
	type group struct {
		all    bool
		names  []string
		ranges [][2]uint16
	}
	groups := map[string]*group{}
	for i, p := range ports {
		name := "TCP"
		if p.Protocol != nil && *p.Protocol != "" {
			name = string(*p.Protocol)
		}
		g := groups[name]
		if g == nil {
			g = &group{}
			groups[name] = g
		}
		switch {
		case p.Port == nil:
			g.all = true
		case p.Port.Type == intstr.String:
			g.names = append(g.names, p.Port.StrVal)
		default:
			low, high := p.Port.IntVal, p.Port.IntVal
			if p.EndPort != nil {
				high = *p.EndPort
			}
			if low < 0 || high > 65535 || high < low {
				return nil, fmt.Errorf("ports[%d]: %d to %d is not a range of ports", i, low, high)
			}
			g.ranges = append(g.ranges, [2]uint16{uint16(low), uint16(high)})
		}
	}
	var list []protocolPorts
	for name, g := range groups {
		protocol := numorstring.ProtocolFromString(name)
		p := protocolPorts{protocol: &protocol}
		if !g.all {
			slices.Sort(g.names)
			for _, n := range slices.Compact(g.names) {
				p.ports = append(p.ports, numorstring.NamedPort(n))
			}
			for _, r := range merge(g.ranges) {
				p.ports = append(p.ports, numorstring.Port{MinPort: r[0], MaxPort: r[1]})
			}
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b protocolPorts) int { return strings.Compare(a.protocol.String(), b.protocol.String()) })
	return list, nil
}

// merge returns the same ports in as few ranges as possible.
func merge(ranges [][2]uint16) [][2]uint16 {
	slices.SortFunc(ranges, func(a, b [2]uint16) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	var list [][2]uint16
	for _, r := range ranges {
		if n := len(list); n > 0 && uint32(r[0]) <= uint32(list[n-1][1])+1 {
			list[n-1][1] = max(list[n-1][1], r[1])
		} else {
			list = append(list, r)
		}
	}
	return list
}

func peer(p networkingv1.NetworkPolicyPeer) (v3.EntityRule, error) {
	var e v3.EntityRule
	if p.IPBlock != nil {
		var err error
		if e.Nets, err = masked(p.IPBlock.CIDR); err != nil {
			return e, fmt.Errorf("ipBlock.cidr: %w", err)
		}
		if e.NotNets, err = masked(p.IPBlock.Except...); err != nil {
			return e, fmt.Errorf("ipBlock.except: %w", err)
		}
		return e, nil
	}
	var err error
	if e.Selector, err = podSelector(p.PodSelector); err != nil {
		return e, fmt.Errorf("podSelector: %w", err)
	}
	if e.NamespaceSelector, err = namespaceSelector(p.NamespaceSelector); err != nil {
		return e, fmt.Errorf("namespaceSelector: %w", err)
	}
	return e, nil
}

func masked(texts ...string) ([]string, error) {
	var list []string
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, fmt.Errorf("%q is not a CIDR", t)
		}
		list = append(list, p.Masked().String())
	}
	return list, nil
}
