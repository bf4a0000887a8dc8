package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Kind is the type of an object, as in an object's "kind" field.
type Kind string

// The kinds that Manx reads or writes. Each has one row in the table of kind.go.
const (
	KindNode               Kind = "Node"
	KindIPPool             Kind = "IPPool"
	KindIPReservation      Kind = "IPReservation"
	KindBGPConfiguration   Kind = "BGPConfiguration"
	KindBGPFilter          Kind = "BGPFilter"
	KindBGPPeer            Kind = "BGPPeer"
	KindClusterInformation Kind = "ClusterInformation"
	KindFelixConfiguration Kind = "FelixConfiguration"
	KindIPAMConfiguration  Kind = "IPAMConfiguration"
	KindKubeControllers    Kind = "KubeControllersConfiguration"
	KindProfile            Kind = "Profile"
	KindTier               Kind = "Tier"
	KindWorkloadEndpoint   Kind = "WorkloadEndpoint"
	KindCalicoNodeStatus   Kind = "CalicoNodeStatus"
	KindIPAMBlock          Kind = "IPAMBlock"
	KindBlockAffinity      Kind = "BlockAffinity"
	KindIPAMHandle         Kind = "IPAMHandle"
	KindIPAMConfig         Kind = "IPAMConfig"

	KindNetworkPolicy                 Kind = "NetworkPolicy"
	KindGlobalNetworkPolicy           Kind = "GlobalNetworkPolicy"
	KindStagedNetworkPolicy           Kind = "StagedNetworkPolicy"
	KindStagedGlobalNetworkPolicy     Kind = "StagedGlobalNetworkPolicy"
	KindStagedKubernetesNetworkPolicy Kind = "StagedKubernetesNetworkPolicy"
	KindNetworkSet                    Kind = "NetworkSet"
	KindGlobalNetworkSet              Kind = "GlobalNetworkSet"
	KindHostEndpoint                  Kind = "HostEndpoint"

	KindService       Kind = "Service"
	KindEndpointSlice Kind = "EndpointSlice"
	// KindKubernetesNetworkPolicy is Kubernetes' NetworkPolicy: its documents have Calico's kind NetworkPolicy, and
	// another apiVersion.
	KindKubernetesNetworkPolicy Kind = "KubernetesNetworkPolicy"
	KindClusterNetworkPolicy    Kind = "ClusterNetworkPolicy"
	KindNamespace               Kind = "Namespace"
	KindServiceAccount          Kind = "ServiceAccount"
	KindPod                     Kind = "Pod"
	// KindMigration is that of KubeVirt.
	KindMigration Kind = "VirtualMachineInstanceMigration"
)

// Key identifies one object. It is comparable and independent of the backend.
//
// Name is the resource name for v3 kinds; for IPAM kinds it is the block CIDR ("192.168.9.64/26"), the affinity
// ("host/node-1/192.168.9.64/26"), the handle ID, or "default" for the IPAM configuration.
type Key struct {
	Kind      Kind
	Namespace string // only for namespaced kinds
	Name      string
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(string(k.Kind), string(o.Kind)), strings.Compare(k.Namespace, o.Namespace),
		strings.Compare(k.Name, o.Name))
}

// String returns the key as users write it, for messages: "BGPPeer tor-1", "WorkloadEndpoint default/x".
func (k Key) String() string {
	if k.Namespace != "" {
		return fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name)
	}
	return fmt.Sprintf("%s %s", k.Kind, k.Name)
}

// ResourceKey returns the key of a cluster-scoped resource.
func ResourceKey(kind Kind, name string) Key { return Key{Kind: kind, Name: name} }

// BlockKey returns the key of the IPAM block that covers cidr exactly.
func BlockKey(cidr netip.Prefix) Key {
	return Key{Kind: KindIPAMBlock, Name: cidr.Masked().String()}
}

// Block returns the CIDR of an IPAM block key.
func (k Key) Block() (netip.Prefix, bool) {
	if k.Kind != KindIPAMBlock {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(k.Name)
	return p, err == nil
}

// AffinityType is the type of a block's owner: a host, or a virtual owner such as "load-balancer".
type AffinityType string

const (
	AffinityHost    AffinityType = "host"
	AffinityVirtual AffinityType = "virtual"
)

// Affinity is the decoded name of a block affinity key.
type Affinity struct {
	Type AffinityType
	Host string
	CIDR netip.Prefix
}

// String returns the owner in the form of a block's affinity field: "host:node-1".
func (a Affinity) String() string { return string(a.Type) + ":" + a.Host }

// AffinityKey returns the key of an affinity.
func AffinityKey(a Affinity) Key {
	return Key{Kind: KindBlockAffinity, Name: string(a.Type) + "/" + a.Host + "/" + a.CIDR.Masked().String()}
}

// In reports whether a list of a namespace contains the object: always, if that is empty. The namespace of a
// BlockAffinity is its owner, "host/node-1".
func (k Key) In(namespace string) bool {
	if k.Kind == KindBlockAffinity && namespace != "" {
		return strings.HasPrefix(k.Name, namespace+"/")
	}
	return namespace == "" || k.Namespace == namespace
}

// Affinity decodes a block affinity key.
func (k Key) Affinity() (Affinity, bool) {
	if k.Kind != KindBlockAffinity {
		return Affinity{}, false
	}
	parts := strings.SplitN(k.Name, "/", 3)
	if len(parts) != 3 {
		return Affinity{}, false
	}
	p, err := netip.ParsePrefix(parts[2])
	if err != nil {
		return Affinity{}, false
	}
	return Affinity{Type: AffinityType(parts[0]), Host: parts[1], CIDR: p}, true
}

// HandleKey returns the key of an IPAM handle; the case of id is kept.
func HandleKey(id string) Key { return Key{Kind: KindIPAMHandle, Name: id} }

// IPAMConfigKey is the key of the configuration that the allocator reads.
var IPAMConfigKey = Key{Kind: KindIPAMConfig, Name: "default"}
