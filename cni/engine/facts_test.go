package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// cluster has one pod and its namespace in Kubernetes.
type cluster struct {
	pod       *model.Pod
	namespace model.Namespace
}

func (c *cluster) Pod(_ context.Context, namespace, name string) (*model.Pod, error) {
	if c.pod == nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, datastore.ErrNotFound)
	}
	return c.pod, nil
}

func (c *cluster) Namespace(context.Context, string) (*model.Namespace, error) {
	return &c.namespace, nil
}

func (c *cluster) KubeVirt(context.Context, string, string, string) (*metav1.PartialObjectMetadata, bool, error) {
	return nil, false, nil
}

// TestPolicyOfKubernetesWithEtcd: labels, profiles and annotations of a pod come from the Kubernetes API, and errors in
// them are returned before any change.
func TestPolicyOfKubernetesWithEtcd(t *testing.T) {
	n := newNode(t)
	other := &model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.66.0.0/24", BlockSize: 28, NodeSelector: "!all()"}}
	other.Name = "other"
	key := model.ResourceKey(model.KindIPPool, "other")
	n.create(key, other)
	for s := n.tables.Snapshot(); s.Get(key) == nil; {
		next, err := n.tables.Wait(t.Context(), s)
		n.must(err)
		s = next
	}
	k := &cluster{}
	n.engine = engine.New(engine.Config{Lasting: true, MTUFile: "/nonexistent",
		Open: func(context.Context, *cni.Config) (engine.Store, func(), error) {
			return n.cache.Begin(), func() {}, nil
		},
		Node:       func(*cni.Config) (string, error) { return "node-1", nil },
		Kubernetes: func(*cni.Config) (engine.Kubernetes, error) { return k, nil }})
	id := 0
	add := func(annotations, namespace map[string]string) (*cni.Attachment, *types.Error) {
		t.Helper()
		if annotations != nil {
			k.pod = &model.Pod{}
			k.pod.Name, k.pod.Namespace, k.pod.Annotations = "web", "shop", annotations
			k.pod.Labels, k.pod.Spec.ServiceAccountName = map[string]string{"app": "web"}, "robot"
		}
		k.namespace.Annotations = namespace
		id++
		text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net",
			"ipam":   map[string]any{"type": "calico-ipam"},
			"policy": map[string]any{"type": "k8s"}, "ipam_lock_file": filepath.Join(n.dir, "ipam.lock"),
			"policy_setup_timeout_seconds": 0})
		n.must(err)
		q := &cni.Request{Version: 1, Step: cni.StepAdd, ContainerID: fmt.Sprint("c", id), IfName: "eth0", Config: text,
			Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"}
		r, err := n.engine.Call(t.Context(), q)
		if n.must(err); r.Error != nil {
			return nil, r.Error
		}
		q.Step, q.Attachment = cni.StepFinish, r.Attachment
		finished, err := n.engine.Call(t.Context(), q)
		if n.must(err); finished.Error != nil {
			t.Fatal(finished.Error)
		}
		return r.Attachment, nil
	}
	const prefix = "cni.projectcalico.org/"
	for name, c := range map[string]struct {
		pod, namespace map[string]string
		in             string
		code           uint
		want           string
	}{
		"no annotation": {pod: map[string]string{}, in: "10.65.0.0/24"},
		"pool of the namespace": {pod: map[string]string{}, namespace: map[string]string{
			prefix + "ipv4pools": `["other"]`}, in: "10.66.0.0/24"},
		"pool of the pod": {pod: map[string]string{prefix + "ipv4pools": `["10.65.0.0/24"]`},
			namespace: map[string]string{prefix + "ipv4pools": `["other"]`}, in: "10.65.0.0/24"},
		"family":  {pod: map[string]string{prefix + "ipFamilies": `["IPv6"]`}, in: "fd65::/112"},
		"address": {pod: map[string]string{prefix + "ipAddrs": `["10.66.0.9"]`}, in: "10.66.0.9/32"},
		"no list": {pod: map[string]string{prefix + "ipv4pools": `other`}, code: 7,
			want: "must be a JSON list"},
		"two addresses": {pod: map[string]string{prefix + "ipAddrs": `["10.65.0.1","10.65.0.2"]`}, code: 7,
			want: "only one address of each family"},
		"not an address": {pod: map[string]string{prefix + "ipAddrs": `["banana"]`}, code: 7,
			want: "must be an IP address"},
		"without IPAM, not set": {pod: map[string]string{prefix + "ipAddrsNoIpam": `["10.9.9.9"]`}, code: 7,
			want: "feature_control.ip_addrs_no_ipam"},
		"floating, not set": {pod: map[string]string{prefix + "floatingIPs": `["10.9.9.9"]`}, code: 7,
			want: "feature_control.floating_ips"},
		"multicast MAC": {pod: map[string]string{prefix + "hwAddr": "01:00:00:00:00:01"}, code: 7,
			want: "hardware address"},
		"a pod that is unknown": {code: 11, want: "pod shop/web is not known"},
		"a pool that is unknown": {pod: map[string]string{prefix + "ipv4pools": `["nosuch"]`}, code: 999,
			want: "nosuch"},
	} {
		k.pod = nil
		a, err := add(c.pod, c.namespace)
		switch {
		case c.code != 0 && (err == nil || err.Code != c.code || !strings.Contains(err.Msg+err.Details, c.want)):
			t.Errorf("%s: %v, want code %d and %q", name, err, c.code, c.want)
		case c.code == 0 && (err != nil || !netip.MustParsePrefix(c.in).Contains(a.Addresses[0])):
			t.Errorf("%s: %+v, %v, want an address in %s", name, a, err, c.in)
		}
	}
	o, err := n.plain.Get(t.Context(), model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop",
		Name: "node--1-k8s-web-eth0"})
	n.must(err)
	e := o.Value.(*model.WorkloadEndpoint)
	if e.Labels["app"] != "web" || strings.Join(e.Spec.Profiles, ",") != "kns.shop,ksa.shop.robot" ||
		e.Spec.ServiceAccountName != "robot" || e.Spec.MAC == "" {
		t.Errorf("endpoint is %+v", e)
	}
}
