package main

import "strings"

const (
	modelPackage   = "github.com/manxnet/manx/datastore/model"
	calicoPackage  = "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	ipamPackage    = "github.com/manxnet/manx/integration/deploy/tools/crds/ipam"
	numbersPackage = "github.com/projectcalico/api/pkg/lib/numorstring"
)

// group is an API group in which a cluster may keep Calico's objects.
type group struct{ folder, name, version string }

var groups = []group{
	{"crd.projectcalico.org", "crd.projectcalico.org", "v1"},
	{"projectcalico.org", "projectcalico.org", "v3"},
}

func (g group) v1() bool { return g.version == "v1" }

// kind is a custom resource.
type kind struct {
	plural, kind string
	source       string // where its Go type is; the type is called as the kind unless a dot and another name follow
	namespaced   bool
	status       bool // a subresource
	selectable   []string
	short        string // names that Calico's users type, separated by spaces
}

var tier = []string{".spec.tier"}

var kinds = []kind{
	{"bgpconfigurations", "BGPConfiguration", "model", false, false, nil, "bgpconfig bgpconfigs"},
	{"bgpfilters", "BGPFilter", "model", false, false, nil, "bgpf bgpfs"},
	{"bgppeers", "BGPPeer", "model", false, false, nil, "bgpp"},
	{"blockaffinities", "BlockAffinity", "ipam", false, false, nil, ""},
	{"caliconodestatuses", "CalicoNodeStatus", "calico", false, true, nil, "nodestatus"},
	{"clusterinformations", "ClusterInformation", "calico", false, false, nil, "clusterinfo"},
	{"felixconfigurations", "FelixConfiguration", "model", false, false, nil, "felixconfig felixconfigs"},
	{"globalnetworkpolicies", "GlobalNetworkPolicy", "calico", false, false, tier, "gnp gnps"},
	{"globalnetworksets", "GlobalNetworkSet", "calico", false, false, nil, "gns gnetset"},
	{"hostendpoints", "HostEndpoint", "calico", false, false, nil, "hep heps"},
	{"ipamblocks", "IPAMBlock", "ipam", false, false, nil, ""},
	{"ipamconfigurations", "IPAMConfiguration", "model", false, false, nil, "ipamconfig"},
	{"ipamhandles", "IPAMHandle", "ipam", false, false, nil, ""},
	{"ippools", "IPPool", "model", false, true, nil, "ipp"},
	{"ipreservations", "IPReservation", "calico", false, false, nil, "reservation reservations"},
	{"kubecontrollersconfigurations", "KubeControllersConfiguration", "model", false, true, nil,
		"kcc kubecontrollersconfig"},
	{"networkpolicies", "NetworkPolicy", "calico", true, false, tier, "cnp"},
	{"networksets", "NetworkSet", "calico", true, false, nil, "netset netsets"},
	{"stagedglobalnetworkpolicies", "StagedGlobalNetworkPolicy", "calico", false, false, tier, "sgnp sgnps"},
	{"stagedkubernetesnetworkpolicies", "StagedKubernetesNetworkPolicy", "calico", true, false, nil, "sknp"},
	{"stagednetworkpolicies", "StagedNetworkPolicy", "calico", true, false, tier, "snp scnp"},
	{"tiers", "Tier", "model", false, true, nil, ""},
}

// inV1 is the kind as the group crd.projectcalico.org has it.
func (k kind) inV1() kind {
	switch k.kind {
	case "IPAMConfiguration":
		k.plural, k.kind, k.source = "ipamconfigs", "IPAMConfig", "model.IPAMConfiguration"
		k.short = "" // the singular is ipamconfig
	case "BlockAffinity":
		k.source = "ipam.BlockAffinityV1"
	}
	return k
}

// goType is the package and the name of the kind's Go type.
func (k kind) goType() (path, name string) {
	source, name, ok := strings.Cut(k.source, ".")
	if !ok {
		name = k.kind
	}
	return map[string]string{"model": modelPackage, "calico": calicoPackage, "ipam": ipamPackage}[source], name
}
