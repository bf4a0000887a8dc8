package model

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// KindInfo is one row of the table of kinds: all that the rest of Manx needs to know of a kind.
type KindInfo struct {
	Kind       Kind
	Plural     string   // lower case, as in keys and on the command line
	Aliases    []string // further names that the command line accepts
	Namespaced bool
	// Resource is false for the IPAM kinds, which have no metadata and which users do not write.
	Resource bool
	// New makes an empty value: a pointer to the kind's type.
	New func() any
	// Default fills in what a writer may leave out, as Calico's stored form has it. May be nil.
	Default func(value any)
	// Validate lists every rule that the value breaks. May be nil.
	Validate func(key Key, value any) []FieldError

	path pathRule
}

var kinds = []KindInfo{
	resource(KindNode, "nodes", func() any { return new(Node) }, "node", "no"),
	resource(KindIPPool, "ippools", func() any { return new(IPPool) }, "ippool", "ipp", "pool", "pools"),
	resource(KindIPReservation, "ipreservations", func() any { return new(v3.IPReservation) }, "ipreservation", "reservation"),
	resource(KindBGPConfiguration, "bgpconfigurations", func() any { return new(BGPConfiguration) }, "bgpconfiguration", "bgpconfig", "bgpconfigs"),
	resource(KindBGPPeer, "bgppeers", func() any { return new(BGPPeer) }, "bgppeer", "bgpp", "bp"),
	resource(KindClusterInformation, "clusterinformations", func() any { return new(v3.ClusterInformation) }, "clusterinformation", "clusterinfo"),
	resource(KindFelixConfiguration, "felixconfigurations", func() any { return new(FelixConfiguration) }, "felixconfiguration", "felixconfig"),
	resource(KindIPAMConfiguration, "ipamconfigurations", func() any { return new(IPAMConfiguration) }, "ipamconfiguration", "ipamconfig"),
	resource(KindProfile, "profiles", func() any { return new(v3.Profile) }, "profile", "pro"),
	resource(KindTier, "tiers", func() any { return new(Tier) }, "tier"),
	namespaced(resource(KindWorkloadEndpoint, "workloadendpoints", func() any { return new(WorkloadEndpoint) }, "workloadendpoint", "wep", "weps")),
	{Kind: KindIPAMBlock, Plural: "ipamblocks", New: func() any { return new(Block) }, path: blockPath},
	{Kind: KindBlockAffinity, Plural: "blockaffinities", New: func() any { return new(BlockAffinity) }, path: affinityPath},
	{Kind: KindIPAMHandle, Plural: "ipamhandles", New: func() any { return new(Handle) }, path: handlePath},
	{Kind: KindIPAMConfig, Plural: "ipamconfigs", New: func() any { return new(IPAMConfig) }, path: ipamConfigPath},
}

func resource(kind Kind, plural string, newValue func() any, aliases ...string) KindInfo {
	return KindInfo{Kind: kind, Plural: plural, Aliases: aliases, Resource: true, New: newValue, path: resourcePath(kind, plural, false)}
}

func namespaced(i KindInfo) KindInfo {
	i.Namespaced = true
	i.path = resourcePath(i.Kind, i.Plural, true)
	return i
}

// Kinds returns the table, in a fixed order. Callers must not change it.
func Kinds() []KindInfo { return kinds }

// Lookup finds the row of a kind.
func Lookup(kind Kind) (KindInfo, bool) {
	for _, i := range Kinds() {
		if i.Kind == kind {
			return i, true
		}
	}
	return KindInfo{}, false
}
