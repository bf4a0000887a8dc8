package main

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

func TestControllersAreLeftOut(t *testing.T) {
	for _, mode := range []string{controllersOff, controllersAuto} { // auto: no Kubernetes API is known
		c, err := newControllers(deps.Deps{Log: zap.NewNop()}, controllersOptions{mode}, kubernetes.Config{})
		if c != nil || err != nil {
			t.Errorf("%s: %v, %v", mode, c, err)
		}
	}
}

func TestControllersSettings(t *testing.T) {
	o := controllersOptions{"sometimes"}
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), "sometimes") {
		t.Error(err)
	}
	t.Setenv("SYNC_NODE_LABELS", "perhaps")
	o.mode = controllersAuto
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), "SYNC_NODE_LABELS") {
		t.Error(err)
	}
	if o.mode = controllersOff; o.Check() != nil {
		t.Error("settings of disabled controllers are checked")
	}
}

// The part connects to the datastore and the API that its settings name.
func TestControllersPart(t *testing.T) {
	api, server := apiserver.Start(t), etcdtest.Start(t)
	rest := api.Config(apiserver.Admin)
	store, err := connect.Open(t.Context(), connect.Settings{Type: connect.Etcd, Etcd: server.Config(),
		Warn: func(string) {}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	d := deps.Deps{Node: deps.Node{Name: "n1", Datastore: connect.Etcd}, Kube: rest, Store: store, Log: zap.NewNop()}
	client, err := typed.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	one, labels := int32(1), map[string]string{"k8s-app": "calico-kube-controllers"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "calico-kube-controllers", Labels: labels}}
	deployment.Spec = appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}}
	calicotest.Eventually(t, "calico-kube-controllers are installed", func() bool {
		_, err := client.AppsV1().Deployments("kube-system").Create(context.Background(), deployment,
			metav1.CreateOptions{})
		return err == nil
	})
	c, err := newControllers(d, controllersOptions{controllersAuto}, kubernetes.Config{InterfacePrefix: "cali"})
	if err != nil {
		t.Fatal(err)
	}
	c.CheckInterval /= 100
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	calicotest.Eventually(t, "a notice names calico-kube-controllers", func() bool {
		n := c.Notices()
		return len(n) == 1 && strings.Contains(n[0].Text, "deployment kube-system/calico-kube-controllers")
	})
	if err := client.AppsV1().Deployments("kube-system").Delete(t.Context(), deployment.Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "the controllers run", func() bool {
		_, err := store.Get(context.Background(), model.ResourceKey(model.KindProfile, "kns.kube-system"))
		return err == nil && len(c.Notices()) == 0
	})
	calicotest.Eventually(t, "etcd is compacted, too", func() bool {
		return strings.Contains(strings.Join(c.State().Controllers, " "), "etcd-compaction")
	})
	startsAgain(t, api)
}
