package live

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	kube "github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/nodestatus"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const limit = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a cluster of two nodes, with the datastore in its API.
type rig struct {
	admin  *kubernetes.Clientset
	store  *kube.Store
	tables *datastore.Tables
}

func newRig(t *testing.T) *rig {
	server := apiserver.Start(t)
	server.InstallCRDs(t, form.V1)
	r := &rig{tables: datastore.NewTables(zap.NewNop(), "n1")}
	var err error
	r.admin, err = kubernetes.NewForConfig(server.Config(apiserver.Admin))
	must(t, err)
	r.store, err = kube.OpenREST(t.Context(), kube.Config{}, server.Config(apiserver.Admin), zap.NewNop())
	must(t, err)
	t.Cleanup(func() { _ = r.store.Close() })
	for i, name := range []string{"n1", "n2"} {
		_, err := r.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{"projectcalico.org/IPv4Address": fmt.Sprintf("10.0.0.%d/24", i+1)}}},
			metav1.CreateOptions{})
		must(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { _ = r.tables.Run(ctx, r.store, bgp.Kinds()...) }()
	return r
}

func (r *rig) create(t *testing.T, kind model.Kind, name, spec string) {
	t.Helper()
	k := model.ResourceKey(kind, name)
	o := codec.Decode(k, fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":%s}`, name, spec), 0)
	must(t, o.Err)
	_, err := r.store.Create(t.Context(), o)
	must(t, err)
}

// await waits until n1's BGP state is as expected.
func (r *rig) await(t *testing.T, what string, ok func(bgp.Desired) bool) {
	t.Helper()
	var d bgp.Desired
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if d = bgp.Compute(bgp.Input{Reader: r.tables.Snapshot(), Node: "n1"}); d.Global.LocalAS != 0 && ok(d) {
			return
		}
	}
	t.Fatalf("%s: %+v", what, d)
}

func TestKubernetes(t *testing.T) {
	r := newRig(t)
	t.Run("labels of nodes", r.testLabels)
	t.Run("services", r.testServices)
	t.Run("CalicoNodeStatus", r.testNodeStatus)
}

// The labels of Kubernetes' nodes select the nodes of a BGPPeer.
func (r *rig) testLabels(t *testing.T) {
	r.create(t, model.KindBGPPeer, "tor", `{"peerIP":"192.0.2.1","asNumber":65001,"nodeSelector":"rack == '7'"}`)
	peers := func(d bgp.Desired) bool {
		return slices.ContainsFunc(d.Sessions, func(s bgp.Session) bool { return s.Address.String() == "192.0.2.1" })
	}
	label := func(patch string) {
		_, err := r.admin.CoreV1().Nodes().Patch(t.Context(), "n1", "application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"rack":`+patch+`}}}`), metav1.PatchOptions{})
		must(t, err)
	}
	r.await(t, "without the label", func(d bgp.Desired) bool { return !peers(d) })
	label(`"7"`)
	r.await(t, "with the label", peers)
	label("null")
	r.await(t, "without it again", func(d bgp.Desired) bool { return !peers(d) })
}

// A service whose traffic has to reach an endpoint on the node is announced while the node has a ready endpoint.
func (r *rig) testServices(t *testing.T) {
	const address = "80.1.2.3"
	r.create(t, model.KindBGPConfiguration, "default", `{"serviceLoadBalancerIPs":[{"cidr":"80.1.0.0/16"}]}`)
	announced := func(p string) func(bgp.Desired) bool {
		return func(d bgp.Desired) bool {
			return slices.ContainsFunc(d.Originated, func(o bgp.Origin) bool { return o.Prefix.String() == p })
		}
	}
	not := func(f func(bgp.Desired) bool) func(bgp.Desired) bool {
		return func(d bgp.Desired) bool { return !f(d) }
	}
	services, slicesOf := r.admin.CoreV1().Services("default"), r.admin.DiscoveryV1().EndpointSlices("default")
	s, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(t, err)
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	_, err = services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{})
	must(t, err)
	one, yes, no := "n1", true, false
	put := func(name string, conditions discoveryv1.EndpointConditions) {
		t.Helper()
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{model.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.1.0.1"}, NodeName: &one, Conditions: conditions}}}
		if _, err := slicesOf.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
			_, err = slicesOf.Create(t.Context(), slice, metav1.CreateOptions{})
			must(t, err)
		}
	}
	r.await(t, "the range", announced("80.1.0.0/16"))
	r.await(t, "no endpoint", not(announced(address+"/32")))
	put("web-1", discoveryv1.EndpointConditions{Ready: &yes})
	r.await(t, "an endpoint here", announced(address+"/32"))
	put("web-1", discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes})
	r.await(t, "it ends, and still serves", not(announced(address+"/32")))
	put("web-2", discoveryv1.EndpointConditions{Ready: &yes})
	r.await(t, "another one, in another slice", announced(address+"/32"))
	must(t, slicesOf.Delete(t.Context(), "web-1", metav1.DeleteOptions{}))
	first := model.Key{Kind: model.KindEndpointSlice, Namespace: "default", Name: "web-1"}
	r.await(t, "the slice of the first is gone", func(d bgp.Desired) bool {
		return model.Get[model.EndpointSlice](r.tables.Snapshot(), first) == nil && announced(address+"/32")(d)
	})
	put("web-2", discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &yes})
	r.await(t, "it ends, of a service that publishes what is not ready", not(announced(address+"/32")))
	put("web-2", discoveryv1.EndpointConditions{Ready: &yes})
	r.await(t, "back", announced(address+"/32"))
	_, err = r.admin.CoreV1().Nodes().Patch(t.Context(), "n1", "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"`+bgp.LabelExclude+`":"true"}}}`), metav1.PatchOptions{})
	must(t, err)
	r.await(t, "the node is excluded", func(d bgp.Desired) bool {
		return !announced(address+"/32")(d) && !announced("80.1.0.0/16")(d)
	})
}

// The status is written where the API keeps it, a subresource, and again when its period is over.
func (r *rig) testNodeStatus(t *testing.T) {
	reporter := nodestatus.Reporter{Store: r.store, Node: "n1", Log: zap.NewNop(), Retry: time.Second,
		Facts: func(bool) (nodestatus.Facts, error) {
			return nodestatus.Facts{Running: true, Version: "manx test", RouterID: netip.MustParseAddr("10.0.0.1")}, nil
		}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = reporter.Run(ctx) }()
	r.create(t, model.KindCalicoNodeStatus, "mine", `{"node":"n1","classes":["Agent","BGP"],"updatePeriodSeconds":1}`)
	r.create(t, model.KindCalicoNodeStatus, "other", `{"node":"n2","classes":["Agent"],"updatePeriodSeconds":1}`)
	status := func(name string) *v3.CalicoNodeStatus {
		t.Helper()
		o, err := r.store.Get(ctx, model.ResourceKey(model.KindCalicoNodeStatus, name))
		must(t, err)
		return o.Value.(*v3.CalicoNodeStatus)
	}
	var first metav1.Time
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		s := status("mine")
		if s.Status.Agent.BIRDV4.Version == "manx test" {
			if first.IsZero() {
				first = s.Status.LastUpdated
			} else if s.Status.LastUpdated.After(first.Time) {
				if !strings.Contains(fmt.Sprint(s.Spec.Classes), "Agent") {
					t.Errorf("the spec has changed: %+v", s.Spec)
				}
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the status is %+v", s.Status)
		}
	}
	if s := status("other"); !s.Status.LastUpdated.IsZero() {
		t.Errorf("that of another node was written: %+v", s.Status)
	}
}
