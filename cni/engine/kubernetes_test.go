package engine_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/ipam/warm"
)

// requests lists the requests to the API server.
type requests struct {
	http.RoundTripper
	mu   sync.Mutex
	list []string
}

func (r *requests) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Query().Get("watch") == "" {
		r.mu.Lock()
		r.list = append(r.list, q.Method+" "+q.URL.Path)
		r.mu.Unlock()
	}
	return r.RoundTripper.RoundTrip(q)
}

func (r *requests) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

// TestKubernetes is CNI on a real API server: the pod's annotations, the addresses of annotated pools, and one request
// on the way of an ADD.
func TestKubernetes(t *testing.T) {
	server := apiserver.Start(t)
	server.InstallCRDs(t, form.V1)
	for path, object := range map[string]any{
		"/api/v1/nodes": map[string]any{"metadata": map[string]any{"name": "node-1"}},
		"/api/v1/namespaces": map[string]any{
			"metadata": map[string]any{"name": "shop", "labels": map[string]string{"team": "a"},
				"annotations": map[string]string{"cni.projectcalico.org/ipv4pools": `["other"]`}}},
	} {
		server.Request(t, http.MethodPost, path, object)
	}
	server.Request(t, http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts",
		map[string]any{"metadata": map[string]any{"name": "default"}})
	pod := func(name string, annotations map[string]string) {
		server.Request(t, http.MethodPost, "/api/v1/namespaces/shop/pods", map[string]any{
			"metadata": map[string]any{"name": name, "annotations": annotations, "labels": map[string]string{
				"app": name}},
			"spec": map[string]any{"nodeName": "node-1", "automountServiceAccountToken": false,
				"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
	}
	config := server.Config(apiserver.Admin)
	counted := &requests{}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { counted.RoundTripper = rt; return counted })
	store, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{InterfacePrefix: "cali"}, config, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n := &node{t: t, plain: store, dir: t.TempDir()}
	ready := true
	info := &v3.ClusterInformation{}
	info.Name, info.Spec.DatastoreReady = "default", &ready
	n.create(model.ResourceKey(model.KindClusterInformation, "default"), info)
	for name, spec := range map[string]model.IPPoolSpec{"main": {CIDR: "10.65.0.0/24", BlockSize: 26},
		"other": {CIDR: "10.66.0.0/24", BlockSize: 26}} {
		pool := &model.IPPool{Spec: spec}
		pool.Name = name
		n.create(model.ResourceKey(model.KindIPPool, name), pool)
	}
	pod("one", nil)
	pod("two", nil)
	pod("fixed", map[string]string{"cni.projectcalico.org/ipAddrs": `["10.65.0.77"]`,
		"cni.projectcalico.org/hwAddr": "02:00:00:00:00:77"})
	var kept []model.Kind
	for _, k := range append(kinds, model.KindNamespace) {
		if store.Keeps(k) {
			kept = append(kept, k)
		}
	}
	n.tables = datastore.NewTables(zap.NewNop(), "node-1")
	following, stopFollowing := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.tables.Run(following, store, kept...) }()
	if _, err := n.tables.WaitInSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.cache = warm.New(store, n.tables, kept, func(o *model.Object) bool {
		b, ok := o.Value.(*model.Block)
		return ok && b.Affinity != nil && *b.Affinity == "host:node-1"
	})
	interfaces := map[string]bool{} // of the host
	n.engine = engine.New(engine.Config{Lasting: true, MTUFile: "/nonexistent",
		HasInterface: func(name string) (bool, error) { return interfaces[name], nil },
		Open: func(context.Context, *cni.Config) (engine.Store, func(), error) {
			return n.cache.Begin(), func() {}, nil
		},
		Node: func(*cni.Config) (string, error) { return "node-1", nil }, Confirm: n.tables.Confirm})
	try := func(step cni.Step, name, id string, a *cni.Attachment) *cni.Response {
		t.Helper()
		text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "datastore_type": "kubernetes",
			"ipam": map[string]any{"type": "calico-ipam"}, "policy": map[string]any{"type": "k8s"},
			"ipam_lock_file": filepath.Join(n.dir, "ipam.lock"), "policy_setup_timeout_seconds": 0})
		n.must(err)
		r, err := n.engine.Call(t.Context(), &cni.Request{Version: cni.ProtocolVersion, Step: step, ContainerID: id,
			Netns: "/run/netns/" + id, IfName: "eth0", Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + name,
			Config: text, Attachment: a})
		n.must(err)
		return r
	}
	call := func(step cni.Step, name, id string, a *cni.Attachment) *cni.Attachment {
		t.Helper()
		r := try(step, name, id, a)
		if r.Error != nil {
			t.Fatalf("%s %s: %v", step, name, r.Error)
		}
		return r.Attachment
	}
	annotations := func(name string) map[string]string {
		t.Helper()
		o, err := store.Get(t.Context(), model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop",
			Name: "node--1-k8s-" + name + "-eth0"})
		n.must(err)
		e := o.Value.(*model.WorkloadEndpoint).Confirmed()
		return map[string]string{"container": e.Spec.ContainerID, "addresses": strings.Join(e.Spec.IPNetworks, ",")}
	}
	// The DEL of a container of an earlier pod of that name leaves the interface, which has the same name.
	counted.take()
	if late := call(cni.StepDel, "one", "c0", nil); late.HostIf != "" {
		t.Errorf("a DEL for an earlier pod removes %s", late.HostIf)
	}
	if calls := counted.take(); len(calls) > 0 {
		t.Errorf("a DEL for an earlier pod writes to the new one: %q", calls)
	}
	a := call(cni.StepAdd, "one", "c1", nil)
	call(cni.StepFinish, "one", "c1", a)
	if !netip.MustParsePrefix("10.66.0.0/24").Contains(a.Addresses[0]) {
		t.Errorf("address %s is not of the namespace's pool", a.Addresses[0])
	}
	if have := annotations("one"); have["container"] != "c1" || have["addresses"] != a.Addresses[0].String()+"/32" {
		t.Errorf("the pod says %v", have)
	}
	counted.take()
	b := call(cni.StepAdd, "two", "c2", nil)
	n.engine.Wait()
	call(cni.StepFinish, "two", "c2", b)
	calls := counted.take()
	t.Logf("requests of an ADD: %q", calls)
	block := "PUT /apis/crd.projectcalico.org/v1/ipamblocks/" +
		strings.NewReplacer(".", "-", "/", "-").Replace(netip.PrefixFrom(b.Addresses[0], 26).Masked().String())
	if len(calls) != 3 || !slices.Contains(calls[:2], block) || !strings.HasPrefix(calls[2], "PATCH ") {
		t.Errorf("requests are %q, want the writes of the block and the handle, and then of the pod", calls)
	}
	f := call(cni.StepAdd, "fixed", "c3", nil)
	call(cni.StepFinish, "fixed", "c3", f)
	if f.Addresses[0].String() != "10.65.0.77" || f.MAC != "02:00:00:00:00:77" {
		t.Errorf("annotations are not followed: %+v", f)
	}
	// An earlier ADD of the same container ended after the write of the block.
	n.must(ipam.New(store, nil, nil).AssignIP(t.Context(), ipam.AddressRequest{Host: "node-1", Handle: "net.c5",
		Address: netip.MustParseAddr("10.65.0.78"), Attrs: map[string]string{"node": "node-1"}}))
	pod("repeated", map[string]string{"cni.projectcalico.org/ipAddrs": `["10.65.0.78"]`})
	r := call(cni.StepAdd, "repeated", "c5", nil)
	call(cni.StepFinish, "repeated", "c5", r)
	// The runtime has lost the first container, and calls no DEL for it.
	again := call(cni.StepAdd, "fixed", "c3b", nil)
	call(cni.StepFinish, "fixed", "c3b", again)
	if have := annotations("fixed"); have["container"] != "c3b" || have["addresses"] != "10.65.0.77/32" {
		t.Errorf("after the second container's ADD the pod says %v", have)
	}
	// A pod whose annotations name the container and the address of another pod does not get that address.
	pod("thief", map[string]string{"cni.projectcalico.org/containerID": "c3b",
		"cni.projectcalico.org/podIP": "10.65.0.77", "cni.projectcalico.org/podIPs": "10.65.0.77/32",
		"cni.projectcalico.org/ipAddrs": `["10.65.0.77"]`})
	if theft := try(cni.StepAdd, "thief", "c6", nil); theft.Error == nil || !strings.Contains(theft.Error.Error(),
		"already assigned") {
		t.Errorf("a pod takes the address of another one: %+v", theft)
	}
	// Floating addresses need the permission of the network configuration.
	pod("floating", map[string]string{"cni.projectcalico.org/floatingIPs": `["10.65.0.77"]`})
	if r := try(cni.StepAdd, "floating", "c10", nil); r.Error == nil || !strings.Contains(r.Error.Error(),
		"feature_control.floating_ips") {
		t.Errorf("a pod with floating addresses: %+v", r)
	}
	// Two pods whose names have the same hash.
	pod("pod-802106", nil)
	pod("pod-4351702", nil)
	first := call(cni.StepAdd, "pod-802106", "c7", nil)
	call(cni.StepFinish, "pod-802106", "c7", first)
	interfaces[first.HostIf] = true
	second := try(cni.StepAdd, "pod-4351702", "c8", nil)
	if second.Error == nil || !strings.Contains(second.Error.Error(),
		first.HostIf+" of pod shop/pod-4351702 is in use by shop/pod-802106 on this node") {
		t.Errorf("a pod gets the interface of another one: %+v", second)
	}
	renewed := call(cni.StepAdd, "pod-802106", "c9", nil)
	call(cni.StepFinish, "pod-802106", "c9", renewed)
	call(cni.StepDel, "pod-802106", "c7", nil)
	call(cni.StepRelease, "pod-802106", "c7", nil)
	stopFollowing()
	<-ended
	pod("late", nil) // the kubelet has received it, this process has not
	l := call(cni.StepAdd, "late", "c4", nil)
	call(cni.StepFinish, "late", "c4", l)
	if have := annotations("late"); have["container"] != "c4" || have["addresses"] != l.Addresses[0].String()+"/32" {
		t.Errorf("the pod says %v", have)
	}
	// Policy and routes follow the tables, whose watch has ended: an ADD waits for no event of it.
	if o := n.tables.Snapshot().Get(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop",
		Name: "node--1-k8s-late-eth0"}); o == nil || len(o.Workload().Networks) != 1 {
		t.Errorf("the tables do not have the address of a pod that the watch has not delivered: %v", o)
	}
	for name, id := range map[string]string{"one": "c1", "two": "c2", "fixed": "c3b", "late": "c4", "repeated": "c5",
		"pod-802106": "c9"} {
		call(cni.StepDel, name, id, nil)
		call(cni.StepRelease, name, id, nil)
	}
	handles, _, err := store.List(t.Context(), model.KindIPAMHandle, "")
	if n.must(err); len(handles) > 0 {
		t.Errorf("%d handles are left", len(handles))
	}
	if have := annotations("one"); have["addresses"] != "" {
		t.Errorf("after DEL the pod says %v", have)
	}
}
