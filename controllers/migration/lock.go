package migration

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/manxnet/manx/datastore/kubernetes/form"
)

const (
	olderInfo = "/apis/" + string(form.V1) + infoPath
	newerInfo = "/apis/" + string(form.V3) + infoPath
)

// open reports whether a ClusterInformation lets others write.
func open(info *Object) bool {
	ready, found, err := unstructured.NestedBool(info.Object, "spec", lockMember)
	return err != nil || !found || ready
}

// lockedByOthers reports whether the older group is locked, and not by this migration.
func (m *migration) lockedByOthers(ctx context.Context) (bool, error) {
	info, err := m.api.Get(ctx, olderInfo)
	if err != nil {
		return false, fmt.Errorf("ClusterInformation of %s: %w", form.V1, err)
	}
	return !open(info) && info.GetAnnotations()[lockedBy] != m.id() && m.status.DatastoreLockedAt == nil &&
		m.status.StartedAt == nil, nil
}

// lockOlder locks the older group, and records in the same write that this migration did it.
func (m *migration) lockOlder(ctx context.Context) error {
	info, err := m.api.Get(ctx, olderInfo)
	if err == nil && open(info) {
		err = m.setLock(ctx, olderInfo, info, false)
	}
	if err != nil {
		return fmt.Errorf("lock of %s: %w", form.V1, err)
	}
	return nil
}

// lockNewer locks the newer group. If it has no ClusterInformation it gets that of the older one.
func (m *migration) lockNewer(ctx context.Context) error {
	info, err := m.api.Get(ctx, newerInfo)
	switch {
	case apierrors.IsNotFound(err):
		err = m.createInfo(ctx)
	case err == nil && open(info):
		err = m.setLock(ctx, newerInfo, info, false)
	}
	if err != nil {
		return fmt.Errorf("lock of %s: %w", form.V3, err)
	}
	return nil
}

func (m *migration) createInfo(ctx context.Context) error {
	older, err := m.api.Get(ctx, olderInfo)
	if err != nil {
		return err
	}
	spec, _, err := unstructured.NestedMap(older.Object, "spec")
	if err != nil {
		return err
	}
	if spec == nil {
		spec = map[string]any{}
	}
	spec[lockMember] = false
	info := &Object{Object: map[string]any{"apiVersion": string(form.V3), "kind": "ClusterInformation",
		"metadata": map[string]any{"name": "default"}, "spec": spec}}
	annotate(info, createdBy, m.id())
	annotate(info, lockedBy, m.id())
	_, err = m.api.Create(ctx, "/apis/"+string(form.V3)+"/"+information, info, false)
	return err
}

// setLock writes the lock of a ClusterInformation that was read, and the migration's mark with it.
func (m *migration) setLock(ctx context.Context, path string, info *Object, ready bool) error {
	info = info.DeepCopy()
	if err := unstructured.SetNestedField(info.Object, ready, "spec", lockMember); err != nil {
		return err
	}
	mark := m.id()
	if ready {
		mark = ""
	}
	annotate(info, lockedBy, mark)
	_, err := m.api.Replace(ctx, path, info, false)
	return err
}

// unlockNewer ends the lock that this migration has set. A lock of somebody else stays.
func (m *migration) unlockNewer(ctx context.Context) error {
	info, err := m.api.Get(ctx, newerInfo)
	if err == nil && info.GetAnnotations()[lockedBy] == m.id() {
		err = m.setLock(ctx, newerInfo, info, true)
	}
	if err != nil {
		return fmt.Errorf("unlocking %s: %w", form.V3, err)
	}
	return nil
}

// takeBackLocks restores both groups' ClusterInformation as it was before the migration: first the newer one, which
// nobody uses.
func (m *migration) takeBackLocks(ctx context.Context) error {
	info, err := m.api.Get(ctx, newerInfo)
	switch {
	case apierrors.IsNotFound(err):
		err = nil
	case err != nil:
	case info.GetAnnotations()[createdBy] == m.id():
		err = gone(m.api.Delete(ctx, newerInfo, info))
	case info.GetAnnotations()[lockedBy] == m.id():
		err = m.setLock(ctx, newerInfo, info, true)
	}
	if err != nil {
		return fmt.Errorf("unlocking %s: %w", form.V3, err)
	}
	info, err = m.api.Get(ctx, olderInfo)
	if apierrors.IsNotFound(err) {
		return nil
	}
	ours := m.status.DatastoreLockedAt != nil || m.status.StartedAt != nil
	if err == nil && (ours && !open(info) || info.GetAnnotations()[lockedBy] == m.id()) {
		err = m.setLock(ctx, olderInfo, info, true)
	}
	if err != nil {
		return fmt.Errorf("unlocking %s: %w", form.V1, err)
	}
	return nil
}

// gone makes the absence of a deleted object a success.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// aggregated returns the APIService that hands the newer group to another server, such as Calico's API server, nil if
// the API serves it by definitions.
func (m *migration) aggregated(ctx context.Context) (*Object, error) {
	o, err := m.api.Get(ctx, servicePath+"/"+service)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("APIService %s: %w", service, err)
	}
	if o.GetLabels()[byCRDs] != "" {
		return nil, nil
	}
	return o, nil
}

// takeOver makes the API serve the newer group by definitions. It saves the APIService of another server before.
func (m *migration) takeOver(ctx context.Context) error {
	o, err := m.aggregated(ctx)
	if err != nil || o == nil {
		return err
	}
	if m.object.GetAnnotations()[savedService] == "" {
		saved := &Object{Object: map[string]any{"apiVersion": o.GetAPIVersion(), "kind": "APIService",
			"spec": o.Object["spec"], "metadata": map[string]any{"name": service}}}
		saved.SetLabels(o.GetLabels())
		saved.SetAnnotations(o.GetAnnotations())
		text, err := saved.MarshalJSON()
		if err != nil {
			return err
		}
		if err := m.edit(ctx, func(o *Object) { annotate(o, savedService, string(text)) }); err != nil {
			return err
		}
	}
	if err := gone(m.api.Delete(ctx, servicePath+"/"+service, o)); err != nil {
		return fmt.Errorf("APIService %s: %w", service, err)
	}
	return nil
}

// giveBack restores the APIService that takeOver removed.
func (m *migration) giveBack(ctx context.Context) error {
	text := m.object.GetAnnotations()[savedService]
	if text == "" {
		return nil
	}
	saved := new(Object)
	if err := saved.UnmarshalJSON([]byte(text)); err != nil {
		return fmt.Errorf("annotation %s: %w", savedService, err)
	}
	o, err := m.api.Get(ctx, servicePath+"/"+service)
	switch {
	case apierrors.IsNotFound(err):
		_, err = m.api.Create(ctx, servicePath, saved, false)
	case err == nil && o.GetLabels()[byCRDs] != "":
		// Deleted, the API's own one would come again.
		saved.SetResourceVersion(o.GetResourceVersion())
		_, err = m.api.Replace(ctx, servicePath+"/"+service, saved, false)
	}
	if err != nil {
		return fmt.Errorf("APIService %s: %w", service, err)
	}
	return nil
}

// moment is a time of a status, which has whole seconds.
func moment(c *Controller) *metav1.Time {
	t := metav1.NewTime(c.Now().Truncate(1e9))
	return &t
}

var errStillChanges = errors.New("objects of the older group still change, although it is locked")
