package model

import (
	"net/netip"
	"slices"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIVersion is the version that every stored resource carries.
const APIVersion = "projectcalico.org/v3"

// Node is a host of the cluster, as Calico stores it. (The public API module has no such type.)
type Node struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              NodeSpec   `json:"spec,omitempty"`
	Status            NodeStatus `json:"status,omitempty"`
}

// NodeSpec is the configuration of a Node.
type NodeSpec struct {
	BGP                  *NodeBGPSpec    `json:"bgp,omitempty"`
	IPv4VXLANTunnelAddr  string          `json:"ipv4VXLANTunnelAddr,omitempty"`
	VXLANTunnelMACAddr   string          `json:"vxlanTunnelMACAddr,omitempty"`
	IPv6VXLANTunnelAddr  string          `json:"ipv6VXLANTunnelAddr,omitempty"`
	VXLANTunnelMACAddrV6 string          `json:"vxlanTunnelMACAddrV6,omitempty"`
	OrchRefs             []OrchRef       `json:"orchRefs,omitempty"`
	Wireguard            *NodeWireguard  `json:"wireguard,omitempty"`
	Addresses            []NodeAddress   `json:"addresses,omitempty"`
	Interfaces           []NodeInterface `json:"interfaces,omitempty"`
}

// NodeBGPSpec has a node's addresses (with the prefix length of their subnet), AS number and reflector role.
type NodeBGPSpec struct {
	ASNumber                *numorstring.ASNumber `json:"asNumber,omitempty"`
	IPv4Address             string                `json:"ipv4Address,omitempty"`
	IPv6Address             string                `json:"ipv6Address,omitempty"`
	IPv4IPIPTunnelAddr      string                `json:"ipv4IPIPTunnelAddr,omitempty"`
	RouteReflectorClusterID string                `json:"routeReflectorClusterID,omitempty"`
}

// OrchRef has a Node's name in an orchestrator.
type OrchRef struct {
	NodeName     string `json:"nodeName,omitempty"`
	Orchestrator string `json:"orchestrator"`
}

// NodeWireguard holds the addresses of a node's WireGuard devices.
type NodeWireguard struct {
	InterfaceIPv4Address string `json:"interfaceIPv4Address,omitempty"`
	InterfaceIPv6Address string `json:"interfaceIPv6Address,omitempty"`
}

// NodeAddress is an address of the node and its source: CalicoNodeIP, InternalIP or ExternalIP.
type NodeAddress struct {
	Address string `json:"address"`
	Type    string `json:"type,omitempty"`
}

