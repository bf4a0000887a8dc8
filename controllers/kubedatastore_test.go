package controllers

import (
	"context"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/kubeapi"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// With Kubernetes as the datastore: election by a Lease, garbage collection, host endpoints, services, and the status
// of the configuration.
func TestKubernetesAsDatastore(t *testing.T) {
	api := apiserver.Start(t)
	api.InstallCRDs(t, form.V1)
	rest, ctx := api.Config(apiserver.Admin), t.Context()
	client, err := typed.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	open := func() *kubernetes.Store {
		s, err := kubernetes.OpenREST(ctx, kubernetes.Config{InterfacePrefix: "cali"}, rest, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	store := open()
	for _, name := range []string{"k1", "k2"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		mustCreate[*corev1.Node](t)(client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}))
	}
	for name, cidr := range map[string]string{"pods": "10.9.0.0/16", "services": "10.46.0.0/24"} {
		p := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.CIDR = cidr
		if name == "services" {
			p.Spec.AllowedUses = []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseLoadBalancer}
		}
		if _, err := store.Create(ctx, model.NewObject(model.ResourceKey(model.KindIPPool, name), p)); err != nil {
			t.Fatal(err)
		}
	}
	config := settings.Default()
	config.Spec.Controllers.Node.LeakGracePeriod = &metav1.Duration{Duration: 2 * time.Second}
	config.Spec.Controllers.Node.HostEndpoint.AutoCreate = "Enabled"
	if _, err := store.Create(ctx, model.NewObject(configKey, config)); err != nil {
		t.Fatal(err)
	}
	for pod, node := range map[string]string{"gone": "k1", "gone-2": "k2", "web": "k1"} {
		_, err := ipam.New(store, nil, nil).AutoAssign(ctx, ipam.Request{Host: node, Handle: "k8s-pod-network." + pod,
			Num4: 1,
			Use:  "Workload", Attrs: map[string]string{"node": node, "pod": pod, "namespace": "default"}})
		if err != nil {
			t.Fatal(err)
		}
	}
	calicotest.Eventually(t, "a pod runs", func() bool {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		_, _ = client.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		pod.Spec = corev1.PodSpec{NodeName: "k1", Containers: []corev1.Container{{Name: "c", Image: "x"}}}
		_, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		return err == nil
	})
	if err := client.CoreV1().Nodes().Delete(ctx, "k2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "front"}}
	service.Spec.Type, service.Spec.Ports = corev1.ServiceTypeLoadBalancer, []corev1.ServicePort{{Port: 80}}
	mustCreate[*corev1.Service](t)(client.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{}))

	kube, err := kubeapi.New(rest)
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Node: "k1", Store: open(), Kube: kube, InKubernetes: true, Log: zap.NewNop(),
		CheckInterval: 100 * time.Millisecond})
	run, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(run) }()
	defer func() { cancel(); <-done }()

	gone := func(handle string) func() bool {
		return func() bool { _, err := store.Get(context.Background(), model.HandleKey(handle)); return err != nil }
	}
	calicotest.Eventually(t, "it leads", func() bool { return m.State().Leading })
	calicotest.Eventually(t, "gone-2 is released", gone("k8s-pod-network.gone-2"))
	calicotest.Eventually(t, "gone is released", gone("k8s-pod-network.gone"))
	if gone("k8s-pod-network.web")() {
		t.Error("the address of a pod that exists was released")
	}
	calicotest.Eventually(t, "the blocks of k2 are given up", func() bool {
		list, _, err := store.List(context.Background(), model.KindBlockAffinity, "host/k2")
		return err == nil && len(list) == 0
	})
	calicotest.Eventually(t, "the node has a host endpoint", func() bool {
		_, err := store.Get(context.Background(), model.ResourceKey(model.KindHostEndpoint, "k1-auto-hep"))
		return err == nil
	})
	calicotest.Eventually(t, "the service has an address", func() bool {
		s, err := client.CoreV1().Services("default").Get(context.Background(), "front", metav1.GetOptions{})
		return err == nil && len(s.Status.LoadBalancer.Ingress) == 1 &&
			strings.HasPrefix(s.Status.LoadBalancer.Ingress[0].IP, "10.46.0.")
	})
	calicotest.Eventually(t, "the status says what runs", func() bool {
		s := readConfig(t, store).Status
		return s.RunningConfig != nil && s.RunningConfig.Controllers.Node.SyncLabels == "Disabled" &&
			s.EnvironmentVars["DATASTORE_TYPE"] == "kubernetes"
	})
	pool, err := store.Get(ctx, model.ResourceKey(model.KindIPPool, "pods"))
	if v, ok := pool.Value.(*model.IPPool); err != nil || !ok || len(v.Finalizers) > 0 || v.Status != nil {
		t.Errorf("a pool of crd.projectcalico.org/v1 has finalizers or conditions: %s, %v", pool.Raw, err)
	}
	if got := strings.Join(m.State().Controllers,
		" "); got != "datastore-migration deletions ipam-audit loadbalancer node-hostendpoints node-ipam policy-names" {
		t.Error("these run:", got)
	}
}
