package property

import (
	"fmt"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/manxnet/manx/datastore/model"
)

// kubernetesKey names a policy of Kubernetes' own kinds.
func (g *generator) kubernetesKey() model.Key {
	k := model.Key{Kind: pick(g, []model.Kind{model.KindKubernetesNetworkPolicy,
		model.KindStagedKubernetesNetworkPolicy}), Namespace: pick(g, namespaces)}
	if g.one(2) {
		k = model.Key{Kind: model.KindClusterNetworkPolicy}
	}
	k.Name = fmt.Sprint("n", g.IntN(3))
	return k
}

func (g *generator) labelSelector() metav1.LabelSelector {
	var s metav1.LabelSelector
	if g.one(2) {
		s.MatchLabels = map[string]string{pick(g, []string{"app", "tier"}): pick(g, []string{"a", "b"})}
	}
	if g.one(4) {
		r := metav1.LabelSelectorRequirement{Key: "zone",
			Operator: pick(g, []metav1.LabelSelectorOperator{metav1.LabelSelectorOpExists,
				metav1.LabelSelectorOpNotIn})}
		if r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = []string{"c"}
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (g *generator) kubernetes(k model.Key) *model.Object {
	s := g.kubernetesSpec()
	switch k.Kind {
	case model.KindKubernetesNetworkPolicy:
		return model.NewObject(k, &networkingv1.NetworkPolicy{ObjectMeta: meta(k), Spec: s})
	case model.KindStagedKubernetesNetworkPolicy:
		return model.NewObject(k, &v3.StagedKubernetesNetworkPolicy{
			ObjectMeta: meta(k), Spec: v3.StagedKubernetesNetworkPolicySpec{StagedAction: pick(g, stagedActions),
				PodSelector: s.PodSelector, Ingress: s.Ingress, Egress: s.Egress, PolicyTypes: s.PolicyTypes}})
	}
	return model.NewObject(k, &model.ClusterNetworkPolicy{ObjectMeta: meta(k), Spec: g.clusterSpec()})
}

func (g *generator) kubernetesSpec() networkingv1.NetworkPolicySpec {
	s := networkingv1.NetworkPolicySpec{PodSelector: g.labelSelector(),
		PolicyTypes: pick(g, [][]networkingv1.PolicyType{nil, {"Ingress"}, {"Ingress", "Egress"}})}
	for range g.IntN(3) {
		s.Ingress = append(s.Ingress, networkingv1.NetworkPolicyIngressRule{Ports: g.policyPorts(),
			From: g.policyPeers()})
		s.Egress = append(s.Egress, networkingv1.NetworkPolicyEgressRule{Ports: g.policyPorts(), To: g.policyPeers()})
	}
	return s
}

func (g *generator) policyPorts() []networkingv1.NetworkPolicyPort {
	var list []networkingv1.NetworkPolicyPort
	for range g.IntN(3) {
		protocol := corev1.Protocol(pick(g, portTypes))
		port := intstr.FromInt32(int32(pick(g, numbers)))
		if g.one(3) {
			port = intstr.FromString(pick(g, portNames))
		}
		list = append(list, networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &port})
	}
	return list
}

func (g *generator) policyPeers() []networkingv1.NetworkPolicyPeer {
	var list []networkingv1.NetworkPolicyPeer
	for range g.IntN(3) {
		pods, spaces := g.labelSelector(), g.labelSelector()
		list = append(list, pick(g, []networkingv1.NetworkPolicyPeer{{PodSelector: &pods}, {NamespaceSelector: &spaces},
			{PodSelector: &pods, NamespaceSelector: &spaces},
			{IPBlock: &networkingv1.IPBlock{CIDR: "10.65.0.0/16", Except: []string{"10.65.0.8/29"}}},
			{IPBlock: &networkingv1.IPBlock{CIDR: pick(g, nets)}}}))
	}
	return list
}

func (g *generator) clusterSpec() model.ClusterNetworkPolicySpec {
	spaces, pods := g.labelSelector(), model.NamespacedPods{NamespaceSelector: g.labelSelector(),
		PodSelector: g.labelSelector()}
	s := model.ClusterNetworkPolicySpec{Tier: pick(g, []string{model.ClusterPolicyAdmin, model.ClusterPolicyBaseline}),
		Priority: int32(g.IntN(5)),
		Subject:  model.ClusterPolicySubject{Namespaces: &spaces}}
	if g.one(2) {
		s.Subject = model.ClusterPolicySubject{Pods: &pods}
	}
	action := func() string {
		return pick(g, []string{model.ClusterPolicyAccept, model.ClusterPolicyDeny, model.ClusterPolicyPass})
	}
	for range g.IntN(3) {
		s.Ingress = append(s.Ingress, model.ClusterIngressRule{Action: action(), From: g.clusterPeers(nil),
			Protocols: g.clusterProtocols()})
		s.Egress = append(s.Egress, model.ClusterEgressRule{Action: action(), To: g.clusterPeers(nets),
			Protocols: g.clusterProtocols()})
	}
	return s
}

func (g *generator) clusterPeers(networks []string) []model.ClusterPolicyPeer {
	var list []model.ClusterPolicyPeer
	for range 1 + g.IntN(2) {
		spaces := g.labelSelector()
		p := pick(g, []model.ClusterPolicyPeer{{Namespaces: &spaces},
			{Pods: &model.NamespacedPods{NamespaceSelector: spaces, PodSelector: g.labelSelector()}}})
		if networks != nil && g.one(3) {
			p = model.ClusterPolicyPeer{Networks: some(g, networks, 3)}
		}
		list = append(list, p)
	}
	return list
}

func (g *generator) clusterProtocols() []model.ClusterPolicyProtocol {
	var list []model.ClusterPolicyProtocol
	for range g.IntN(3) {
		n := int32(pick(g, numbers))
		list = append(list, pick(g, []model.ClusterPolicyProtocol{
			{TCP: &model.ClusterPolicyPorts{}},
			{UDP: &model.ClusterPolicyPorts{DestinationPort: &model.ClusterPolicyPort{Number: n}}},
			{TCP: &model.ClusterPolicyPorts{DestinationPort: &model.ClusterPolicyPort{
				Range: &model.ClusterPolicyPortRange{Start: n, End: n + 100}}}},
			{SCTP: &model.ClusterPolicyPorts{DestinationPort: &model.ClusterPolicyPort{Number: n}}},
			{DestinationNamedPort: pick(g, portNames)}}))
	}
	return list
}
