package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// ClusterPolicies are custom resources of Kubernetes. The definition is part of no installation of Manx or Calico.
var ClusterPolicies = form.Resource{Group: "policy.networking.k8s.io", Version: "v1alpha2",
	Plural: "clusternetworkpolicies",
	Kind:   "ClusterNetworkPolicy"}

// CRDs returns the custom resources of a group.
func CRDs(g form.Group) (list []form.Resource) {
	seen := map[string]bool{}
	for _, info := range model.Kinds() {
		if r, ok := form.CustomResource(g, info.Kind); ok && !seen[r.Plural] {
			seen[r.Plural] = true
			list = append(list, r)
		}
	}
	return list
}

// InstallCRDs defines custom resources that accept everything, those of CRDs if none are named, and waits until they
// are served.
func (s *Server) InstallCRDs(t testing.TB, g form.Group, only ...string) {
	t.Helper()
	list := slices.DeleteFunc(CRDs(g), func(r form.Resource) bool {
		return len(only) > 0 && !slices.Contains(only, r.Plural)
	})
	s.Define(t, list...)
}

// Define defines custom resources that accept everything, and waits until they are served.
func (s *Server) Define(t testing.TB, list ...form.Resource) {
	t.Helper()
	admin := s.Raw(t, Admin)
	var paths []string
	for _, r := range list {
		err := admin.Post().AbsPath(definitions).SetHeader("Content-Type", "application/json").Body(definition(t, r)).
			Do(t.Context()).Error()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("definition of %s: %v", r.Plural, err)
		}
		paths = append(paths, fmt.Sprintf("/apis/%s/%s/%s", r.Group, r.Version, r.Plural))
	}
	for _, path := range paths {
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			err := admin.Get().AbsPath(path).Do(t.Context()).Error()
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not served: %v", path, err)
			}
		}
	}
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// DeleteCRD deletes a definition and all its objects.
func (s *Server) DeleteCRD(t testing.TB, g form.Group, plural string) {
	t.Helper()
	group, _, _ := strings.Cut(string(g), "/")
	err := s.Raw(t, Admin).Delete().AbsPath(definitions + "/" + plural + "." + group).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
}

// definition is the JSON of a definition without rules.
func definition(t testing.TB, r form.Resource) []byte {
	t.Helper()
	scope, subresources := "Cluster", map[string]any{}
	if r.Namespaced {
		scope = "Namespaced"
	}
	if r.Status {
		subresources["status"] = map[string]any{}
	}
	raw, err := json.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": r.Plural + "." + r.Group, "annotations": map[string]any{
			"api-approved.kubernetes.io": "unapproved, for tests"}},
		"spec": map[string]any{
			"group": r.Group, "scope": scope,
			"names": map[string]any{"plural": r.Plural, "singular": strings.ToLower(r.Kind), "kind": r.Kind},
			"versions": []any{map[string]any{"name": r.Version, "served": true, "storage": true,
				"subresources": subresources, "schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Raw is a client of a user for requests by path.
func (s *Server) Raw(t testing.TB, user string) *rest.RESTClient {
	t.Helper()
	c := s.Config(user)
	c.GroupVersion = &schema.GroupVersion{Version: "v1"}
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion() // for the texts of errors
	client, err := rest.RESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Request sends JSON by path as admin and returns the response; body may be nil.
func (s *Server) Request(t testing.TB, verb, path string, body any) []byte {
	t.Helper()
	raw, err := s.Try(t.Context(), t, verb, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, path, err)
	}
	return raw
}

// Try is Request that returns the error.
func (s *Server) Try(ctx context.Context, t testing.TB, verb, path string, body any) ([]byte, error) {
	t.Helper()
	r := s.Raw(t, Admin).Verb(verb).AbsPath(path)
	if body != nil {
		raw, ok := body.([]byte)
		if !ok {
			var err error
			if raw, err = json.Marshal(body); err != nil {
				t.Fatal(err)
			}
		}
		r.Body(raw).SetHeader("Content-Type", "application/json")
		if verb == http.MethodPatch {
			r.SetHeader("Content-Type", "application/merge-patch+json")
		}
	}
	result := r.Do(ctx)
	if err := result.Error(); err != nil { // has the text of the server, unlike that of Raw
		return nil, err
	}
	return result.Raw()
}

// Forget makes the server lose its history: the server restarts, and etcd compacts all earlier revisions.
func (s *Server) Forget(t testing.TB) {
	t.Helper()
	s.Restart(t)
}
