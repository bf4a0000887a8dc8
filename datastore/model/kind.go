package model

import (
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
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

	defaults func(value any)           // nil for none
	check    func(c *check, value any) // nil for none
}

var kinds = []KindInfo{
	resource(KindNode, "nodes", nil, checkNode, "node", "no"),
	resource(KindIPPool, "ippools", defaultIPPool, checkIPPool, "ippool", "ipp", "pool", "pools"),
	resource(KindIPReservation, "ipreservations", nil, checkIPReservation, "ipreservation", "reservation",
		"reservations"),
	resource(KindBGPConfiguration, "bgpconfigurations", defaultBGPConfiguration, checkBGPConfiguration,
		"bgpconfiguration", "bgpconfig", "bgpconfigs"),
	resource(KindBGPFilter, "bgpfilters", nil, checkBGPFilter, "bgpfilter", "bgpf", "bgpfs", "bf", "bfs"),
	resource(KindBGPPeer, "bgppeers", nil, checkBGPPeer, "bgppeer", "bgpp", "bp"),
	resource(KindClusterInformation, "clusterinformations", nil, checkClusterInformation, "clusterinformation",
		"clusterinfo"),
	resource(KindFelixConfiguration, "felixconfigurations", defaultFelixConfiguration, checkFelixConfiguration,
		"felixconfiguration", "felixconfig", "felixconfigs"),
	resource(KindIPAMConfiguration, "ipamconfigurations", defaultIPAMConfiguration, checkIPAMConfiguration,
		"ipamconfiguration", "ipamconfig"),
	resource(KindKubeControllers, "kubecontrollersconfigurations", defaultKubeControllers, checkKubeControllers,
		"kubecontrollersconfiguration", "kubecontrollersconfig", "kubecontrollersconfigs"),
	resource[v3.Profile](KindProfile, "profiles", nil, checkProfile, "profile", "pro"),
	resource(KindTier, "tiers", defaultTier, checkTier, "tier"),
	namespaced(resource(KindWorkloadEndpoint, "workloadendpoints", defaultWorkloadEndpoint, checkWorkloadEndpoint,
		"workloadendpoint", "wep", "weps")),
	resource(KindCalicoNodeStatus, "caliconodestatuses", nil, checkCalicoNodeStatus, "caliconodestatus", "nodestatus"),
	namespaced(resource(KindNetworkPolicy, "networkpolicies", defaultNetworkPolicy, checkNetworkPolicy, "networkpolicy",
		"np", "policy", "policies", "pol", "pols")),
	resource(KindGlobalNetworkPolicy, "globalnetworkpolicies", defaultGlobalNetworkPolicy, checkGlobalNetworkPolicy,
		"globalnetworkpolicy", "gnp", "gnps"),
	namespaced(resource(KindStagedNetworkPolicy, "stagednetworkpolicies", defaultStagedNetworkPolicy,
		checkStagedNetworkPolicy, "stagednetworkpolicy", "snp", "snps")),
	resource(KindStagedGlobalNetworkPolicy, "stagedglobalnetworkpolicies", defaultStagedGlobalNetworkPolicy,
		checkStagedGlobalNetworkPolicy, "stagedglobalnetworkpolicy", "sgnp", "sgnps"),
	namespaced(resource(KindStagedKubernetesNetworkPolicy, "stagedkubernetesnetworkpolicies",
		defaultStagedKubernetesNetworkPolicy, checkStagedKubernetesNetworkPolicy, "stagedkubernetesnetworkpolicy",
		"sknp", "skpol")),
	namespaced(resource(KindNetworkSet, "networksets", nil, checkNetworkSet, "networkset", "netset", "netsets")),
	resource(KindGlobalNetworkSet, "globalnetworksets", nil, checkGlobalNetworkSet, "globalnetworkset", "gnetset",
		"gnetsets"),
	resource(KindHostEndpoint, "hostendpoints", nil, checkHostEndpoint, "hostendpoint", "hep", "heps"),
	internal(KindIPAMBlock, "ipamblocks", checkStoredBlock),
	internal(KindBlockAffinity, "blockaffinities", checkAffinity),
	internal(KindIPAMHandle, "ipamhandles", checkHandle),
	internal(KindIPAMConfig, "ipamconfigs", checkIPAMConfig),
}

// kubernetesKinds are the further kinds of Lookup, which no datastore stores.
var kubernetesKinds = []KindInfo{
	kubernetes("v1", namespaced(resource(KindService, "services", nil, checkService, "service", "svc"))),
	kubernetes("discovery.k8s.io/v1", namespaced(resource(KindEndpointSlice, "endpointslices", nil, checkEndpointSlice,
		"endpointslice"))),
	documentsSay("NetworkPolicy", kubernetes("networking.k8s.io/v1",
		namespaced(resource(KindKubernetesNetworkPolicy, "kubernetesnetworkpolicies", defaultKubernetesNetworkPolicy,
			checkKubernetesNetworkPolicy, "kubernetesnetworkpolicy", "knp")))),
	kubernetes("policy.networking.k8s.io/v1alpha2", resource(KindClusterNetworkPolicy, "clusternetworkpolicies", nil,
		checkClusterNetworkPolicy, "clusternetworkpolicy", "cnp")),
	kubernetes("v1", resource(KindNamespace, "namespaces", nil, noRules[Namespace], "namespace", "ns")),
	kubernetes("v1", namespaced(resource(KindServiceAccount, "serviceaccounts", nil, noRules[ServiceAccount],
		"serviceaccount", "sa"))),
	kubernetes("v1", namespaced(resource(KindPod, "pods", nil, noRules[Pod], "pod", "po"))),
}

func resource[T any](kind Kind, plural string, defaults func(*T), rules func(*check, *T), aliases ...string) KindInfo {
	i := internal(kind, plural, rules)
	i.Aliases = aliases
	i.Resource, i.APIVersion = true, APIVersion
	if defaults != nil {
		i.defaults = func(value any) { defaults(value.(*T)) }
	}
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

// documentsSay is for a kind whose documents have the name of another kind, which has another API version.
func documentsSay(name string, i KindInfo) KindInfo {
	i.Document = name
	return i
}

func internal[T any](kind Kind, plural string, rules func(*check, *T)) KindInfo {
	return KindInfo{
		Kind:   kind,
		Plural: plural,
		New:    func() any { return new(T) },
		check:  func(c *check, value any) { rules(c, value.(*T)) },
	}
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

// documentKind returns the kind field of the kind's documents.
func (i KindInfo) documentKind() string {
	if i.Document != "" {
		return i.Document
	}
	return string(i.Kind)
}

// Default sets the defaults of Calico's stored form.
func (i KindInfo) Default(value any) {
	if i.defaults != nil {
		i.defaults(value)
	}
}

// Validate lists every rule that the value breaks.
func (i KindInfo) Validate(key Key, value any) []FieldError { return i.run(key, value, false) }

// run applies the rules of the kind; lenient applies only those that make the object unsafe to use.
func (i KindInfo) run(key Key, value any, lenient bool) []FieldError {
	c := &check{key: key, lenient: lenient}
	if i.Resource {
		checkMetadata(c, i, value)
	}
	if i.check != nil {
		i.check(c, value)
	}
	return c.errs
}
