package controllers

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/kubeapi"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// mustCreate creates or fails.
func mustCreate[T any](t *testing.T) func(T, error) T {
	return func(o T, err error) T {
		t.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		return o
	}
}

// A real Kubernetes API beside a real etcd: the changes that users make with kubectl reach etcd.
func TestKubernetesBesideEtcd(t *testing.T) {
	api := apiserver.Start(t)
	rest := api.Config(apiserver.Admin)
	client, err := typed.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "blue"}}}
	mustCreate[*corev1.Namespace](t)(client.CoreV1().Namespaces().Create(ctx, shop, metav1.CreateOptions{}))
	mustCreate[*corev1.ServiceAccount](t)(client.CoreV1().ServiceAccounts("shop").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: "robot", Labels: map[string]string{"trusted": "yes"}}}, metav1.CreateOptions{}))
	mustCreate[*networkingv1.NetworkPolicy](t)(client.NetworkingV1().NetworkPolicies("shop").Create(ctx,
		denyAll("deny-all").Value.(*networkingv1.NetworkPolicy), metav1.CreateOptions{}))
	for _, n := range []string{"k1", "k2"} {
		mustCreate[*corev1.Node](t)(client.CoreV1().Nodes().Create(ctx,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"zone": n}}},
			metav1.CreateOptions{}))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{"app": "web"}}}
	pod.Spec = corev1.PodSpec{NodeName: "k1", ServiceAccountName: "robot", TerminationGracePeriodSeconds: new(int64),
		Containers: []corev1.Container{{Name: "c", Image: "x"}}}
	pod = mustCreate[*corev1.Pod](t)(client.CoreV1().Pods("shop").Create(ctx, pod, metav1.CreateOptions{}))

	server := etcdtest.Start(t)
	store := server.Store(t)
	put := func(o *model.Object) {
		t.Helper()
		if _, err := store.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	for calico, k8s := range map[string]string{"n1": "k1", "n2": "k2"} { // Calico's names differ
		n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: calico}}
		n.Spec.OrchRefs = []model.OrchRef{{NodeName: k8s, Orchestrator: "k8s"}}
		put(model.NewObject(model.ResourceKey(model.KindNode, calico), n))
	}
	p := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}
	p.Spec.CIDR = "10.9.0.0/16"
	put(model.NewObject(model.ResourceKey(model.KindIPPool, "pool"), p))
	config := settings.Default()
	config.Spec.Controllers.Node.LeakGracePeriod = &metav1.Duration{Duration: 2 * time.Second}
	put(model.NewObject(configKey, config))
	allocator := ipam.New(store, nil, nil)
	assign := func(pod, node string) string {
		r, err := allocator.AutoAssign(ctx, ipam.Request{Host: node, Handle: "k8s-pod-network." + pod, Num4: 1,
			Use:   "Workload",
			Attrs: map[string]string{"node": node, "pod": pod, "namespace": "shop"}})
		if err != nil {
			t.Fatal(err)
		}
		return r.V4.Addresses[0].Addr().String()
	}
	address := assign("web-1", "n1")
	assign("gone", "n1")
	assign("gone-2", "n2")
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = "Running", address, []corev1.PodIP{{IP: address}}
	mustCreate[*corev1.Pod](t)(client.CoreV1().Pods("shop").UpdateStatus(ctx, pod, metav1.UpdateOptions{}))
	w := &model.WorkloadEndpoint{}
	w.Namespace = "shop"
	w.Spec.Node, w.Spec.Orchestrator, w.Spec.Pod, w.Spec.Endpoint, w.Spec.InterfaceName = "n1", "k8s", "web-1", "eth0",
		"cali123"
	w.Spec.IPNetworks = []string{address + "/32"}
	put(model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop"}, w))

	kube, err := kubeapi.New(rest)
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, server, "n1", nil, nil, func(c *Config) {
		c.Kube = kube
		c.Source = func(ctx context.Context) (datastore.Store, error) {
			return kubernetes.OpenREST(ctx, kubernetes.Config{InterfacePrefix: "cali"}, rest, zap.NewNop())
		}
	})
	get := func(key model.Key) *model.Object { o, _ := store.Get(context.Background(), key); return o }
	has := func(key model.Key) bool { return get(key) != nil }
	policy := model.Key{Kind: model.KindNetworkPolicy, Namespace: "shop", Name: "knp.default.deny-all"}
	calicotest.Eventually(t, "everything is carried", func() bool {
		return has(policy) && has(model.ResourceKey(model.KindProfile, "kns.shop")) &&
			has(model.ResourceKey(model.KindProfile, "ksa.shop.robot"))
	})
	endpoint := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "n1-k8s-web--1-eth0"}
	calicotest.Eventually(t, "the endpoint has the pod's labels", func() bool {
		w := get(endpoint).Workload()
		return w != nil && w.Labels["app"] == "web" && slices.Contains(w.Profiles, "ksa.shop.robot")
	})
	calicotest.Eventually(t, "the Node has Kubernetes' labels", func() bool {
		return get(model.ResourceKey(model.KindNode, "n1")).Value.(*model.Node).Labels["zone"] == "k1"
	})
	calicotest.Eventually(t, "unused addresses are released", func() bool {
		return !has(model.HandleKey("k8s-pod-network.gone")) && !has(model.HandleKey("k8s-pod-network.gone-2"))
	})
	if !has(model.HandleKey("k8s-pod-network.web-1")) {
		t.Error("an address in use was released")
	}

	// The administrator changes and deletes.
	if err := client.NetworkingV1().NetworkPolicies("shop").Delete(ctx, "deny-all",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Nodes().Delete(ctx, "k2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "what is gone is gone", func() bool {
		return !has(policy) && !has(model.ResourceKey(model.KindNode, "n2"))
	})
	calicotest.Eventually(t, "the blocks of the node are given up", func() bool {
		list, _, err := store.List(context.Background(), model.KindBlockAffinity, "host/n2")
		return err == nil && len(list) == 0
	})

	// calico-kube-controllers come, and go.
	one := int32(1)
	labels := map[string]string{"k8s-app": "calico-kube-controllers"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "calico-kube-controllers", Labels: labels}}
	d.Spec = appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}}
	mustCreate[*appsv1.Deployment](t)(client.AppsV1().Deployments("kube-system").Create(ctx, d, metav1.CreateOptions{}))
	calicotest.Eventually(t, "the controllers rest", func() bool { return c.State().Yielding != "" })
	if err := client.AppsV1().Deployments("kube-system").Delete(ctx, d.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "the controllers work again", func() bool { return len(c.State().Controllers) > 5 })
}

// The state has the error of an API that refuses requests, both the requests for other controllers' state and those for
// objects. The controllers write nothing meanwhile.
func TestAPIThatRefuses(t *testing.T) {
	api := apiserver.Start(t)
	api.AddUsers(t, "stranger")
	rest := api.Config("stranger")
	kube, err := kubeapi.New(rest)
	if err != nil {
		t.Fatal(err)
	}
	server := etcdtest.Start(t)
	change := func(always bool) func(*Config) {
		return func(c *Config) {
			c.Kube, c.Always = kube, always
			c.Source = func(ctx context.Context) (datastore.Store, error) {
				return kubernetes.OpenREST(ctx, kubernetes.Config{InterfacePrefix: "cali"}, rest, zap.NewNop())
			}
		}
	}
	c := start(t, server, "n1", nil, nil, change(false))
	calicotest.Eventually(t, "it rests, and says why", func() bool {
		return strings.Contains(c.State().Yielding, "forbidden") && len(c.State().Controllers) == 0
	})
	c.stop()
	c = start(t, server, "n1", nil, nil, change(true))
	calicotest.Eventually(t, "the refusal is named", func() bool { return c.State().Problem != "" })
	t.Log(c.State().Problem)
}
