package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// writeRetries bounds the restarts of an unconditional deletion after concurrent changes.
const writeRetries = 10

// Create implements datastore.Store. The API sets the UID. A WorkloadEndpoint is created by writing the addresses of
// its pod; other objects derived from Kubernetes' own cannot be created.
//
// As with every write, after ErrUnavailable or the end of ctx the write may have taken place.
func (s *Store) Create(ctx context.Context, o *model.Object) (*model.Object, error) {
	fail := func(err error) (*model.Object, error) { return nil, s.keyError(ctx, "create", o.Key, err) }
	created := usable(o)
	if err := codec.PrepareCreate(created, time.Now()); err != nil {
		return fail(err)
	}
	if created.Key.Kind == model.KindWorkloadEndpoint {
		created, err := s.storeEndpoint(ctx, created)
		if err != nil {
			return fail(err)
		}
		return created, nil
	}
	r, err := s.writable(created.Key)
	if err != nil {
		return fail(err)
	}
	created.Revision = 0
	stored, err := s.post(ctx, r, created)
	if form.TwoSteps(o.Key.Kind) && errors.Is(err, datastore.ErrExists) {
		// It may be one whose deletion was begun but not completed.
		if _, gone := s.Get(ctx, o.Key); errors.Is(gone, datastore.ErrNotFound) {
			stored, err = s.post(ctx, r, created)
		}
	}
	if err != nil {
		return fail(err)
	}
	return stored, nil
}

// post stores a new custom resource.
func (s *Store) post(ctx context.Context, r resource, o *model.Object) (*model.Object, error) {
	body, err := form.Encode(s.group(), o)
	if err != nil {
		return nil, err
	}
	raw, err := s.send(ctx, r, request{verb: http.MethodPost, path: r.path(url.PathEscape(o.Key.Namespace), ""),
		accept: r.accept(), body: body, bodyType: asJSON})
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	return s.withStatus(ctx, r, o.Key, body, raw)
}

// withStatus completes a write: the first request does not store a status that is written separately.
func (s *Store) withStatus(
	ctx context.Context, r resource, key model.Key, sent, answer []byte,
) (*model.Object, error) {
	stored, err := s.answer(r, key, answer)
	if err != nil || !r.status {
		return stored, err
	}
	var want, have map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(sent, &want), json.Unmarshal(answer, &have)); err != nil {
		return nil, err
	}
	if sameJSON(want["status"], have["status"]) {
		return stored, nil
	}
	have["status"] = want["status"]
	if len(want["status"]) == 0 {
		have["status"] = json.RawMessage("{}")
	}
	body, err := json.Marshal(have)
	if err != nil {
		return nil, err
	}
	_, at, err := s.locate(key)
	if err != nil {
		return nil, err
	}
	raw, err := s.send(ctx, r, request{verb: http.MethodPut, path: at + "/status", accept: r.accept(), body: body,
		bodyType: asJSON})
	if err != nil {
		return nil, fmt.Errorf("the status, after the rest was stored: %w", s.explain(ctx, err))
	}
	return s.answer(r, key, raw)
}

// sameJSON compares values; an empty object equals an absent one.
func sameJSON(a, b []byte) bool {
	read := func(raw []byte) any {
		var v any
		if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
			return nil
		}
		if m, ok := v.(map[string]any); ok && len(m) == 0 {
			return nil
		}
		return v
	}
	return bytes.Equal(a, b) || reflect.DeepEqual(read(a), read(b))
}

