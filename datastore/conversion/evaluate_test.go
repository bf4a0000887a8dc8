package conversion

import (
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// kubernetesCluster evaluates policies by the documentation of NetworkPolicy, with Kubernetes' own label selectors.
type kubernetesCluster struct {
	namespaces map[string]map[string]string
	policies   []*networkingv1.NetworkPolicy
}

func (c kubernetesCluster) allows(direction networkingv1.PolicyType, from, to testPod, port podPort) bool {
	subject, other := to, from
	if direction == networkingv1.PolicyTypeEgress {
		subject, other = from, to
	}
	isolated := false
	for _, p := range c.policies {
		if p.Namespace != subject.Namespace || !matches(&p.Spec.PodSelector, subject.Labels) ||
			!affects(p.Spec, direction) {
			continue
		}
		isolated = true
		if direction == networkingv1.PolicyTypeIngress {
			for _, r := range p.Spec.Ingress {
				if anyPort(r.Ports, port) && c.anyPeer(r.From, p.Namespace, other) {
					return true
				}
			}
			continue
		}
		for _, r := range p.Spec.Egress {
			if anyPort(r.Ports, port) && c.anyPeer(r.To, p.Namespace, other) {
				return true
			}
		}
	}
	return !isolated
}

func affects(s networkingv1.NetworkPolicySpec, direction networkingv1.PolicyType) bool {
	if len(s.PolicyTypes) == 0 {
		return direction == networkingv1.PolicyTypeIngress
	}
	return slices.Contains(s.PolicyTypes, direction)
}

func anyPort(ports []networkingv1.NetworkPolicyPort, port podPort) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		protocol := "TCP"
		if p.Protocol != nil {
			protocol = string(*p.Protocol)
		}
		switch {
		case protocol != port.Protocol:
			return false
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			return p.Port.StrVal == port.Name
		case p.EndPort != nil:
			return p.Port.IntVal <= int32(port.Port) && int32(port.Port) <= *p.EndPort
		}
		return p.Port.IntVal == int32(port.Port)
	})
}

func (c kubernetesCluster) anyPeer(peers []networkingv1.NetworkPolicyPeer, namespace string, pod testPod) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if b := p.IPBlock; b != nil {
			ip := netip.MustParseAddr(pod.IP)
			return netip.MustParsePrefix(b.CIDR).Contains(ip) &&
				!slices.ContainsFunc(b.Except, func(x string) bool { return netip.MustParsePrefix(x).Contains(ip) })
		}
		if p.NamespaceSelector == nil && pod.Namespace != namespace {
			return false
		}
		if p.NamespaceSelector != nil && !matches(p.NamespaceSelector, c.namespaces[pod.Namespace]) {
			return false
		}
		return p.PodSelector == nil || matches(p.PodSelector, pod.Labels)
	})
}

func matches(s *metav1.LabelSelector, of map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && parsed.Matches(labels.Set(of))
}

// calicoCluster decides as Calico does with policies of one tier whose rules allow: a selected endpoint is denied
// unless a rule allows it; an endpoint without a policy is allowed.
type calicoCluster struct {
	namespaces map[string]map[string]string
	policies   []*v3.NetworkPolicy
}

func (c calicoCluster) allows(direction networkingv1.PolicyType, from, to testPod, port podPort) bool {
	subject := to
	if direction == networkingv1.PolicyTypeEgress {
		subject = from
	}
	isolated := false
	for _, p := range c.policies {
		if p.Namespace != subject.Namespace || !selects(p.Spec.Selector, endpointLabels(subject)) ||
			!slices.Contains(p.Spec.Types, v3.PolicyType(direction)) {
			continue
		}
		isolated = true
		rules := p.Spec.Ingress
		if direction == networkingv1.PolicyTypeEgress {
			rules = p.Spec.Egress
		}
		for _, r := range rules {
			if c.matches(r, p.Namespace, from, to, port) {
				return r.Action == v3.Allow
			}
		}
	}
	return !isolated
}

func (c calicoCluster) matches(r v3.Rule, namespace string, from, to testPod, port podPort) bool {
	return (r.Protocol == nil || r.Protocol.String() == port.Protocol) &&
		c.matchesEntity(r.Source, namespace, from) && c.matchesEntity(r.Destination, namespace, to) &&
		len(r.Source.Ports) == 0 &&
		(len(r.Destination.Ports) == 0 || slices.ContainsFunc(r.Destination.Ports, func(p numorstring.Port) bool {
			if p.PortName != "" {
				return p.PortName == port.Name
			}
			return p.MinPort <= port.Port && port.Port <= p.MaxPort
		}))
}

// matchesEntity reports whether the pod matches one side of a rule.
func (c calicoCluster) matchesEntity(e v3.EntityRule, namespace string, pod testPod) bool {
	ip := netip.MustParseAddr(pod.IP)
	within := func(n string) bool { return netip.MustParsePrefix(n).Contains(ip) }
	switch {
	case len(e.Nets) > 0 && !slices.ContainsFunc(e.Nets, within), slices.ContainsFunc(e.NotNets, within):
		return false
	case e.Selector != "" && !selects(e.Selector, endpointLabels(pod)):
		return false
	case e.NamespaceSelector != "":
		return selects(e.NamespaceSelector, c.namespaces[pod.Namespace])
	case e.Selector != "":
		return pod.Namespace == namespace
	}
	return true
}

func endpointLabels(p testPod) map[string]string {
	all := map[string]string{model.LabelNamespace: p.Namespace, model.LabelOrchestrator: "k8s"}
	for k, v := range p.Labels {
		all[k] = v
	}
	return all
}

var parsed = map[string]*selector.Selector{}

func selects(text string, labels map[string]string) bool {
	s := parsed[text]
	if s == nil {
		var err error
		if s, err = selector.Parse(text); err != nil {
			panic(text + ": " + err.Error())
		}
		parsed[text] = s
	}
	return s.Matches(labels)
}
