// Package kubewatch follows a few objects of the Kubernetes API by a selector.
package kubewatch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/manxnet/manx/dataplane/reconcile"
)

// Selection are the objects to follow; they should be few, since each change passes all of them.
type Selection[T metav1.Object] struct {
	// Options have the selectors.
	Options metav1.ListOptions
	List    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Show receives all objects, sorted by namespace and name, after each change. Failed receives the reason why they
	// are not known, or not followed any more, and nil after the next Show. Both are called from one goroutine.
	Show   func([]T)
	Failed func(error)
}

// backoff is the pause of Follow after a failure.
var backoff = reconcile.Backoff{Min: time.Second, Max: 30 * time.Second}

// watchFor is the minimum duration of one watch, and half of its maximum, so that the watches of nodes start at
// different times. A watch continues where the one before has ended.
const watchFor = 5 * time.Minute

// Follow follows a selection until ctx ends.
func Follow[T metav1.Object](ctx context.Context, s Selection[T]) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > backoff.Max {
			failures = 0
		}
		if !expired(err) {
			s.Failed(err)
		}
		failures++
		select {
		case <-ctx.Done():
		case <-time.After(jitter(backoff.After(failures))):
		}
	}
}

func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// jitter spreads the reconnections of nodes.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// follow lists, and then watches until an error.
func (s Selection[T]) follow(ctx context.Context) error {
	list, err := s.List(ctx, s.Options)
	if err != nil {
		return err
	}
	objects, version, err := read[T](list)
	if err != nil {
		return err
	}
	s.show(objects)
	s.Failed(nil)
	for {
		if version, err = s.watchFrom(ctx, version, objects); err != nil {
			return err
		}
	}
}

// read splits a list.
func read[T metav1.Object](list runtime.Object) (map[string]T, string, error) {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, "", err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, "", err
	}
	objects := map[string]T{}
	for _, item := range items {
		o, ok := item.(T)
		if !ok {
			return nil, "", fmt.Errorf("the list has a %T", item)
		}
		objects[key(o)] = o
	}
	return objects, accessor.GetResourceVersion(), nil
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

func (s Selection[T]) show(objects map[string]T) {
	s.Show(slices.SortedFunc(maps.Values(objects), func(a, b T) int { return strings.Compare(key(a), key(b)) }))
}

// watchFrom follows changes after a version. It returns the version that it reached, and an error if no watch can
// continue from there.
func (s Selection[T]) watchFrom(ctx context.Context, version string, objects map[string]T) (string, error) {
	o := s.Options
	seconds := int64((watchFor + rand.N(watchFor)).Seconds())
	o.ResourceVersion, o.AllowWatchBookmarks, o.TimeoutSeconds = version, true, &seconds
	began := time.Now()
	w, err := s.Watch(ctx, o)
	if err != nil {
		return version, err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return version, apierrors.FromObject(e.Object)
		}
		o, ok := e.Object.(T)
		if !ok {
			return version, fmt.Errorf("the watch has a %T", e.Object)
		}
		version = o.GetResourceVersion()
		switch e.Type {
		case watch.Added, watch.Modified:
			objects[key(o)] = o
			s.show(objects)
		case watch.Deleted:
			delete(objects, key(o))
			s.show(objects)
		}
	}
	if time.Since(began) < time.Second { // a server that ends each watch at once
		return version, fmt.Errorf("the watch ended after %s", time.Since(began).Round(time.Millisecond))
	}
	return version, nil
}
