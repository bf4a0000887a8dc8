// Package kubewatch follows a few objects of the Kubernetes API by a selector, with client-go's reflector.
package kubewatch

import (
	"context"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Selection are the objects to follow; they should be few, since each change passes all of them.
type Selection[T metav1.Object] struct {
	// Options have the selectors, and "0" as the version of lists that may come from the cache of an API server, which
	// may lag: without it no old password replaces a newer one.
	Options metav1.ListOptions
	List    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Show receives all objects, sorted by namespace and name, after each change. Failed receives the reason why they
	// are not known, or not followed any more, and nil once they are followed again. The calls come one at a time.
	Show   func([]T)
	Failed func(error)
}

// Follow follows a selection until ctx ends. The reflector waits longer after each failure, a minute at most, and
// spreads the attempts of many nodes.
func Follow[T metav1.Object](ctx context.Context, s Selection[T]) {
	failing := false
	failed := func(err error) {
		if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || err == nil && !failing {
			return
		}
		failing = err != nil
		s.Failed(err)
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.ResourceVersion, o.ResourceVersionMatch = s.Options.ResourceVersion, ""
			list, err := s.List(ctx, s.selected(o))
			if err != nil {
				failed(err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := s.Watch(ctx, s.selected(o))
			failed(err)
			return w, err
		},
	}
	store := &shown[T]{cache.NewStore(cache.MetaNamespaceKeyFunc), s.Show}
	quiet := klog.NewContext(ctx, logr.Discard()) // Failed has the reasons
	cache.NewReflectorWithOptions(source, nil, store, cache.ReflectorOptions{}).RunWithContext(quiet)
}

// selected adds the selectors to the options of a request.
func (s Selection[T]) selected(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector, o.FieldSelector = s.Options.LabelSelector, s.Options.FieldSelector
	return o
}

// shown shows the objects of a store after each change.
type shown[T metav1.Object] struct {
	cache.Store
	show func([]T)
}

func (s *shown[T]) Add(o any) error    { return s.changed(s.Store.Add(o)) }
func (s *shown[T]) Update(o any) error { return s.changed(s.Store.Update(o)) }
func (s *shown[T]) Delete(o any) error { return s.changed(s.Store.Delete(o)) }

// Replace implements cache.ReflectorStore.
func (s *shown[T]) Replace(list []any, version string) error {
	return s.changed(s.Store.Replace(list, version))
}

func (s *shown[T]) changed(err error) error {
	if err != nil {
		return err
	}
	var all []T
	for _, o := range s.List() {
		if o, ok := o.(T); ok {
			all = append(all, o)
		}
	}
	key := func(o T) string { return o.GetNamespace() + "/" + o.GetName() }
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	s.show(all)
	return nil
}
