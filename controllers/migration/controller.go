// Package migration copies Calico's objects from custom resources of crd.projectcalico.org/v1 to those of
// projectcalico.org/v3, where a user asks for it by a DatastoreMigration.
package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/retry"
)

// Name is the name of the controller.
const Name = "datastore-migration"

// Controller runs the migration of a cluster. Each step reads its state from the API, so that another process can go on
// after any write.
type Controller struct {
	API API
	// Others names other running controllers with the same task, to which the migration is left; empty for none.
	Others func(context.Context) (string, error)
	// Behind names the agents that do not use the newer group yet; empty for none.
	Behind func(context.Context) (string, error)
	// Report receives what an operator should know although the DatastoreMigration does not say it; empty for nothing.
	Report func(text string)
	Log    *zap.Logger
	Now    func() time.Time
	// Interval is the pause between looks at a migration that waits. Idle is that while there is none.
	Interval, Idle time.Duration
	// Drain is the time between the lock and the copy, in which writes that began before the lock end.
	Drain   time.Duration
	Metrics *Metrics

	logged string
}

// errWait is the result of a step that has to be taken again later.
var errWait = errors.New("wait")

// failure is an error that no other try changes.
type failure struct{ text string }

func (f failure) Error() string { return f.text }

// byValue says how the rights come.
const byValue = "The value datastoreMigration=true of the chart gives all rights"

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.Report("")
	for ctx.Err() == nil {
		pause := c.Interval
		if m, err := read(ctx, c.API); err != nil {
			c.report("the DatastoreMigration cannot be read: " + err.Error())
		} else if m == nil {
			c.report("")
			c.Metrics.phase("")
			pause = c.Idle
		} else {
			pause = c.after(ctx, m, c.step(ctx, m))
		}
		retry.Sleep(ctx, pause)
	}
	return ctx.Err()
}

// after records the result of a step, and returns the pause before the next one.
func (c *Controller) after(ctx context.Context, m *migration, err error) time.Duration {
	c.Metrics.phase(m.status.Phase)
	var fatal failure
	switch {
	case ctx.Err() != nil:
		return 0
	case err == nil:
		c.report("")
		return 0
	case errors.Is(err, errWait):
		return c.Interval
	case apierrors.IsConflict(err):
		return c.Interval / 20 // another writer was faster
	case errors.As(err, &fatal):
		err = m.fail(ctx, c, fatal.text)
	default:
		c.Metrics.failed()
		if said := m.say(ctx, "%v", err); said != nil && !apierrors.IsConflict(said) {
			err = fmt.Errorf("%w; and this cannot be written to its status: %w", err, said)
		}
	}
	if err != nil {
		c.report(fmt.Sprintf("the DatastoreMigration %s is %s: %v", name, m.status.Phase, err))
	}
	return c.Interval
}

func (c *Controller) report(text string) {
	if text != "" && text != c.logged {
		c.Log.Warn(text)
	}
	c.logged = text
	c.Report(text)
}

func (m *migration) fail(ctx context.Context, c *Controller, text string) error {
	return m.note(ctx, func(s *status) {
		s.Phase, s.Message = failed, text
		s.Conditions = append(s.Conditions, metav1.Condition{Type: "Failed", Status: metav1.ConditionTrue,
			Reason: "MigrationError", Message: text, LastTransitionTime: *moment(c)})
	})
}

// step takes the migration one phase further: nil if there is a next step now.
func (c *Controller) step(ctx context.Context, m *migration) error {
	switch others, err := c.Others(ctx); {
	case err != nil:
		return fmt.Errorf("it is not known whether calico-kube-controllers run: %w", err)
	case others != "":
		c.report(fmt.Sprintf("the DatastoreMigration %s is left to others: %s", name, others))
		return errWait
	}
	if m.deleted() {
		return c.takeAway(ctx, m)
	}
	switch m.status.Phase {
	case complete, failed:
		return errWait
	}
	if missing, err := lacking(ctx, c.API, []Right{{"update", group, resource + "/status", anyObject}}); err != nil {
		return err
	} else if missing != "" {
		c.report(fmt.Sprintf("the DatastoreMigration %s waits: the controllers of Manx may not %s. %s", name, missing,
			byValue))
		return errWait
	}
	switch m.status.Phase {
	case "", pending:
		return c.begin(ctx, m)
	case migrating:
		return c.copy(ctx, m)
	case waiting:
		return c.wait(ctx, m)
	case converged:
		return c.converge(ctx, m)
	}
	c.report(fmt.Sprintf("the DatastoreMigration %s has the phase %q, which this version does not know", name,
		m.status.Phase))
	return errWait
}

