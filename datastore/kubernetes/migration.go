package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// migrationPaths are those of the one object that asks for a copy of all objects from form.V1 to form.V3, which Calico
// 3.32 has in the second version alone. While the copy is made both groups are locked. Then form.V3 is unlocked and
// form.V1 stays locked.
var migrationPaths = []string{"/apis/migration.projectcalico.org/v1/datastoremigrations/v1-to-v3",
	"/apis/migration.projectcalico.org/v1beta1/datastoremigrations/v1-to-v3"}

// migration is the state of a DatastoreMigration.
type migration struct {
	Phase   string // empty: there is none
	Message string
}

// Phases of a migration.
const (
	phasePending   = "Pending"
	phaseMigrating = "Migrating"
	phaseConflicts = "WaitingForConflictResolution"
	phaseConverged = "Converged"
	phaseComplete  = "Complete"
	phaseFailed    = "Failed"
)

// copied reports whether the copy is complete and in use: there is no way back to form.V1, which is outdated.
func (m migration) copied() bool { return m.Phase == phaseConverged || m.Phase == phaseComplete }

// notice returns what a migration means for a program that uses a group; pinned is set if a setting names the group.
func (m migration) notice(used form.Group, pinned bool) string {
	if m.Phase == "" || used == form.V3 && m.Phase == phaseComplete {
		return ""
	}
	text := fmt.Sprintf("the DatastoreMigration v1-to-v3, from %s to %s, is %s", form.V1, form.V3, m.Phase)
	if m.Message != "" {
		text += fmt.Sprintf(" (%q)", m.Message)
	}
	text += ". "
	then := fmt.Sprintf("This node uses %s, and changes to %s when the phase is %s: manxd starts again then, by itself",
		form.V1, form.V3, phaseConverged)
	if pinned {
		then = fmt.Sprintf("CALICO_API_GROUP makes this node use %s: set it to %s, or remove it, when the phase is %s",
			form.V1, form.V3, phaseConverged)
	}
	switch {
	case used == form.V3 && m.Phase == phaseConverged:
		return text + fmt.Sprintf("This node uses %s already", form.V3)
	case used == form.V3:
		return text + fmt.Sprintf("This node uses %s, to which objects are copied: nothing is written until the "+
			"phase is %s", form.V3, phaseConverged)
	case m.copied() && pinned:
		return text + fmt.Sprintf("CALICO_API_GROUP makes this node use %s, which is outdated and stays locked: no "+
			"pod is attached. Set it to %s, or remove it, and restart manxd", form.V1, form.V3)
	case m.copied():
		return text + fmt.Sprintf("manxd starts again now, to use %s", form.V3)
	case m.Phase == phasePending:
		return text + then
	case m.Phase == phaseFailed:
		return text + fmt.Sprintf("This node goes on with %s. \"kubectl delete datastoremigration v1-to-v3\" takes "+
			"the migration back and ends its lock of the datastore", form.V1)
	case m.Phase == phaseConflicts:
		return text + "\"kubectl describe datastoremigration v1-to-v3\" names the objects that differ in the two " +
			"groups: delete or change one of each. " + then
	}
	return text + "The datastore is locked until the end of it. " + then
}

// readMigration reads the migration. It is empty if there is none, or if this user may not read it: then only a setting
// makes a program change its group.
func (s *Store) readMigration(ctx context.Context) (migration, error) {
	limited, cancel := bounded(ctx)
	defer cancel()
	var raw []byte
	err := error(nil)
	for _, path := range migrationPaths {
		raw, err = s.client.do(limited, request{verb: http.MethodGet, accept: asJSON, once: true, path: path})
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	var o struct {
		Status migration `json:"status"`
	}
	switch {
	case apierrors.IsNotFound(err):
		return migration{}, nil
	case apierrors.IsForbidden(err):
		s.log.Debug("the DatastoreMigration is not known", zap.Error(err))
		return migration{}, nil
	case err != nil:
		return migration{}, err
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return migration{}, err
	}
	if o.Status.Phase == "" {
		o.Status.Phase = phasePending
	}
	return o.Status, nil
}

// Held returns why the datastore must stay locked: a migration has locked it. It is empty if a person may unlock it.
func (s *Store) Held(ctx context.Context) (why string, err error) {
	m, err := s.readMigration(ctx)
	switch used := s.group(); {
	case err != nil:
		return "", err
	case m.Phase == phaseMigrating, m.Phase == phaseConflicts:
		return fmt.Sprintf("the DatastoreMigration v1-to-v3 is %s, and ends the lock itself: what is written now "+
			"would be lost", m.Phase), nil
	case m.copied() && used == form.V1:
		return fmt.Sprintf("the DatastoreMigration v1-to-v3 is %s, and %s is outdated: set CALICO_API_GROUP to %s, "+
			"or remove it", m.Phase, used, form.V3), nil
	}
	return "", nil
}

// followMigration keeps the notice about a migration current until ctx ends. When the objects have been copied to the
// other group than the one in use, it calls Config.Moved once.
func (s *Store) followMigration(ctx context.Context) {
	reported := form.Group("")
	for interval, moved := unreadInterval, false; ; {
		if m, err := s.readMigration(ctx); err != nil {
			s.log.Debug("the DatastoreMigration is not known", zap.Error(err))
		} else {
			interval = s.noteMigration(m)
			if used := s.group(); used == form.V1 && m.copied() && s.config.Group == "" && !moved {
				moved = true
				s.config.Moved(fmt.Sprintf("the DatastoreMigration v1-to-v3 is %s: the objects of %s are now in %s",
					m.Phase, used, form.V3))
			}
			if used := s.group(); m.copied() && used != reported && s.reportGroup(ctx, used) {
				reported = used
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval + rand.N(interval)):
		case <-s.locked:
		}
	}
}

// noteLock makes followMigration look at once if an object shows that the datastore is locked: a migration, which is
// looked for rarely, may be the reason.
func (s *Store) noteLock(o *model.Object) {
	if !model.Locks(o) {
		return
	}
	select {
	case s.locked <- struct{}{}:
	default:
	}
}

// reportGroup writes the group in use to this host's Node: who completes the migration waits for all nodes.
func (s *Store) reportGroup(ctx context.Context, used form.Group) bool {
	if s.config.Node == "" {
		return true
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		form.AnnotationGroup: used}}})
	if err == nil {
		_, err = s.patchStatus(ctx, model.ResourceKey(model.KindNode, s.config.Node), patch)
	}
	if err != nil {
		s.log.Warn("the migration waits for this node, whose Node cannot be written", zap.Error(err))
	}
	return err == nil
}

// noteMigration records the migration, and returns the interval until the next read.
func (s *Store) noteMigration(m migration) time.Duration {
	text := m.notice(s.group(), s.config.Group != "")
	s.mu.Lock()
	was := s.migration
	s.migration = text
	s.mu.Unlock()
	if text != "" && text != was {
		s.log.Warn(text)
	}
	if m.Phase == "" || m.Phase == phaseComplete {
		return unreadInterval
	}
	return cmp.Or(s.config.MigrationInterval, 30*time.Second)
}
