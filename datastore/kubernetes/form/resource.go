package form

import (
	"fmt"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Group is the API version of Calico's custom resources. A cluster uses one of the two.
type Group string

const (
	// V1 folds the metadata that users see into an annotation of the custom resource.
	V1 Group = "crd.projectcalico.org/v1"
	// V3 stores objects as users see them.
	V3 Group = "projectcalico.org/v3"
)

// Resource is the place of a kind in the Kubernetes API.
type Resource struct {
	Group, Version, Plural, Kind string
	Namespaced                   bool
	// Status is set if an object's status is written separately, by the status subresource.
	Status bool
}

// CustomResource returns the place of a kind. It is false for kinds without a Calico custom resource: Node,
// WorkloadEndpoint and Profile, which are derived from Kubernetes' objects, and those objects themselves.
// KindIPAMConfig and KindIPAMConfiguration are two views of one custom resource.
func CustomResource(g Group, k model.Kind) (Resource, bool) {
	info, ok := model.Lookup(k)
	if !ok || info.Kubernetes {
		return Resource{}, false
	}
	group, version, _ := strings.Cut(string(g), "/")
	r := Resource{Group: group, Version: version, Plural: info.Plural, Kind: string(k), Namespaced: info.Namespaced}
	switch k {
	case model.KindNode, model.KindWorkloadEndpoint, model.KindProfile:
		return Resource{}, false
	case model.KindIPAMConfig, model.KindIPAMConfiguration:
		r.Kind, r.Plural = "IPAMConfig", "ipamconfigs"
		if g == V3 {
			r.Kind, r.Plural = "IPAMConfiguration", "ipamconfigurations"
		}
	case model.KindIPPool, model.KindTier, model.KindCalicoNodeStatus, model.KindKubeControllers:
		r.Status = true
	}
	return r, true
}

// Name returns the name of the custom resource that holds the object of a key.
func Name(k model.Key) (string, error) {
	switch k.Kind {
	case model.KindIPAMBlock:
		cidr, ok := k.Block()
		if !ok {
			return "", fmt.Errorf("%s: the name is not a CIDR", k)
		}
		return blockName(cidr), nil
	case model.KindBlockAffinity:
		a, ok := k.Affinity()
		if !ok || a.Host == "" {
			return "", fmt.Errorf("%s: want host/NODE/CIDR or virtual/NAME/CIDR", k)
		}
		return affinityName(a), nil
	case model.KindIPAMHandle:
		if k.Name == "" {
			return "", fmt.Errorf("%s: the handle's ID is missing", k.Kind)
		}
		return strings.ToLower(k.Name), nil
	}
	if k.Name == "" {
		return "", fmt.Errorf("%s: the name is missing", k.Kind)
	}
	return k.Name, nil
}
