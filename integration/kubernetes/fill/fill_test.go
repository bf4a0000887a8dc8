package fill_test

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/fill"
)

const definitions = "../../../deploy/crds/crd.projectcalico.org"

// TestFill checks a small cluster through the API, like any client.
func TestFill(t *testing.T) {
	s := apiserver.Start(t)
	if err := fill.Definitions(t.Context(), s.Config(apiserver.Admin), definitions); err != nil {
		t.Fatal(err)
	}
	c := fill.Cluster{Nodes: 5, Pods: 90, Namespaces: 3, Policies: 12, Services: 9, Local: 4}
	f, err := c.Fill(t.Context(), s.Config(apiserver.Admin), s.Etcd)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := f.API.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses, local := map[string]bool{}, 0
	for _, p := range pods.Items {
		addresses[p.Status.PodIP] = true
		if p.Spec.NodeName == fill.Measured {
			local++
		}
		o, notices := form.Endpoint(&p, form.Config{})
		if o == nil || o.Err != nil || len(notices) > 0 || len(o.Value.(*model.WorkloadEndpoint).Spec.IPNetworks) != 1 {
			t.Fatalf("%s/%s is no endpoint with an address: %v, %v", p.Namespace, p.Name, o, notices)
		}
	}
	if len(addresses) != c.Pods || local != c.Local {
		t.Errorf("%d addresses of %d pods, %d of the measured node; want %d and %d", len(addresses), len(pods.Items),
			local, c.Pods, c.Local)
	}
	for path, want := range map[string]int{
		"/api/v1/nodes": c.Nodes, "/apis/networking.k8s.io/v1/networkpolicies": c.Policies,
		"/apis/discovery.k8s.io/v1/endpointslices":             c.Services,
		"/apis/crd.projectcalico.org/v1/ipamblocks":            5,
		"/apis/crd.projectcalico.org/v1/blockaffinities":       5,
		"/apis/crd.projectcalico.org/v1/ipamhandles":           c.Pods,
		"/apis/crd.projectcalico.org/v1/ippools":               1,
		"/api/v1/namespaces/ns-0/services":                     3,
		"/api/v1/namespaces/ns-2/serviceaccounts":              2,
		"/api/v1/namespaces/ns-1/pods?labelSelector=app=app-2": 3,
	} {
		if n := count(t, f.API.CoreV1().RESTClient(), path); n != want {
			t.Errorf("%s has %d items, want %d", path, n, want)
		}
	}
	// A copied object can be changed as if it had been created.
	if err := f.Change(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if err := f.API.CoreV1().Pods(pods.Items[0].Namespace).Delete(t.Context(), pods.Items[0].Name,
		*metav1.NewDeleteOptions(0)); err != nil {
		t.Error(err)
	}
	testLife(t, f)
}

// testLife counts the watch events of a pod's life.
func testLife(t *testing.T, f *fill.Filled) {
	t.Helper()
	namespace, name := f.PodName(f.Pods + 3)
	w, err := f.API.CoreV1().Pods(namespace).Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := f.Life(t.Context(), f.Pods+3, 0); err != nil {
		t.Fatal(err)
	}
	var kinds []watch.EventType
	addresses := map[string]bool{}
	for e := range w.ResultChan() {
		kinds = append(kinds, e.Type)
		addresses[e.Object.(*corev1.Pod).Status.PodIP] = true
		if e.Type == watch.Deleted {
			break
		}
	}
	if len(kinds) != 9 || kinds[0] != watch.Added || len(addresses) != 2 {
		t.Errorf("a pod's life is %v with addresses %v, want nine events and one address", kinds, addresses)
	}
}

func count(t *testing.T, api rest.Interface, path string) int {
	t.Helper()
	var list corev1.List
	raw, err := api.Get().RequestURI(path).Do(t.Context()).Raw()
	if err == nil {
		err = decode(raw, &list)
	}
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", path, err))
	}
	return len(list.Items)
}

func decode(raw []byte, list *corev1.List) error {
	if len(raw) > 0 && raw[0] == '{' {
		return json.Unmarshal(raw, list)
	}
	return fmt.Errorf("%.20q is no JSON", raw)
}