// NodeInterface is one interface of the node and its addresses.
type NodeInterface struct {
	Name      string   `json:"name,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
}

// NodeStatus is a node's report of its state.
type NodeStatus struct {
	WireguardPublicKey   string   `json:"wireguardPublicKey,omitempty"`
	WireguardPublicKeyV6 string   `json:"wireguardPublicKeyV6,omitempty"`
	PodCIDRs             []string `json:"podCIDRs,omitempty"`
}

// WorkloadEndpoint is one interface of one workload, as Calico stores it. (The public API module has no such type.)
type WorkloadEndpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              WorkloadEndpointSpec `json:"spec,omitempty"`
}

// WorkloadEndpointSpec has the endpoint's workload and its attachment.
type WorkloadEndpointSpec struct {
	Orchestrator               string         `json:"orchestrator,omitempty"`
	Workload                   string         `json:"workload,omitempty"`
	Node                       string         `json:"node,omitempty"`
	ContainerID                string         `json:"containerID,omitempty"`
	Pod                        string         `json:"pod,omitempty"`
	Endpoint                   string         `json:"endpoint,omitempty"`
	ServiceAccountName         string         `json:"serviceAccountName,omitempty"`
	IPNetworks                 []string       `json:"ipNetworks,omitempty"`
	IPNATs                     []IPNAT        `json:"ipNATs,omitempty"`
	IPv4Gateway                string         `json:"ipv4Gateway,omitempty"`
	IPv6Gateway                string         `json:"ipv6Gateway,omitempty"`
	Profiles                   []string       `json:"profiles,omitempty"`
	InterfaceName              string         `json:"interfaceName,omitempty"`
	MAC                        string         `json:"mac,omitempty"`
	Ports                      []EndpointPort `json:"ports,omitempty"`
	AllowSpoofedSourcePrefixes []string       `json:"allowSpoofedSourcePrefixes,omitempty"`
	QoSControls                *QoSControls   `json:"qosControls,omitempty"`
	// Claim has addresses that nothing confirms yet. It is never stored.
	Claim *Claim `json:"-"`
}

// Claim has the addresses of a pod of the Kubernetes API that only its annotations name. Whoever may change the pod can
// write them, so they do not count before the status of the pod, or a record of IPAM, confirms them.
type Claim struct {
	IPNetworks []string
	IPNATs     []IPNAT
}

// Addresses returns the claimed addresses in ascending order.
func (c *Claim) Addresses() []netip.Addr {
	var list []netip.Addr
	for _, p := range Networks(c.IPNetworks) {
		list = append(list, p.Addr())
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// Confirmed returns the endpoint with the addresses of its claim as its own. w is not changed.
func (w *WorkloadEndpoint) Confirmed() *WorkloadEndpoint {
	if w.Spec.Claim == nil {
		return w
	}
	confirmed := *w
	confirmed.Spec.IPNetworks, confirmed.Spec.IPNATs = w.Spec.Claim.IPNetworks, w.Spec.Claim.IPNATs
	confirmed.Spec.Claim = nil
	return &confirmed
}

// IPNAT maps an external address to an internal one of the endpoint.
type IPNAT struct {
	InternalIP string `json:"internalIP"`
	ExternalIP string `json:"externalIP"`
}

// EndpointPort is a named or host-mapped port of a workload.
type EndpointPort struct {
	Name     string               `json:"name"`
	Protocol numorstring.Protocol `json:"protocol"`
	Port     uint16               `json:"port"`
	HostPort uint16               `json:"hostPort"`
	HostIP   string               `json:"hostIP"`
}

// QoSControls are the traffic limits of an endpoint: bits and packets per second, burst sizes, connections.
type QoSControls struct {
	IngressBandwidth      int64  `json:"ingressBandwidth,omitempty"`
	IngressBurst          int64  `json:"ingressBurst,omitempty"`
	IngressPeakrate       int64  `json:"ingressPeakrate,omitempty"`
	IngressMinburst       int64  `json:"ingressMinburst,omitempty"`
	EgressBandwidth       int64  `json:"egressBandwidth,omitempty"`
	EgressBurst           int64  `json:"egressBurst,omitempty"`
	EgressPeakrate        int64  `json:"egressPeakrate,omitempty"`
	EgressMinburst        int64  `json:"egressMinburst,omitempty"`
	IngressPacketRate     int64  `json:"ingressPacketRate,omitempty"`
	IngressPacketBurst    int64  `json:"ingressPacketBurst,omitempty"`
	EgressPacketRate      int64  `json:"egressPacketRate,omitempty"`
	EgressPacketBurst     int64  `json:"egressPacketBurst,omitempty"`
	IngressMaxConnections int64  `json:"ingressMaxConnections,omitempty"`
	EgressMaxConnections  int64  `json:"egressMaxConnections,omitempty"`
	DSCP                  string `json:"dscp,omitempty"`
}

// Block is a range of addresses with the owner of each.
type Block struct {
	CIDR netip.Prefix `json:"cidr"`
	// Affinity is the owner ("host:node-1"), nil for a block without one.
	Affinity          *string      `json:"affinity"`
	AffinityClaimTime *metav1.Time `json:"affinity_claim_time,omitempty"`
	// Allocations has one entry for each address: an index into Attributes, or nil if the address is free.
	Allocations []*int `json:"allocations"`
	// Unallocated is the queue of free ordinals: taken from the head, returned to the tail.
	Unallocated []int            `json:"unallocated"`
	Attributes  []BlockAttribute `json:"attributes"`
	// HostAffinity is the field of very old writers.
	HostAffinity *string `json:"hostAffinity,omitempty"`
	// SequenceNumber grows by one on each write; it starts at nanoseconds since 1970 and exceeds 2^53.
	SequenceNumber uint64 `json:"sequenceNumber"`
	// SequenceNumberForAllocation holds the number before the write that allocated the ordinal.
	SequenceNumberForAllocation map[string]uint64 `json:"sequenceNumberForAllocation"`
	Deleted                     bool              `json:"deleted"`
}

// BlockAttribute describes the purpose of an allocation.
type BlockAttribute struct {
	HandleID   *string           `json:"handle_id,omitempty"`
	Secondary  map[string]string `json:"secondary,omitempty"`
	Alternate  map[string]string `json:"alternateOwnerAttrs,omitempty"`
	ReleasedAt *metav1.Time      `json:"releasedAt,omitempty"`
}

// AffinityState is a step of the claim or release of a block.
type AffinityState string

// A stored empty state counts as confirmed.
const (
	StatePending         AffinityState = "pending"
	StateConfirmed       AffinityState = "confirmed"
	StatePendingDeletion AffinityState = "pendingDeletion"
)

// BlockAffinity is the claim of a host on a block.
type BlockAffinity struct {
	State   AffinityState `json:"state"`
	Deleted bool          `json:"deleted"`
}

// Handle counts the addresses that one owner has in each block, by block CIDR.
type Handle struct {
	Block   map[string]int `json:"block"`
	Deleted bool           `json:"deleted"`
}

// IPAMConfig is the configuration that the allocator reads.
type IPAMConfig struct {
	StrictAffinity               bool    `json:"strict_affinity,omitempty"`
	AutoAllocateBlocks           bool    `json:"auto_allocate_blocks,omitempty"`
	MaxBlocksPerHost             int     `json:"maxBlocksPerHost,omitempty"`
	KubeVirtVMAddressPersistence *string `json:"kubeVirtVMAddressPersistence,omitempty"`
	IPCooldownSeconds            *int    `json:"ipCooldownSeconds,omitempty"`
}
