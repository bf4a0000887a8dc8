package migration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Object is an object of the API.
type Object = unstructured.Unstructured

const (
	group    = "migration.projectcalico.org"
	resource = "datastoremigrations"
	name     = "v1-to-v3"
	// onlyType is the one type of a migration.
	onlyType = "APIServerToCRDs"
	// finalizer holds a deleted migration until it is taken back, or until the older group is deleted.
	finalizer = group + "/v1-crd-cleanup"
	// Annotations, with the UID of the migration: the object was created by it, the lock set by it.
	createdBy = group + "/migrated-by"
	lockedBy  = group + "/locked-by"
	// savedService, of a migration, has the APIService that it removed.
	savedService = group + "/saved-apiservice"
)

// Phases of a migration.
const (
	pending   = "Pending"
	migrating = "Migrating"
	waiting   = "WaitingForConflictResolution"
	converged = "Converged"
	complete  = "Complete"
	failed    = "Failed"
)

// phases has all of them, with their names in metrics.
var phases = map[string]string{pending: "pending", migrating: "migrating", waiting: "waiting_for_conflict_resolution",
	converged: "converged", complete: "complete", failed: "failed"}

// status is the state of a migration, as users see it.
type status struct {
	Phase             string             `json:"phase,omitempty"`
	Message           string             `json:"message,omitempty"`
	DatastoreLockedAt *metav1.Time       `json:"datastoreLockedAt,omitempty"`
	StartedAt         *metav1.Time       `json:"startedAt,omitempty"`
	CompletedAt       *metav1.Time       `json:"completedAt,omitempty"`
	Progress          progress           `json:"progress,omitzero"`
	Conditions        []metav1.Condition `json:"conditions,omitempty"`
}

// progress counts kinds and objects.
type progress struct {
	TotalTypes     int       `json:"totalTypes,omitempty"`
	CompletedTypes int       `json:"completedTypes,omitempty"`
	TypeProgress   string    `json:"typeProgress,omitempty"`
	CurrentType    string    `json:"currentType,omitempty"`
	Total          int       `json:"total,omitempty"`
	Migrated       int       `json:"migrated,omitempty"`
	Skipped        int       `json:"skipped,omitempty"`
	Conflicts      int       `json:"conflicts,omitempty"`
	TypeDetails    []details `json:"typeDetails,omitempty"`
}

// details count the objects of a kind.
type details struct {
	Kind      string `json:"kind"`
	Migrated  int    `json:"migrated,omitempty"`
	Skipped   int    `json:"skipped,omitempty"`
	Conflicts int    `json:"conflicts,omitempty"`
}

// longestMessage is the longest message that the definition of a migration permits.
const longestMessage = 1024

// migration is the DatastoreMigration as it was read or written last.
type migration struct {
	api    API
	path   string
	object *Object
	status status
}

// versions of a migration, the newest first. Calico 3.32 has the older one alone.
var versions = []string{"v1", "v1beta1"}

// read reads the migration; nil if there is none.
func read(ctx context.Context, api API) (*migration, error) {
	for _, version := range versions {
		m := &migration{api: api, path: "/apis/" + group + "/" + version + "/" + resource + "/" + name}
		o, err := api.Get(ctx, m.path)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return m, m.set(o)
	}
	return nil, nil
}

func (m *migration) set(o *Object) error {
	raw, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	var read struct{ Status status }
	if err := json.Unmarshal(raw, &read); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	m.object, m.status = o, read.Status
	return nil
}

// id is the migration's UID, in annotations of what it creates and locks.
func (m *migration) id() string { return string(m.object.GetUID()) }

func (m *migration) deleted() bool { return m.object.GetDeletionTimestamp() != nil }

func (m *migration) held() bool { return slices.Contains(m.object.GetFinalizers(), finalizer) }

// note writes the status after a change, unless that changes nothing. It fails if another writer was faster.
func (m *migration) note(ctx context.Context, change func(*status)) error {
	next := m.status
	next.Progress.TypeDetails = slices.Clone(next.Progress.TypeDetails)
	next.Conditions = slices.Clone(next.Conditions)
	change(&next)
	next.Message = shortened(next.Message, longestMessage)
	if reflect.DeepEqual(next, m.status) {
		return nil
	}
	raw, err := json.Marshal(next)
	if err != nil {
		return err
	}
	var content map[string]any
	if err := json.Unmarshal(raw, &content); err != nil {
		return err
	}
	o := m.object.DeepCopy()
	o.Object["status"] = content
	if o, err = m.api.Replace(ctx, m.path+"/status", o, false); err != nil {
		return fmt.Errorf("status of the migration: %w", err)
	}
	return m.set(o)
}

// say writes a message.
func (m *migration) say(ctx context.Context, format string, args ...any) error {
	return m.note(ctx, func(s *status) { s.Message = fmt.Sprintf(format, args...) })
}

// edit writes the metadata after a change.
func (m *migration) edit(ctx context.Context, change func(*Object)) error {
	o := m.object.DeepCopy()
	change(o)
	if reflect.DeepEqual(o, m.object) {
		return nil
	}
	o, err := m.api.Replace(ctx, m.path, o, false)
	if err != nil {
		return fmt.Errorf("metadata of the migration: %w", err)
	}
	return m.set(o)
}

// release removes the finalizer: the deletion ends.
func (m *migration) release(ctx context.Context) error {
	o := m.object.DeepCopy()
	o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == finalizer }))
	_, err := m.api.Replace(ctx, m.path, o, false)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// shortened cuts a text at a number of bytes.
func shortened(text string, most int) string {
	const rest = "..."
	if len(text) <= most {
		return text
	}
	cut := most - len(rest)
	for cut > 0 && text[cut]&0xc0 == 0x80 { // within a character
		cut--
	}
	return text[:cut] + rest
}

// annotate sets an annotation; empty removes it.
func annotate(o *Object, key, value string) {
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[key] = value
	if value == "" {
		delete(all, key)
	}
	if len(all) == 0 {
		all = nil
	}
	o.SetAnnotations(all)
}

// isRefusal reports whether the API refuses an object for its content, so that another try has the same result.
func isRefusal(err error) bool {
	if status := apierrors.APIStatus(nil); asStatus(err, &status) {
		code := status.Status().Code
		return code == http.StatusUnprocessableEntity || code == http.StatusBadRequest
	}
	return false
}
