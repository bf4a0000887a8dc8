package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/cni/kubeapi"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/ipam/warm"
)

// kubevirt is a cluster with KubeVirt's definitions, and the engine of each of two nodes.
type kubevirt struct {
	t       *testing.T
	server  *apiserver.Server
	store   *kubernetes.Store
	api     *kubeapi.API
	engines map[string]*engine.Engine // by node: that of node-1 is a plugin's, that of node-2 a manxd's
	cache   *warm.Cache
	dir     string
}

func newKubevirt(t *testing.T) *kubevirt {
	t.Helper()
	k := &kubevirt{t: t, server: apiserver.Start(t), engines: map[string]*engine.Engine{}, dir: t.TempDir()}
	k.server.InstallCRDs(t, form.V1)
	var err error
	k.store, err = kubernetes.OpenREST(t.Context(), kubernetes.Config{InterfacePrefix: "cali"},
		k.server.Config(apiserver.Admin), zap.NewNop())
	k.must(err)
	t.Cleanup(func() { _ = k.store.Close() })
	k.api, err = kubeapi.New(k.server.Config(apiserver.Admin))
	k.must(err)
	k.post("/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "shop"}})
	k.post("/api/v1/namespaces/shop/serviceaccounts", map[string]any{"metadata": map[string]any{"name": "default"}})
	for _, name := range []string{"node-1", "node-2"} {
		k.post("/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": name}})
		k.engines[name] = engine.New(engine.Config{MTUFile: "/nonexistent", Lasting: name == "node-2",
			Open: func(context.Context, *cni.Config) (engine.Store, func(), error) {
				if name == "node-2" {
					return k.cache.Begin(), func() {}, nil
				}
				return k.store, func() {}, nil
			},
			Kubernetes: func(*cni.Config) (engine.Kubernetes, error) { return k.api, nil },
			Node:       func(*cni.Config) (string, error) { return name, nil }})
	}
	k.follow("node-2")
	ready := true
	info := &v3.ClusterInformation{}
	info.Name, info.Spec.DatastoreReady = "default", &ready
	pool := &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.65.0.0/24", BlockSize: 28}}
	pool.Name = "main"
	for key, value := range map[model.Key]any{
		model.ResourceKey(model.KindClusterInformation, "default"): info,
		model.ResourceKey(model.KindIPPool, "main"):                pool,
	} {
		_, err := k.store.Create(t.Context(), model.NewObject(key, value))
		k.must(err)
	}
	return k
}

func (k *kubevirt) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// follow makes the cache of a manxd.
func (k *kubevirt) follow(node string) {
	k.t.Helper()
	var kept []model.Kind
	for _, kind := range append(kinds, model.KindNamespace) {
		if k.store.Keeps(kind) {
			kept = append(kept, kind)
		}
	}
	tables := datastore.NewTables(zap.NewNop(), node)
	ctx, cancel := context.WithCancel(context.Background())
	k.t.Cleanup(cancel)
	go func() { _ = tables.Run(ctx, k.store, kept...) }()
	_, err := tables.WaitInSync(ctx)
	k.must(err)
	k.cache = warm.New(k.store, tables, kept, func(o *model.Object) bool {
		b, ok := o.Value.(*model.Block)
		return ok && b.Affinity != nil && *b.Affinity == "host:"+node
	})
}

// post creates an object and returns its UID.
func (k *kubevirt) post(path string, object any) string {
	k.t.Helper()
	var made struct {
		Metadata struct{ UID string }
	}
	k.must(json.Unmarshal(k.server.Request(k.t, http.MethodPost, path, object), &made))
	return made.Metadata.UID
}

// define installs KubeVirt's definitions.
func (k *kubevirt) define() {
	k.t.Helper()
	for kind, plural := range map[string]string{"VirtualMachine": "virtualmachines",
		"VirtualMachineInstance": "virtualmachineinstances"} {
		schema := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
		k.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", map[string]any{
			"metadata": map[string]any{"name": plural + ".kubevirt.io"},
			"spec": map[string]any{"group": "kubevirt.io", "scope": "Namespaced",
				"names": map[string]any{"kind": kind, "plural": plural},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": schema}}}}})
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			_, served, err := k.api.KubeVirt(k.t.Context(), plural, "shop", "none")
			if k.must(err); served {
				break
			}
			if time.Now().After(end) {
				k.t.Fatal("the API does not serve ", plural)
			}
		}
	}
}

// owner returns a reference to an object of KubeVirt.
func owner(kind, name, uid string) map[string]any {
	return map[string]any{"apiVersion": "kubevirt.io/v1", "kind": kind, "name": name, "uid": uid, "controller": true}
}

