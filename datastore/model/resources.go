package model

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds in this file exist in the public API module too, but its last release lacks fields that Calico writes
// today. The order of the fields is Calico's.

// BGPPeer configures BGP sessions with one address or with the nodes that a selector matches.
type BGPPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              BGPPeerSpec `json:"spec,omitempty"`
}

// BGPPeerSpec configures the ends and the options of the sessions.
type BGPPeerSpec struct {
	Node                     string                `json:"node,omitempty"`
	NodeSelector             string                `json:"nodeSelector,omitempty"`
	PeerIP                   string                `json:"peerIP,omitempty"`
	ASNumber                 numorstring.ASNumber  `json:"asNumber,omitempty"`
	LocalASNumber            *numorstring.ASNumber `json:"localASNumber,omitempty"`
	PeerSelector             string                `json:"peerSelector,omitempty"`
	KeepOriginalNextHop      bool                  `json:"keepOriginalNextHop,omitempty"`
	NextHopMode              *v3.NextHopMode       `json:"nextHopMode,omitempty"`
	Password                 *v3.BGPPassword       `json:"password,omitempty"`
	SourceAddress            v3.SourceAddress      `json:"sourceAddress,omitempty"`
	MaxRestartTime           *metav1.Duration      `json:"maxRestartTime,omitempty"`
	KeepaliveTime            *metav1.Duration      `json:"keepaliveTime,omitempty"`
	NumAllowedLocalASNumbers *int32                `json:"numAllowedLocalASNumbers,omitempty"`
	TTLSecurity              *uint8                `json:"ttlSecurity,omitempty"`
	ReachableBy              string                `json:"reachableBy,omitempty"`
	Filters                  []string              `json:"filters,omitempty"`
	LocalWorkloadSelector    string                `json:"localWorkloadSelector,omitempty"`
	ReversePeering           *v3.ReversePeering    `json:"reversePeering,omitempty"`
}

// BGPConfiguration holds BGP settings: of the cluster if its name is "default", of one node if it is "node.NAME".
type BGPConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              BGPConfigurationSpec `json:"spec,omitempty"`
}

// BGPConfigurationSpec holds BGP settings.
type BGPConfigurationSpec struct {
	LogSeverityScreen              string                             `json:"logSeverityScreen,omitempty"`
	NodeToNodeMeshEnabled          *bool                              `json:"nodeToNodeMeshEnabled,omitempty"`
	ASNumber                       *numorstring.ASNumber              `json:"asNumber,omitempty"`
	ServiceLoadBalancerIPs         []v3.ServiceLoadBalancerIPBlock    `json:"serviceLoadBalancerIPs,omitempty"`
	ServiceExternalIPs             []v3.ServiceExternalIPBlock        `json:"serviceExternalIPs,omitempty"`
	ServiceClusterIPs              []v3.ServiceClusterIPBlock         `json:"serviceClusterIPs,omitempty"`
	ServiceLoadBalancerAggregation *v3.ServiceLoadBalancerAggregation `json:"serviceLoadBalancerAggregation,omitempty"`
	Communities                    []v3.Community                     `json:"communities,omitempty"`
	PrefixAdvertisements           []v3.PrefixAdvertisement           `json:"prefixAdvertisements,omitempty"`
	ListenPort                     uint16                             `json:"listenPort,omitempty"`
	NodeMeshPassword               *v3.BGPPassword                    `json:"nodeMeshPassword,omitempty"`
	NodeMeshMaxRestartTime         *metav1.Duration                   `json:"nodeMeshMaxRestartTime,omitempty"`
	BindMode                       *v3.BindMode                       `json:"bindMode,omitempty"`
	IgnoredInterfaces              []string                           `json:"ignoredInterfaces,omitempty"`
	LocalWorkloadPeeringIPV4       string                             `json:"localWorkloadPeeringIPV4,omitempty"`
	LocalWorkloadPeeringIPV6       string                             `json:"localWorkloadPeeringIPV6,omitempty"`
	ProgramClusterRoutes           *string                            `json:"programClusterRoutes,omitempty"`
	IPv4NormalRoutePriority        *int                               `json:"ipv4NormalRoutePriority,omitempty"`
	IPv6NormalRoutePriority        *int                               `json:"ipv6NormalRoutePriority,omitempty"`
}

// IPPool is a range from which addresses are assigned.
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPPoolSpec    `json:"spec,omitempty"`
	Status            *IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec configures a pool. See (*IPPool).WithDefaults for the defaults.
type IPPoolSpec struct {
	CIDR              string                `json:"cidr"`
	VXLANMode         v3.VXLANMode          `json:"vxlanMode,omitempty"`
	IPIPMode          v3.IPIPMode           `json:"ipipMode,omitempty"`
	NATOutgoing       bool                  `json:"natOutgoing,omitempty"`
	Disabled          bool                  `json:"disabled,omitempty"`
	DisableBGPExport  bool                  `json:"disableBGPExport,omitempty"`
	BlockSize         int                   `json:"blockSize,omitempty"`
	NodeSelector      string                `json:"nodeSelector,omitempty"`
	NamespaceSelector string                `json:"namespaceSelector,omitempty"`
	AllowedUses       []v3.IPPoolAllowedUse `json:"allowedUses,omitempty"`
	AssignmentMode    *v3.AssignmentMode    `json:"assignmentMode,omitempty"`
}

// IPPoolStatus is the status of a pool.
type IPPoolStatus struct {
	// Conditions may have "Allocatable", false for a pool from which no address may be assigned.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPAMConfiguration is the allocator's configuration as users see it. In etcd the allocator itself reads IPAMConfig.
type IPAMConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPAMConfigurationSpec `json:"spec,omitempty"`
}

// IPAMConfigurationSpec has the same content as IPAMConfig.
type IPAMConfigurationSpec struct {
	StrictAffinity               bool    `json:"strictAffinity"`
	AutoAllocateBlocks           *bool   `json:"autoAllocateBlocks,omitempty"`
	MaxBlocksPerHost             int32   `json:"maxBlocksPerHost,omitempty"`
	KubeVirtVMAddressPersistence *string `json:"kubeVirtVMAddressPersistence,omitempty"`
	IPCooldownSeconds            *int    `json:"ipCooldownSeconds,omitempty"`
}

// Tier groups policies and orders the groups.
type Tier struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              v3.TierSpec `json:"spec,omitempty"`
	Status            *TierStatus `json:"status,omitempty"`
}

// ConditionReady is the type of the condition of a tier that is false while its deletion waits.
const ConditionReady = "Ready"

// TierStatus is the status of a tier.
type TierStatus struct {
	// Conditions may have "Ready".
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
