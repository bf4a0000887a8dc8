package migration

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// API has the requests to the Kubernetes API. Its errors are the API's.
type API interface {
	Get(ctx context.Context, path string) (*Object, error)
	List(ctx context.Context, path string) ([]*Object, error)
	// Create and Replace return the object as stored; with dry set as it would be stored, and nothing changes. Replace
	// and Delete fail if it has another resourceVersion by now.
	Create(ctx context.Context, path string, o *Object, dry bool) (*Object, error)
	Replace(ctx context.Context, path string, o *Object, dry bool) (*Object, error)
	Delete(ctx context.Context, path string, o *Object) error
	// May reports whether this process has a right.
	May(ctx context.Context, r Right) (bool, error)
}

// Right is the right to one verb on a resource.
type Right struct{ Verb, Group, Resource, Name string }

func (r Right) String() string {
	text := r.Verb + " " + r.Resource + "." + r.Group
	if r.Name != "" {
		text += " (" + r.Name + ")"
	}
	return text
}

const (
	crdGroup      = "apiextensions.k8s.io"
	crdPath       = "/apis/" + crdGroup + "/v1/customresourcedefinitions"
	crdResource   = "customresourcedefinitions"
	serviceGroup  = "apiregistration.k8s.io"
	servicePath   = "/apis/" + serviceGroup + "/v1/apiservices"
	service       = "v3.projectcalico.org"
	byCRDs        = "kube-aggregator.kubernetes.io/automanaged"
	information   = "clusterinformations"
	infoPath      = "/" + information + "/default"
	lockMember    = "datastoreReady"
	anyObject     = ""
	olderSuffix   = ".crd.projectcalico.org"
	newerGroup    = "projectcalico.org"
	olderGroup    = "crd.projectcalico.org"
	mostInMessage = 10
)

// kinds are the copied kinds, in the order in which they are copied. ClusterInformation has the lock and is not one of
// them.
var kinds = []model.Kind{model.KindTier,
	model.KindFelixConfiguration, model.KindBGPConfiguration, model.KindKubeControllers,
	model.KindIPPool, model.KindIPReservation, model.KindBGPPeer, model.KindBGPFilter,
	model.KindGlobalNetworkPolicy, model.KindNetworkPolicy, model.KindStagedGlobalNetworkPolicy,
	model.KindStagedNetworkPolicy, model.KindStagedKubernetesNetworkPolicy,
	model.KindHostEndpoint, model.KindGlobalNetworkSet, model.KindNetworkSet,
	model.KindIPAMConfiguration, model.KindBlockAffinity, model.KindIPAMBlock, model.KindIPAMHandle,
	model.KindCalicoNodeStatus}

// place returns the path of all objects of a kind.
func place(g form.Group, k model.Kind) string {
	r, _ := form.CustomResource(g, k) // every copied kind is one
	return "/apis/" + string(g) + "/" + r.Plural
}

// pathOf returns the path of one object of a kind; with an empty name that of all in its namespace.
func pathOf(g form.Group, k model.Kind, namespace, name string) string {
	path := place(g, k)
	if namespace != "" {
		r, _ := form.CustomResource(g, k)
		path = "/apis/" + string(g) + "/namespaces/" + namespace + "/" + r.Plural
	}
	if name != "" {
		path += "/" + name
	}
	return path
}

// needed returns all rights that a migration needs.
func needed() (list []Right) {
	add := func(group, resource, name string, verbs ...string) {
		for _, v := range verbs {
			list = append(list, Right{v, group, resource, name})
		}
	}
	for _, k := range kinds {
		older, _ := form.CustomResource(form.V1, k)
		newer, _ := form.CustomResource(form.V3, k)
		add(olderGroup, older.Plural, anyObject, "list")
		add(newerGroup, newer.Plural, anyObject, "list", "create", "update", "delete")
		add(crdGroup, crdResource, older.Plural+olderSuffix, "delete")
	}
	add(olderGroup, information, anyObject, "get", "update")
	add(newerGroup, information, anyObject, "get", "create", "update", "delete")
	add(crdGroup, crdResource, information+olderSuffix, "delete")
	add(crdGroup, crdResource, anyObject, "list")
	add(serviceGroup, "apiservices", service, "get", "update", "delete")
	add(serviceGroup, "apiservices", anyObject, "create")
	add(group, resource, anyObject, "update")
	return list
}

// lacking returns the rights of a list that this process lacks, in a text that is empty if it has all.
func lacking(ctx context.Context, api API, list []Right) (string, error) {
	var missing []string
	for _, r := range list {
		ok, err := api.May(ctx, r)
		if err != nil {
			return "", fmt.Errorf("the right to %s: %w", r, err)
		}
		if !ok {
			missing = append(missing, r.String())
		}
	}
	return some(missing), nil
}

// some joins the first few of a list.
func some(list []string) string {
	if n := len(list) - mostInMessage; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:mostInMessage], ", "), n)
	}
	return strings.Join(list, ", ")
}

func asStatus(err error, to *apierrors.APIStatus) bool { return errors.As(err, to) }