// begin checks that a migration can succeed, locks the older group and waits for writes under way.
func (c *Controller) begin(ctx context.Context, m *migration) error {
	if kind, _, _ := unstructured.NestedString(m.object.Object, "spec", "type"); kind != onlyType {
		return failure{fmt.Sprintf("spec.type is %q: want %s", kind, onlyType)}
	}
	definitions, err := c.API.List(ctx, crdPath)
	if err != nil && !apierrors.IsForbidden(err) { // which rights are missing is said below
		return fmt.Errorf("definitions: %w", err)
	}
	if err == nil && !slices.ContainsFunc(definitions, isOlder) {
		return failure{"there is nothing to copy: no definition of " + olderGroup + " exists"}
	}
	if m.status.Phase == "" {
		if err := m.note(ctx, func(s *status) { s.Phase = pending }); err != nil {
			return err
		}
	}
	if ok, err := c.ready(ctx, m, definitions); !ok {
		return err
	}
	if m.status.DatastoreLockedAt == nil {
		if ok, err := c.checkOpen(ctx, m); !ok {
			return err
		}
	}
	return c.lock(ctx, m)
}

// lock locks the older group, waits, and checks what cannot change any more.
func (c *Controller) lock(ctx context.Context, m *migration) error {
	if !m.held() {
		err := m.edit(ctx, func(o *Object) { o.SetFinalizers(append(o.GetFinalizers(), finalizer)) })
		if err != nil {
			return err
		}
	}
	if err := m.lockOlder(ctx); err != nil {
		return err
	}
	if m.status.DatastoreLockedAt == nil {
		err := m.note(ctx, func(s *status) {
			s.DatastoreLockedAt = moment(c)
			s.Message = fmt.Sprintf("%s is locked; writes under way have %s to end", form.V1, c.Drain)
		})
		if err != nil {
			return err
		}
	}
	if rest := c.Drain - c.Now().Sub(m.status.DatastoreLockedAt.Time); rest > 0 {
		retry.Sleep(ctx, min(rest, c.Drain)) // a clock of another host may be behind
		return nil
	}
	if err := m.takeOver(ctx); err != nil {
		return err
	}
	check, err := c.compare(ctx, m, true)
	if err != nil {
		return err
	}
	if err := check.errRefused(); err != nil {
		return err
	}
	if len(check.conflicts) > 0 {
		return c.conflicts(ctx, m, check.conflicts)
	}
	return m.note(ctx, func(s *status) {
		s.Phase, s.StartedAt, s.Message, s.Conditions = migrating, moment(c), "Copying objects", nil
	})
}

// ready reports whether the rights and the definitions are there. If not it writes that and returns errWait.
func (c *Controller) ready(ctx context.Context, m *migration, definitions []*Object) (bool, error) {
	missing, err := lacking(ctx, c.API, needed())
	switch {
	case err != nil:
		return false, err
	case missing != "":
		return false, c.later(ctx, m, fmt.Sprintf("The controllers of Manx may not: %s. %s", missing, byValue))
	}
	if m.lacks(definitions) != "" {
		return false, c.later(ctx, m, fmt.Sprintf("Install the definitions of %s: %s are missing", newerGroup,
			m.lacks(definitions)))
	}
	return true, nil
}

// later writes why the migration waits.
func (c *Controller) later(ctx context.Context, m *migration, why string) error {
	if err := m.say(ctx, "%s", why); err != nil {
		return err
	}
	return errWait
}

// lacks names the missing definitions of the newer group.
func (m *migration) lacks(definitions []*Object) string {
	var missing []string
	for _, plural := range append(plurals(form.V3), information) {
		name := plural + "." + newerGroup
		if !slices.ContainsFunc(definitions, func(o *Object) bool { return o.GetName() == name }) {
			missing = append(missing, plural)
		}
	}
	return some(missing)
}

func plurals(g form.Group) (list []string) {
	for _, k := range kinds {
		r, _ := form.CustomResource(g, k)
		list = append(list, r.Plural)
	}
	return list
}

func isOlder(definition *Object) bool { return strings.HasSuffix(definition.GetName(), olderSuffix) }

