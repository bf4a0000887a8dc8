package besidecalico

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/manxnet/manx/controllers/caliconode"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A pod keeps a node from starting only with facts that a tenant cannot make. All others are named in one notice.
func TestDoubtfulPods(t *testing.T) {
	yes := true
	genuine := func() *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "calico-node-x",
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "calico-node", Controller: &yes}}}}
		p.Spec.HostNetwork, p.Status.Phase = true, corev1.PodRunning
		return p
	}
	f := caliconode.Finder{Node: "n1", Namespaces: []string{"kube-system"}}
	if why := f.Doubt(genuine()); why != "" {
		t.Errorf("a calico-node: %s", why)
	}
	var pods []*corev1.Pod
	for want, change := range map[string]func(*corev1.Pod){
		"its namespace is none of":         func(p *corev1.Pod) { p.Namespace = "evil" },
		"no DaemonSet has made it":         func(p *corev1.Pod) { p.OwnerReferences = nil },
		"no DaemonSet":                     func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		"No DaemonSet":                     func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" },
		"does not use the host's network":  func(p *corev1.Pod) { p.Spec.HostNetwork = false },
		"it does not run (phase Pending)":  func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending },
		"it does not run (phase Failed)":   func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"it does not run (phase Succeeded": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
	} {
		p := genuine()
		change(p)
		if why := f.Doubt(p); !strings.Contains(strings.ToLower(why), strings.ToLower(want)) {
			t.Errorf("%q, want %q", why, want)
		}
		pods = append(pods, p)
	}
	w := NewWatch(f, zap.NewNop())
	if w.show(pods); len(w.Checks()) > 0 || len(w.Notices()) != 1 ||
		!strings.Contains(w.Notices()[0].Text, "(and 5 more such pods)") {
		t.Errorf("notices %v", w.Notices())
	}
	if w.show(append(pods, genuine())); len(w.Notices()) != 2 {
		t.Errorf("with a calico-node: %v", w.Notices())
	}
	own := genuine()
	own.UID, w.finder.Own = "u1", "u1"
	if w.show([]*corev1.Pod{own}); len(w.Notices()) != 0 {
		t.Errorf("the own pod: %v", w.Notices())
	}
	if w.show(nil); len(w.Notices()) != 0 {
		t.Errorf("without pods: %v", fmt.Sprint(w.Notices()))
	}
}

// The server has the pods of this node in its cache. For a list as of now it may read all pods of the cluster.
func TestPodsComeFromTheCache(t *testing.T) {
	lists := make(chan url.Values, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Has("watch") {
			<-r.Context().Done()
		} else {
			lists <- q
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`))
		}
	}))
	defer server.Close()
	f := caliconode.NewFinder("n1", nil, &rest.Config{Host: server.URL})
	f.Sockets = nil
	if active, err := f.Find(t.Context()); err != nil || active != "" {
		t.Errorf("%q, %v", active, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- NewWatch(f, zap.NewNop()).Run(ctx) }()
	for range cap(lists) {
		if q := <-lists; q.Get("resourceVersion") != "0" || q.Get("fieldSelector") != "spec.nodeName=n1" {
			t.Errorf("the list is %v", q)
		}
	}
	cancel()
	<-done
}
