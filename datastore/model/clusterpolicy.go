package model

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterNetworkPolicy is the cluster administrator's policy of the Kubernetes network policy API, v1alpha2. Its rules
// come before (tier Admin) or after (tier Baseline) all NetworkPolicies.
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              ClusterNetworkPolicySpec `json:"spec"`
}

// The tiers of ClusterNetworkPolicies.
const (
	ClusterPolicyAdmin    = "Admin"
	ClusterPolicyBaseline = "Baseline"
)

// ClusterNetworkPolicySpec has the subject and the rules of a policy. Policies of lower priority are evaluated first. A
// direction without rules is not affected.
type ClusterNetworkPolicySpec struct {
	Tier     string               `json:"tier"`
	Priority int32                `json:"priority"` // 0 to 1000
	Subject  ClusterPolicySubject `json:"subject"`
	Ingress  []ClusterIngressRule `json:"ingress,omitempty"`
	Egress   []ClusterEgressRule  `json:"egress,omitempty"`
}

// ClusterPolicySubject selects pods; exactly one field is set.
type ClusterPolicySubject struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPods       `json:"pods,omitempty"`
}

// NamespacedPods selects pods by their namespaces' labels and their own; an empty selector matches all.
type NamespacedPods struct {
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       metav1.LabelSelector `json:"podSelector"`
}

// The actions of rules of ClusterNetworkPolicies.
const (
	ClusterPolicyAccept = "Accept"
	ClusterPolicyDeny   = "Deny"
	ClusterPolicyPass   = "Pass"
)

// ClusterIngressRule applies to traffic from any of the peers with any of the protocols; an empty list of protocols
// matches all.
type ClusterIngressRule struct {
	Name      string                  `json:"name,omitempty"`
	Action    string                  `json:"action"`
	From      []ClusterPolicyPeer     `json:"from"`
	Protocols []ClusterPolicyProtocol `json:"protocols,omitempty"`
}

// ClusterEgressRule is ClusterIngressRule for traffic to the peers.
type ClusterEgressRule struct {
	Name      string                  `json:"name,omitempty"`
	Action    string                  `json:"action"`
	To        []ClusterPolicyPeer     `json:"to"`
	Protocols []ClusterPolicyProtocol `json:"protocols,omitempty"`
}

// ClusterPolicyPeer is a peer. Exactly one field is set; none is set for a kind of peer that this version does not
// know. Networks, Nodes and DomainNames are valid in egress rules only.
type ClusterPolicyPeer struct {
	Namespaces  *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods        *NamespacedPods       `json:"pods,omitempty"`
	Networks    []string              `json:"networks,omitempty"`
	Nodes       *metav1.LabelSelector `json:"nodes,omitempty"`
	DomainNames []string              `json:"domainNames,omitempty"`
}

// ClusterPolicyProtocol matches a protocol. Exactly one field is set; none is set for one that this version does not
// know.
type ClusterPolicyProtocol struct {
	TCP  *ClusterPolicyPorts `json:"tcp,omitempty"`
	UDP  *ClusterPolicyPorts `json:"udp,omitempty"`
	SCTP *ClusterPolicyPorts `json:"sctp,omitempty"`
	// DestinationNamedPort is the name of a port of the destination pod, whatever its protocol.
	DestinationNamedPort string `json:"destinationNamedPort,omitempty"`
}

// ClusterPolicyPorts restricts a protocol to ports of the destination; nil is all.
type ClusterPolicyPorts struct {
	DestinationPort *ClusterPolicyPort `json:"destinationPort,omitempty"`
}

// ClusterPolicyPort is a port or a range of ports; exactly one field is set.
type ClusterPolicyPort struct {
	Number int32                   `json:"number,omitempty"`
	Range  *ClusterPolicyPortRange `json:"range,omitempty"`
}

// ClusterPolicyPortRange is a range of ports, both ends included.
type ClusterPolicyPortRange struct {
	Start int32 `json:"start"`
	End   int32 `json:"end"`
}