// Update implements datastore.Store. It writes a Node to the annotations of Kubernetes' Node, and the addresses of a
// WorkloadEndpoint to those of its pod, whatever its revision.
func (s *Store) Update(ctx context.Context, o *model.Object) (*model.Object, error) {
	fail := func(err error) (*model.Object, error) { return nil, s.keyError(ctx, "update", o.Key, err) }
	updated := usable(o)
	if o.Revision <= 0 {
		return fail(&apiError{nil, "revision is missing: want that of the object that is to be replaced"})
	}
	if incomplete(updated) {
		stored, err := s.Get(ctx, o.Key)
		if err != nil {
			return nil, err
		}
		if stored.Revision != o.Revision && o.Key.Kind != model.KindWorkloadEndpoint {
			return fail(fmt.Errorf("%w (revision is %d, not %d)", datastore.ErrConflict, stored.Revision, o.Revision))
		}
		updated.Replaces(stored)
	}
	if err := codec.PrepareUpdate(updated); err != nil {
		return fail(err)
	}
	stored, err := s.put(ctx, updated)
	if err != nil {
		return fail(err)
	}
	return stored, nil
}

// put replaces the stored object.
func (s *Store) put(ctx context.Context, o *model.Object) (*model.Object, error) {
	switch o.Key.Kind {
	case model.KindWorkloadEndpoint:
		return s.storeEndpoint(ctx, o)
	case model.KindNode:
		patch, err := form.NodePatch(o)
		if err != nil {
			return nil, &apiError{nil, err.Error()}
		}
		return s.patchStatus(ctx, o.Key, patch)
	}
	r, err := s.writable(o.Key)
	if err != nil {
		return nil, err
	}
	_, at, err := s.locate(o.Key)
	if err != nil {
		return nil, err
	}
	body, err := form.Encode(s.group(), o)
	if err != nil {
		return nil, err
	}
	raw, err := s.send(ctx, r, request{verb: http.MethodPut, path: at, accept: r.accept(), body: body,
		bodyType: asJSON})
	if apierrors.IsConflict(err) { // the API also returns a conflict for a deleted object
		if _, gone := s.get(ctx, o.Key); gone != nil {
			err = gone
		}
	}
	if err != nil {
		return nil, err
	}
	return s.withStatus(ctx, r, o.Key, body, raw)
}

// writable returns the resource of a key whose objects can be created, replaced and deleted.
func (s *Store) writable(key model.Key) (resource, error) {
	r, err := s.resource(key.Kind)
	switch {
	case err != nil:
		return r, err
	case key.Kind == model.KindNode:
		return r, &apiError{nil, "a Node is created and deleted by Kubernetes alone: the kubelet registers it"}
	case r.protobuf || isForeign(key.Kind):
		return r, &apiError{nil, "belongs to Kubernetes: use kubectl"}
	}
	return r, nil
}

// storeEndpoint writes the addresses of a pod.
func (s *Store) storeEndpoint(ctx context.Context, o *model.Object) (*model.Object, error) {
	patch, err := form.EndpointPatch(o)
	if err != nil {
		return nil, &apiError{nil, err.Error()}
	}
	return s.patchStatus(ctx, o.Key, patch)
}

// patchStatus changes the annotations of one of Kubernetes' own objects.
func (s *Store) patchStatus(ctx context.Context, key model.Key, patch []byte) (*model.Object, error) {
	r, at, err := s.locate(key)
	if err != nil {
		return nil, err
	}
	raw, err := s.send(ctx, r, request{verb: http.MethodPatch, path: at + "/status", accept: r.accept(), body: patch,
		bodyType: asMergePatch})
	if err != nil {
		return nil, err
	}
	return s.answer(r, key, raw)
}

// Delete implements datastore.Store. For a WorkloadEndpoint it removes the addresses in its pod's annotations. It marks
// an IPAM object before the deletion, so that a reader does not claim it meanwhile.
func (s *Store) Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	o, err := s.delete(ctx, key, revision)
	if err != nil {
		return nil, s.keyError(ctx, "delete", key, err)
	}
	return o, nil
}

func (s *Store) delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error) {
	if key.Kind != model.KindWorkloadEndpoint {
		if _, err := s.writable(key); err != nil {
			return nil, err
		}
	}
	for attempt := 1; ; attempt++ {
		o, err := s.Get(ctx, key)
		if err != nil {
			return nil, errors.Unwrap(err)
		}
		if revision != 0 && o.Revision != revision {
			return nil, fmt.Errorf("%w (revision is %d, not %d)", datastore.ErrConflict, o.Revision, revision)
		}
		if key.Kind == model.KindWorkloadEndpoint {
			return o, s.release(ctx, o, revision)
		}
		if err = s.markAndRemove(ctx, o); err == nil {
			return o, nil
		}
		if revision != 0 || attempt == writeRetries || !errors.Is(s.explain(ctx, err), datastore.ErrConflict) {
			return nil, err
		}
	}
}