// checkOpen finds what would stop the migration while nothing is locked yet. Behind another server the newer group
// cannot be compared: then that follows the lock.
func (c *Controller) checkOpen(ctx context.Context, m *migration) (bool, error) {
	locked, err := m.lockedByOthers(ctx)
	if err != nil {
		return false, err
	}
	if locked {
		return false, c.later(ctx, m, fmt.Sprintf("%s is locked already (datastoreReady is false). End that first: "+
			"manxctl datastore unlock", form.V1))
	}
	if served, err := m.aggregated(ctx); served != nil || err != nil {
		return err == nil, err
	}
	check, err := c.compare(ctx, m, true)
	if err != nil {
		return false, err
	}
	if refused := check.errRefused(); refused != nil {
		return false, c.later(ctx, m, refused.Error())
	}
	if len(check.conflicts) > 0 {
		return false, c.conflicts(ctx, m, check.conflicts)
	}
	return true, nil
}

// compare compares all kinds, and copies them unless dry is set.
func (c *Controller) compare(ctx context.Context, m *migration, dry bool) (*copier, error) {
	work := newCopier(c, m, dry)
	for _, k := range kinds {
		if err := work.kind(ctx, k); err != nil {
			return nil, err
		}
	}
	return work, nil
}

// conflicts makes the migration wait for the user.
func (c *Controller) conflicts(ctx context.Context, m *migration, list []string) error {
	slices.Sort(list)
	state := "Nothing is locked yet"
	if m.status.DatastoreLockedAt != nil {
		state = "The datastore is locked"
	}
	return m.note(ctx, func(s *status) {
		s.Phase = waiting
		s.Message = fmt.Sprintf("%s. %d objects differ in the two groups: delete or change one of each", state,
			len(list))
		s.Conditions = conditions(c, s.Conditions, list)
	})
}

// mostConditions keeps the conditions below the 64 that the definition of a migration permits.
const mostConditions = 32

// conditions returns the conditions about conflicts. A condition that was there keeps its time.
func conditions(c *Controller, was []metav1.Condition, conflicts []string) (list []metav1.Condition) {
	reason := "ResourceMismatch"
	for n, text := range conflicts {
		if n == mostConditions {
			reason, text = "ConflictsOmitted", fmt.Sprintf("%d more", len(conflicts)-n)
		}
		next := metav1.Condition{Type: "Conflict", Status: metav1.ConditionTrue, Reason: reason, Message: text,
			LastTransitionTime: *moment(c)}
		if at := slices.IndexFunc(was, func(o metav1.Condition) bool { return o.Message == text }); at >= 0 {
			next.LastTransitionTime = was[at].LastTransitionTime
		}
		if list = append(list, next); n == mostConditions {
			break
		}
	}
	return list
}

// wait goes back to the checks when the user has resolved the conflicts.
func (c *Controller) wait(ctx context.Context, m *migration) error {
	if m.status.DatastoreLockedAt != nil {
		if err := m.lockOlder(ctx); err != nil {
			return err
		}
	}
	check, err := c.compare(ctx, m, true)
	if err != nil {
		return err
	}
	if len(check.conflicts) > 0 {
		if err := c.conflicts(ctx, m, check.conflicts); err != nil {
			return err
		}
		return errWait
	}
	return m.note(ctx, func(s *status) { s.Phase, s.Message, s.Conditions = pending, "", nil })
}

// mostPasses bounds the passes of a copy: the last one has to find nothing to do.
const mostPasses = 5

// copy copies all objects, until a pass finds both groups equal.
func (c *Controller) copy(ctx context.Context, m *migration) error {
	for _, step := range []func(context.Context) error{m.lockOlder, m.takeOver, m.lockNewer} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for pass := range mostPasses {
		work := newCopier(c, m, false)
		if err := c.pass(ctx, m, work, pass == 0); err != nil {
			return err
		}
		if err := work.errRefused(); err != nil {
			return err
		}
		if len(work.conflicts) > 0 {
			return c.conflicts(ctx, m, work.conflicts)
		}
		if !work.changed {
			return m.note(ctx, func(s *status) {
				s.Phase, s.Message, s.Conditions = converged, "All objects are copied", nil
			})
		}
	}
	return errStillChanges
}

// pass copies every kind once, and shows the progress of the first pass.
func (c *Controller) pass(ctx context.Context, m *migration, work *copier, shown bool) error {
	for n, k := range kinds {
		if shown {
			err := m.note(ctx, func(s *status) {
				if n == 0 {
					s.Progress = progress{TotalTypes: len(kinds)}
				}
				s.Progress.begin(n, string(k))
			})
			if err != nil {
				return err
			}
		}
		if err := work.kind(ctx, k); err != nil {
			return err
		}
		c.Metrics.copied(work.found, shown)
		if shown {
			m.status.Progress.add(work.found) // written with the next kind
		}
	}
	if err := work.setOwners(ctx); err != nil || !shown {
		return err
	}
	return m.note(ctx, func(s *status) { s.Progress.begin(len(kinds), "") })
}

