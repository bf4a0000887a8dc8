package model

import (
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
)

// KindInfo is one row of the table of kinds: the properties of a kind.
type KindInfo struct {
	Kind       Kind
	APIVersion string   // of documents; empty for the IPAM kinds
	Plural     string   // lower case, as in keys and on the command line
	Aliases    []string // further names that the command line accepts
	Namespaced bool
	// Resource is false for the IPAM kinds, which have no metadata and are not written by users.
	Resource bool
	// Kubernetes is set for kinds of Kubernetes: they come from its API or from files and are never stored in Calico's
	// datastore. Their types have only a part of a document's fields.
	Kubernetes bool
	// Document is the kind field of documents, if it is not Kind.
	Document string
	// New returns an empty value: a pointer to the kind's type.
	New func() any
}

var kinds = []KindInfo{
	resource[Node](KindNode, "nodes", "node", "no"),
	resource[IPPool](KindIPPool, "ippools", "ippool", "ipp", "pool", "pools"),
	resource[v3.IPReservation](KindIPReservation, "ipreservations", "ipreservation", "reservation", "reservations"),
	resource[BGPConfiguration](KindBGPConfiguration, "bgpconfigurations", "bgpconfiguration", "bgpconfig",
		"bgpconfigs"),
	resource[BGPFilter](KindBGPFilter, "bgpfilters", "bgpfilter", "bgpf", "bgpfs", "bf", "bfs"),
	resource[BGPPeer](KindBGPPeer, "bgppeers", "bgppeer", "bgpp", "bp"),
	resource[v3.ClusterInformation](KindClusterInformation, "clusterinformations", "clusterinformation", "clusterinfo"),
	resource[FelixConfiguration](KindFelixConfiguration, "felixconfigurations", "felixconfiguration", "felixconfig",
		"felixconfigs"),
	resource[IPAMConfiguration](KindIPAMConfiguration, "ipamconfigurations", "ipamconfiguration", "ipamconfig"),
	resource[KubeControllersConfiguration](KindKubeControllers, "kubecontrollersconfigurations",
		"kubecontrollersconfiguration", "kcc", "kubecontrollersconfig", "kubecontrollersconfigs"),
	resource[v3.Profile](KindProfile, "profiles", "profile", "pro"),
	resource[Tier](KindTier, "tiers", "tier"),
	namespaced(resource[WorkloadEndpoint](KindWorkloadEndpoint, "workloadendpoints", "workloadendpoint", "wep",
		"weps")),
	resource[v3.CalicoNodeStatus](KindCalicoNodeStatus, "caliconodestatuses", "caliconodestatus", "nodestatus"),
	namespaced(resource[v3.NetworkPolicy](KindNetworkPolicy, "networkpolicies", "networkpolicy", "np", "policy",
		"policies", "pol", "pols")),
	resource[v3.GlobalNetworkPolicy](KindGlobalNetworkPolicy, "globalnetworkpolicies", "globalnetworkpolicy", "gnp",
		"gnps"),
	namespaced(resource[v3.StagedNetworkPolicy](KindStagedNetworkPolicy, "stagednetworkpolicies",
		"stagednetworkpolicy", "snp", "snps", "scnp")),
	resource[v3.StagedGlobalNetworkPolicy](KindStagedGlobalNetworkPolicy, "stagedglobalnetworkpolicies",
		"stagedglobalnetworkpolicy", "sgnp", "sgnps"),
	namespaced(resource[v3.StagedKubernetesNetworkPolicy](KindStagedKubernetesNetworkPolicy,
		"stagedkubernetesnetworkpolicies", "stagedkubernetesnetworkpolicy", "sknp", "skpol")),
	namespaced(resource[v3.NetworkSet](KindNetworkSet, "networksets", "networkset", "netset", "netsets")),
	resource[v3.GlobalNetworkSet](KindGlobalNetworkSet, "globalnetworksets", "globalnetworkset", "gns", "gnetset",
		"gnetsets"),
	resource[v3.HostEndpoint](KindHostEndpoint, "hostendpoints", "hostendpoint", "hep", "heps"),
	internal[Block](KindIPAMBlock, "ipamblocks"),
	internal[BlockAffinity](KindBlockAffinity, "blockaffinities"),
	internal[Handle](KindIPAMHandle, "ipamhandles"),
	internal[IPAMConfig](KindIPAMConfig, "ipamconfigs"),
}

