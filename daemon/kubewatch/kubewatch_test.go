package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

func secret(name, version string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", ResourceVersion: version}}
}

// The reader sees each change once, in order, failures with their reason, and their end once; a watch that begins again
// is none. Every request has the selector, and no list comes from a cache.
func TestFollow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls, lists := make(chan string, 100), 0
	watches := make(chan *watch.FakeWatcher, 100)
	selected := func(kind string, o metav1.ListOptions) {
		if o.FieldSelector != "metadata.name=a" {
			t.Errorf("%s with the selector %q", kind, o.FieldSelector)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx, Selection[*corev1.Secret]{
			Options: metav1.ListOptions{FieldSelector: "metadata.name=a"},
			List: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
				selected("list", o)
				if o.ResourceVersion != "" {
					t.Errorf("a list from the cache, with version %q", o.ResourceVersion)
				}
				if lists++; lists == 1 {
					return nil, errors.New("refused")
				}
				return &corev1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: "7"},
					Items: []corev1.Secret{*secret("b", "6"), *secret("a", "5")}}, nil
			},
			Watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				selected("watch", o)
				w := watch.NewFake()
				watches <- w
				return w, nil
			},
			Show: func(list []*corev1.Secret) {
				var names []string
				for _, s := range list {
					names = append(names, s.Name+s.ResourceVersion)
				}
				calls <- strings.Join(names, " ")
			},
			Failed: func(err error) { calls <- fmt.Sprint("failed: ", err) },
		})
	}()
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case have := <-calls:
				if have != w {
					t.Fatalf("have %q, want %q", have, w)
				}
			case <-time.After(time.Minute):
				t.Fatalf("no call, want %q", w)
			}
		}
	}
	expect("failed: refused", "a5 b6", "failed: <nil>")
	first := <-watches
	first.Add(secret("c", "8"))
	first.Modify(secret("a", "9"))
	first.Delete(secret("b", "10"))
	expect("a5 b6 c8", "a9 b6 c8", "a9 c8")
	first.Stop()
	second := <-watches
	second.Modify(secret("c", "11"))
	expect("a9 c11")
	cancel()
	<-done
	if len(calls) > 0 {
		t.Errorf("at the end: %q", <-calls)
	}
}