func (p *progress) begin(n int, kind string) {
	p.CompletedTypes, p.CurrentType = n, kind
	p.TypeProgress = fmt.Sprintf("%d / %d", n, p.TotalTypes)
}

func (p *progress) add(d details) {
	p.Migrated, p.Skipped, p.Conflicts = p.Migrated+d.Migrated, p.Skipped+d.Skipped, p.Conflicts+d.Conflicts
	p.Total += d.Migrated + d.Skipped + d.Conflicts
	p.TypeDetails = append(p.TypeDetails, d)
}

// converge unlocks the newer group, and waits until every agent uses it.
func (c *Controller) converge(ctx context.Context, m *migration) error {
	if err := m.unlockNewer(ctx); err != nil {
		return err
	}
	behind, err := c.Behind(ctx)
	switch {
	case err != nil:
		return err
	case behind != "":
		return c.later(ctx, m, fmt.Sprintf("%s is in use. Waiting for %s", form.V3, behind))
	}
	return m.note(ctx, func(s *status) {
		s.Phase, s.CompletedAt = complete, moment(c)
		s.Message = fmt.Sprintf("All agents use %s. The deletion of this object deletes the definitions of %s", form.V3,
			olderGroup)
	})
}

// takeAway ends a deleted migration: it takes it back, or deletes the older group after a complete one.
func (c *Controller) takeAway(ctx context.Context, m *migration) error {
	if !m.held() {
		return errWait
	}
	switch m.status.Phase {
	case complete:
		return c.deleteOlder(ctx, m)
	case converged:
		err := c.converge(ctx, m)
		if errors.Is(err, errWait) {
			return c.later(ctx, m, fmt.Sprintf("The deletion waits, since there is no way back from %s. %s", converged,
				m.status.Message))
		}
		return err
	}
	if err := c.removeCopies(ctx, m); err != nil {
		return fmt.Errorf("taking the migration back: %w", err)
	}
	for _, step := range []func(context.Context) error{m.takeBackLocks, m.giveBack} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("taking the migration back: %w", err)
		}
	}
	if err := m.release(ctx); err != nil {
		return err
	}
	c.Log.Info("the migration is taken back: " + string(form.V1) + " is in use as before")
	return nil
}

// removeCopies deletes what this migration has created in the newer group. Before it has begun to copy there is
// nothing, and another server may have the group.
func (c *Controller) removeCopies(ctx context.Context, m *migration) error {
	if m.status.StartedAt == nil {
		return nil
	}
	for _, k := range slices.Backward(kinds) {
		list, err := c.API.List(ctx, place(form.V3, k))
		if apierrors.IsNotFound(err) {
			continue // its definition is gone
		}
		if err != nil {
			return fmt.Errorf("%ss of %s: %w", k, form.V3, err)
		}
		for _, o := range list {
			if o.GetAnnotations()[createdBy] != m.id() {
				continue
			}
			if err := gone(c.API.Delete(ctx, pathOf(form.V3, k, o.GetNamespace(), o.GetName()), o)); err != nil {
				return fmt.Errorf("%s %s of %s: %w", k, o.GetName(), form.V3, err)
			}
		}
	}
	return nil
}

// deleteOlder deletes the definitions of the older group, and with them its objects, unless an agent uses them.
func (c *Controller) deleteOlder(ctx context.Context, m *migration) error {
	behind, err := c.Behind(ctx)
	if err != nil {
		return err
	}
	if behind != "" {
		return c.later(ctx, m, fmt.Sprintf("The definitions of %s are not deleted yet: waiting for %s", olderGroup,
			behind))
	}
	list, err := c.API.List(ctx, crdPath)
	if err != nil {
		return fmt.Errorf("definitions: %w", err)
	}
	for _, o := range list {
		if !isOlder(o) || o.GetDeletionTimestamp() != nil {
			continue
		}
		if err := gone(c.API.Delete(ctx, crdPath+"/"+o.GetName(), o)); err != nil {
			return fmt.Errorf("definition %s: %w", o.GetName(), err)
		}
	}
	if err := m.release(ctx); err != nil {
		return err
	}
	c.Log.Info("the definitions of the older group are deleted", zap.String("group", olderGroup))
	return nil
}