// kubernetesKinds are the further kinds of Lookup, which no datastore stores.
var kubernetesKinds = []KindInfo{
	kubernetes("v1", namespaced(resource[Service](KindService, "services", "service", "svc"))),
	kubernetes("discovery.k8s.io/v1", namespaced(resource[EndpointSlice](KindEndpointSlice, "endpointslices",
		"endpointslice"))),
	documentKind("NetworkPolicy", kubernetes("networking.k8s.io/v1", namespaced(resource[networkingv1.NetworkPolicy](
		KindKubernetesNetworkPolicy, "kubernetesnetworkpolicies", "kubernetesnetworkpolicy", "knp")))),
	kubernetes("policy.networking.k8s.io/v1alpha2", resource[ClusterNetworkPolicy](KindClusterNetworkPolicy,
		"clusternetworkpolicies", "clusternetworkpolicy", "cnp")),
	kubernetes("v1", resource[Namespace](KindNamespace, "namespaces", "namespace", "ns")),
	kubernetes("v1", namespaced(resource[ServiceAccount](KindServiceAccount, "serviceaccounts", "serviceaccount",
		"sa"))),
	kubernetes("v1", namespaced(resource[Pod](KindPod, "pods", "pod", "po"))),
	kubernetes("kubevirt.io/v1", namespaced(resource[VirtualMachineInstanceMigration](KindMigration,
		"virtualmachineinstancemigrations", "virtualmachineinstancemigration", "vmim", "vmims"))),
}

func resource[T any](kind Kind, plural string, aliases ...string) KindInfo {
	i := internal[T](kind, plural)
	i.Aliases = aliases
	i.Resource, i.APIVersion = true, APIVersion
	return i
}

func namespaced(i KindInfo) KindInfo {
	i.Namespaced = true
	return i
}

func kubernetes(apiVersion string, i KindInfo) KindInfo {
	i.APIVersion = apiVersion
	i.Kubernetes = true
	return i
}

// documentKind is for a kind whose documents have the name of another kind, which has another API version.
func documentKind(name string, i KindInfo) KindInfo {
	i.Document = name
	return i
}

func internal[T any](kind Kind, plural string) KindInfo {
	return KindInfo{Kind: kind, Plural: plural, New: func() any { return new(T) }}
}

// Kinds returns the table of the kinds in Calico's datastore, in a fixed order. Callers must not change it.
func Kinds() []KindInfo { return kinds }

// KubernetesKinds returns the kinds that no datastore stores. Callers must not change it.
func KubernetesKinds() []KindInfo { return kubernetesKinds }

var kindsByName = func() map[Kind]KindInfo {
	m := map[Kind]KindInfo{}
	for _, i := range slices.Concat(kinds, kubernetesKinds) {
		m[i.Kind] = i
	}
	return m
}()

// Lookup returns the row of a kind, Calico's or Kubernetes'.
func Lookup(kind Kind) (KindInfo, bool) {
	i, ok := kindsByName[kind]
	return i, ok
}

// LookupDocument returns the row of a document's kind. Documents of two kinds may have the same kind field: then the
// API version decides, and a missing or unknown one selects Calico's.
func LookupDocument(apiVersion, kind string) (KindInfo, bool) {
	for _, i := range kubernetesKinds {
		if i.Document == kind && i.APIVersion == apiVersion {
			return i, true
		}
	}
	i, ok := Lookup(Kind(kind))
	return i, ok && i.Document == ""
}