// release records that a pod's addresses are released.
func (s *Store) release(ctx context.Context, o *model.Object, revision int64) error {
	patch, err := form.ReleasePatch(o.Metadata().GetUID(), revision)
	if err != nil {
		return err
	}
	_, err = s.patchStatus(ctx, o.Key, patch)
	if errors.Is(err, datastore.ErrNotFound) && revision == 0 {
		return nil // the pod ended with it
	}
	return err
}

// markAndRemove deletes an object at the revision that was read.
func (s *Store) markAndRemove(ctx context.Context, o *model.Object) error {
	if !form.TwoSteps(o.Key.Kind) || o.Value == nil {
		return s.remove(ctx, o)
	}
	marked, err := s.put(ctx, form.Mark(o))
	if err != nil {
		return err
	}
	err = s.remove(ctx, marked)
	if err = s.explain(ctx, err); errors.Is(err, datastore.ErrNotFound) || errors.Is(err, datastore.ErrConflict) {
		return nil // another reader of the mark completed it
	}
	return err
}

// remove deletes one version of an object.
func (s *Store) remove(ctx context.Context, o *model.Object) error {
	r, at, err := s.locate(o.Key)
	if err != nil {
		return err
	}
	revision := strconv.FormatInt(o.Revision, 10)
	options := metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		Preconditions: &metav1.Preconditions{ResourceVersion: &revision}}
	if m := o.Metadata(); m != nil && m.GetUID() != "" {
		uid := types.UID(form.UID(s.group(), m.GetUID()))
		options.Preconditions.UID = &uid
	}
	body, err := json.Marshal(options)
	if err != nil {
		return err
	}
	_, err = s.send(ctx, r, request{verb: http.MethodDelete, path: at, accept: r.accept(), body: body,
		bodyType: asJSON})
	return err
}

// UpgradeNode implements datastore.Backend: it adds the labels for lists to a node's BlockAffinities of old releases.
func (s *Store) UpgradeNode(ctx context.Context, node string) error {
	const kind = model.KindBlockAffinity
	r, err := s.resource(kind)
	if err != nil {
		return nil // pod CIDRs are the blocks: see podBlocks
	}
	var old []*model.Object
	// The server's cache knows what an earlier release wrote. From etcd it would read the BlockAffinities of all nodes.
	query := url.Values{"labelSelector": {form.UnlabelledAffinities}, "resourceVersion": {"0"}}
	_, err = s.pages(ctx, r, listing{query: query},
		func(o *model.Object) error {
			if a, ok := o.Key.Affinity(); ok && o.Err == nil && a.Host == node && !form.Deleted(o) {
				old = append(old, o)
			}
			return nil
		})
	if noResource(err) {
		return nil
	}
	if err != nil {
		return s.explain(ctx, err)
	}
	for _, o := range old {
		// A faster process has written the labels.
		if _, err := s.Update(ctx, o); err != nil && !errors.Is(err, datastore.ErrConflict) &&
			!errors.Is(err, datastore.ErrNotFound) {
			return err
		}
	}
	return nil
}

// usable copies o, so that the caller's stays unchanged. It clears Err: the replaced object may have been invalid.
func usable(o *model.Object) *model.Object {
	c := o.Clone()
	c.Err = nil
	return c
}

// incomplete reports whether o was not made from a stored object: then it lacks the fields that must survive.
func incomplete(o *model.Object) bool {
	if o.Key.Kind == model.KindNode || o.Key.Kind == model.KindWorkloadEndpoint {
		return false // the patch changes only the named fields
	}
	m := o.Metadata()
	return len(o.Raw) == 0 || m != nil && m.GetUID() == ""
}