// object creates an object of KubeVirt and returns the reference to it.
func (k *kubevirt) object(plural, kind, name string, owners ...any) map[string]any {
	k.t.Helper()
	uid := k.post("/apis/kubevirt.io/v1/namespaces/shop/"+plural, map[string]any{"apiVersion": "kubevirt.io/v1",
		"kind": kind, "metadata": map[string]any{"name": name, "ownerReferences": owners}})
	return owner(kind, name, uid)
}

func (k *kubevirt) remove(plural, name string) {
	k.server.Request(k.t, http.MethodDelete, "/apis/kubevirt.io/v1/namespaces/shop/"+plural+"/"+name, nil)
}

func (k *kubevirt) pod(name, node string, labels map[string]string, owner any) {
	k.t.Helper()
	k.post("/api/v1/namespaces/shop/pods", map[string]any{
		"metadata": map[string]any{"name": name, "labels": labels, "ownerReferences": []any{owner}},
		"spec": map[string]any{"nodeName": node, "automountServiceAccountToken": false,
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
}

// call does a step for the container of a pod, which has the pod's name.
func (k *kubevirt) call(step cni.Step, pod, node string, a *cni.Attachment, had ...netip.Addr) *cni.Response {
	k.t.Helper()
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "datastore_type": "kubernetes",
		"ipam": map[string]any{"type": "calico-ipam"}, "policy": map[string]any{"type": "k8s"},
		"ipam_lock_file": filepath.Join(k.dir, "ipam.lock"), "policy_setup_timeout_seconds": 0})
	k.must(err)
	r, err := k.engines[node].Call(k.t.Context(), &cni.Request{Version: cni.ProtocolVersion, Step: step,
		ContainerID: pod, IfName: "eth0", Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + pod, Config: text,
		Attachment: a, Previous: had})
	k.must(err)
	return r
}

func (k *kubevirt) add(pod, node string) netip.Addr {
	k.t.Helper()
	r := k.call(cni.StepAdd, pod, node, nil)
	if r.Error != nil {
		k.t.Fatalf("ADD of %s: %v", pod, r.Error)
	}
	if finished := k.call(cni.StepFinish, pod, node, r.Attachment); finished.Error != nil {
		k.t.Fatalf("end of ADD of %s: %v", pod, finished.Error)
	}
	return r.Attachment.Addresses[0]
}

func (k *kubevirt) del(pod, node string) {
	k.t.Helper()
	for _, step := range []cni.Step{cni.StepDel, cni.StepRelease} {
		if r := k.call(step, pod, node, nil); r.Error != nil {
			k.t.Fatalf("%s of %s: %v", step, pod, r.Error)
		}
	}
}

// handles returns the handles and the pod that each is of.
func (k *kubevirt) handles() string {
	k.t.Helper()
	objects, _, err := k.store.List(k.t.Context(), model.KindIPAMHandle, "")
	k.must(err)
	var list []string
	for _, o := range objects {
		has, err := ipam.New(k.store, nil, nil).AllocationsOf(k.t.Context(), o.Key.Name)
		k.must(err)
		for _, a := range has {
			list = append(list, o.Key.Name+" of "+a.Attrs["pod"]+" on "+a.Attrs["node"])
		}
	}
	return strings.Join(list, ", ")
}

func (k *kubevirt) want(when, handles string) {
	k.t.Helper()
	if have := k.handles(); have != handles {
		k.t.Errorf("%s: %q, want %q", when, have, handles)
	}
}

// A virtual machine of KubeVirt keeps its address from pod to pod, on any node, until it is deleted.
func TestVirtualMachineKeepsItsAddress(t *testing.T) {
	k := newKubevirt(t)
	const uid = "11111111-1111-1111-1111-111111111111"
	k.pod("virt-launcher-none", "node-1", nil, owner("VirtualMachineInstance", "web", uid))
	k.add("virt-launcher-none", "node-1")
	k.want("without KubeVirt", "net.virt-launcher-none of virt-launcher-none on node-1")
	k.del("virt-launcher-none", "node-1")

	k.define()
	vm := k.object("virtualmachines", "VirtualMachine", "web")
	instance := k.object("virtualmachineinstances", "VirtualMachineInstance", "web", vm)
	k.pod("virt-launcher-1", "node-1", nil, instance)
	first := k.add("virt-launcher-1", "node-1")
	k.want("the first pod", "net.vmi.shop.web of virt-launcher-1 on node-1")
	if r := k.call(cni.StepIPAMCheck, "virt-launcher-1", "node-1", nil, first); r.Error != nil {
		t.Errorf("CHECK: %v", r.Error)
	}
	k.del("virt-launcher-1", "node-1")
	k.remove("virtualmachineinstances", "web") // stopped
	k.want("a machine that is stopped", "net.vmi.shop.web of virt-launcher-1 on node-1")

	instance = k.object("virtualmachineinstances", "VirtualMachineInstance", "web", vm)
	k.pod("virt-launcher-2", "node-2", nil, instance)
	if second := k.add("virt-launcher-2", "node-2"); second != first {
		t.Errorf("the next pod has %s, and the first one had %s", second, first)
	}
	k.del("virt-launcher-1", "node-1") // once more, late
	k.want("the next pod", "net.vmi.shop.web of virt-launcher-2 on node-2")

	k.pod("virt-launcher-forged", "node-1", nil, owner("VirtualMachineInstance", "web", uid))
	if r := k.call(cni.StepAdd, "virt-launcher-forged", "node-1", nil); r.Error == nil ||
		!strings.Contains(r.Error.Error(), "is not of the virtual machine web") {
		t.Errorf("a pod that names an instance with another UID: %+v", r)
	}
	k.pod("virt-launcher-target", "node-1", map[string]string{"kubevirt.io/migrationJobUID": uid}, instance)
	r := k.call(cni.StepAdd, "virt-launcher-target", "node-1", nil)
	if r.Error != nil || r.Attachment.Addresses[0] != first || !r.Attachment.Routed {
		t.Errorf("the target of a live migration has not the address, or a route: %+v", r)
	}
	k.want("during a migration", "net.vmi.shop.web of virt-launcher-2 on node-2")
	k.del("virt-launcher-target", "node-1")
	a := ipam.New(k.store, nil, nil)
	k.must(a.Promote(t.Context(), "net.vmi.shop.web", "shop", "virt-launcher-target"))
	k.want("after one that has failed", "net.vmi.shop.web of virt-launcher-2 on node-2")
	if again := k.add("virt-launcher-target", "node-1"); again != first {
		t.Errorf("another migration: the target has %s", again)
	}
	k.must(a.Promote(t.Context(), "net.vmi.shop.web", "shop", "virt-launcher-target"))
	k.del("virt-launcher-2", "node-2")
	k.want("after a migration", "net.vmi.shop.web of virt-launcher-target on node-1")
	if again := k.add("virt-launcher-target", "node-1"); again != first { // a new sandbox of the pod
		t.Errorf("the target has %s after its move", again)
	}
	k.want("after a new sandbox", "net.vmi.shop.web of virt-launcher-target on node-1")

	k.remove("virtualmachines", "web")
	k.del("virt-launcher-target", "node-1")
	k.want("after the deletion", "")

	alone := k.object("virtualmachineinstances", "VirtualMachineInstance", "alone")
	k.pod("virt-launcher-alone", "node-1", nil, alone)
	k.add("virt-launcher-alone", "node-1")
	k.del("virt-launcher-alone", "node-1")
	k.want("an instance without machine", "net.vmi.shop.alone of virt-launcher-alone on node-1")
	k.remove("virtualmachineinstances", "alone")
	k.del("virt-launcher-alone", "node-1")
	k.want("after its deletion", "")

	// There and back, with an ADD that is taken back: the memory of manxd has not seen what the other node wrote.
	instance = k.object("virtualmachineinstances", "VirtualMachineInstance", "mover")
	for i, node := range []string{"node-2", "node-1", "node-2"} {
		pod := fmt.Sprint("virt-launcher-mover-", i)
		k.pod(pod, node, nil, instance)
		r := k.call(cni.StepAdd, pod, node, nil)
		if r.Error != nil {
			t.Fatal(r.Error)
		}
		if aborted := k.call(cni.StepAbort, pod, node, r.Attachment); aborted.Error != nil {
			t.Error("abort: ", aborted.Error)
		}
		if again := k.add(pod, node); again != r.Attachment.Addresses[0] || i > 0 && again != first {
			t.Errorf("%s has %s, its ADD that was aborted had %s, and the pod before %s", pod, again,
				r.Attachment.Addresses[0], first)
		} else {
			first = again
		}
		k.del(pod, node)
	}
	k.want("there and back", "net.vmi.shop.mover of virt-launcher-mover-2 on node-2")

	persistence := "Disabled"
	_, err := k.store.Create(t.Context(), model.NewObject(model.IPAMConfigKey,
		&model.IPAMConfig{AutoAllocateBlocks: true, KubeVirtVMAddressPersistence: &persistence}))
	k.must(err)
	instance = k.object("virtualmachineinstances", "VirtualMachineInstance", "other")
	k.pod("virt-launcher-other", "node-1", nil, instance)
	k.add("virt-launcher-other", "node-1")
	k.want("Disabled", "net.virt-launcher-other of virt-launcher-other on node-1, "+
		"net.vmi.shop.mover of virt-launcher-mover-2 on node-2")
}
