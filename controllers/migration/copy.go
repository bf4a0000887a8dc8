package migration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// workers is the number of objects that are written at the same time.
const workers = 8

// item is an object of the older group, and its copy.
type item struct {
	kind model.Kind
	form.Moved
	want  *Object                 // in the newer group, without the following owners
	refs  []metav1.OwnerReference // owners that are Calico's objects, whose UIDs change
	there *Object                 // the copy; nil if there is none
}

func (i *item) key() string { return i.Namespace + "/" + i.Name }

func (i *item) path() string { return pathOf(form.V3, i.kind, i.Namespace, i.Name) }

// String names the object for users: KIND/NAMESPACE/NAME.
func (i *item) String() string {
	return strings.Join(slices.DeleteFunc([]string{string(i.kind), i.Namespace, i.Name},
		func(s string) bool { return s == "" }), "/")
}

// copier compares the objects of both groups, and copies them unless dry is set.
type copier struct {
	api API
	id  string // of the migration
	dry bool
	log *zap.Logger

	mu    sync.Mutex // guards the following fields
	found details
	// conflicts are objects that the newer group has with another content, refused those that it would not take.
	conflicts, refused []string
	changed            bool // something was written
	uids               map[types.UID]types.UID
	owned              []*item // copies with owners that are Calico's objects
}

// kind copies one kind. Afterwards c.found counts its objects.
func (c *copier) kind(ctx context.Context, k model.Kind) error {
	c.found = details{Kind: string(k)}
	items, err := c.older(ctx, k)
	if err != nil {
		return err
	}
	list, err := c.api.List(ctx, place(form.V3, k))
	if err != nil {
		return fmt.Errorf("%ss of %s: %w", k, form.V3, err)
	}
	existing := map[string]*Object{}
	for _, o := range list {
		existing[o.GetNamespace()+"/"+o.GetName()] = o
	}
	pool, ctx := errgroup.WithContext(ctx)
	pool.SetLimit(workers)
	for _, i := range items {
		i.there = existing[i.key()]
		delete(existing, i.key())
		pool.Go(func() error { return c.one(ctx, i) })
	}
	for _, o := range existing {
		if c.untouched(o) && !c.dry { // of an object that was deleted since
			pool.Go(func() error {
				c.wrote()
				return gone(c.api.Delete(ctx, pathOf(form.V3, k, o.GetNamespace(), o.GetName()), o))
			})
		}
	}
	if err := pool.Wait(); err != nil {
		return err
	}
	for _, i := range items {
		if i.there != nil && i.UID != "" {
			c.uids[i.UID] = i.there.GetUID()
		}
		if i.there != nil && len(i.refs) > 0 {
			c.owned = append(c.owned, i)
		}
	}
	return nil
}

// older returns the objects of a kind of the older group. It leaves out deleted ones. Of a policy that is stored under
// an old name, too, it returns the one with today's name.
func (c *copier) older(ctx context.Context, k model.Kind) ([]*item, error) {
	list, err := c.api.List(ctx, place(form.V1, k))
	if err != nil {
		return nil, fmt.Errorf("%ss of %s: %w", k, form.V1, err)
	}
	all := map[string]*item{}
	for _, o := range list {
		i, err := c.move(k, o)
		if err != nil {
			c.refused = append(c.refused, fmt.Sprintf("%s/%s cannot be read: %v", k, o.GetName(), err))
			continue
		}
		if i.Resource == nil {
			continue
		}
		other := all[i.key()]
		if other != nil && !reflect.DeepEqual(other.want.Object["spec"], i.want.Object["spec"]) {
			c.conflict(i, fmt.Sprintf("the older group has two of that name with different specs, stored as %q and %q",
				other.Stored, i.Stored))
		}
		if other == nil || i.Stored == i.Name {
			all[i.key()] = i
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *item) int { return strings.Compare(a.key(), b.key()) }), nil
}

func (c *copier) move(k model.Kind, o *Object) (*item, error) {
	raw, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	i := &item{kind: k}
	if i.Moved, err = form.Move(k, raw); err != nil || i.Resource == nil {
		return i, err
	}
	i.want = new(Object)
	if err := i.want.UnmarshalJSON(i.Resource); err != nil {
		return nil, err
	}
	var others []metav1.OwnerReference
	for _, r := range i.want.GetOwnerReferences() {
		if g, _, _ := strings.Cut(r.APIVersion, "/"); g == newerGroup || g == olderGroup {
			i.refs = append(i.refs, r)
			continue
		}
		others = append(others, r)
	}
	i.want.SetOwnerReferences(others)
	annotate(i.want, createdBy, c.id)
	return i, nil
}

// one copies one object.
func (c *copier) one(ctx context.Context, i *item) error {
	if i.there == nil {
		return c.create(ctx, i) // if somebody was faster, the next step finds the object
	}
	same, err := c.same(ctx, i)
	switch {
	case err != nil && isRefusal(err):
		c.refuse(i, err)
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", i, err)
	case same:
		c.count(&c.found.Skipped)
	case c.untouched(i.there) && !c.dry:
		return c.renew(ctx, i)
	case c.untouched(i.there):
	default:
		c.conflict(i, fmt.Sprintf("%s has it with another spec", form.V3))
	}
	return nil
}

func (c *copier) create(ctx context.Context, i *item) error {
	if c.dry && isIPAM(i.kind) {
		return nil // there are many, and the definitions have no rules for them
	}
	o, err := c.api.Create(ctx, pathOf(form.V3, i.kind, i.Namespace, ""), i.want, c.dry)
	switch {
	case err != nil && isRefusal(err):
		c.refuse(i, err)
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", i, err)
	case c.dry:
		return nil
	}
	i.there = o
	c.wrote()
	c.count(&c.found.Migrated)
	return nil
}

// isIPAM reports whether objects of a kind are written by programs alone.
func isIPAM(k model.Kind) bool {
	info, _ := model.Lookup(k)
	return !info.Resource
}

// same reports whether the copy has the spec of the older object. The API sets defaults, so a different text may be the
// same spec: then the older one in its place would change nothing.
func (c *copier) same(ctx context.Context, i *item) (bool, error) {
	if reflect.DeepEqual(i.there.Object["spec"], i.want.Object["spec"]) {
		return true, nil
	}
	o, err := c.api.Replace(ctx, i.path(), i.replacement(), true)
	if err != nil {
		return false, err
	}
	return reflect.DeepEqual(o.Object["spec"], i.there.Object["spec"]), nil
}

// replacement is the copy with the spec of the older object.
func (i *item) replacement() *Object {
	o := i.there.DeepCopy()
	delete(o.Object, "spec")
	if spec, ok := i.want.Object["spec"]; ok {
		o.Object["spec"] = spec
	}
	return o
}

// untouched reports whether this migration has created an object that nobody has changed since. So the older object is
// the true one: a writer that missed the lock has changed it.
func (c *copier) untouched(o *Object) bool {
	return o.GetAnnotations()[createdBy] == c.id && o.GetGeneration() <= 1
}

// renew replaces a copy whose older object has changed since: by a new one, which nobody has changed.
func (c *copier) renew(ctx context.Context, i *item) error {
	c.log.Warn("an object of the locked datastore has changed, it is copied again", zap.Stringer("object", i))
	c.wrote()
	if err := gone(c.api.Delete(ctx, i.path(), i.there)); err != nil {
		return fmt.Errorf("%s: %w", i, err)
	}
	i.there = nil
	return c.create(ctx, i)
}

func (c *copier) wrote() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = true
}

func (c *copier) count(n *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n++
}

func (c *copier) conflict(i *item, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found.Conflicts++
	c.conflicts = append(c.conflicts, fmt.Sprintf("%s: %s", i, text))
}

func (c *copier) refuse(i *item, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = append(c.refused, fmt.Sprintf("%s: %v", i, err))
}

// setOwners gives the copies their owners, when these have been copied: with UIDs of objects that do not exist yet,
// Kubernetes would collect them. An owner that the older group does not have is left out for the same reason.
func (c *copier) setOwners(ctx context.Context) error {
	for _, i := range c.owned {
		if i.there.GetAnnotations()[createdBy] != c.id {
			continue
		}
		refs := i.want.GetOwnerReferences()
		for _, r := range i.refs {
			if uid, ok := c.uids[r.UID]; ok {
				r.UID = uid
				refs = append(refs, r)
			} else {
				c.log.Warn("an owner does not exist, and is left out", zap.Stringer("object", i),
					zap.String("owner", r.Kind+"/"+r.Name))
			}
		}
		if reflect.DeepEqual(refs, i.there.GetOwnerReferences()) {
			continue
		}
		o := i.there.DeepCopy()
		o.SetOwnerReferences(refs)
		c.wrote()
		if _, err := c.api.Replace(ctx, i.path(), o, false); err != nil {
			return fmt.Errorf("owners of %s: %w", i, err)
		}
	}
	return nil
}

// errRefused is the error of a copy that the newer group refuses.
func (c *copier) errRefused() error {
	if len(c.refused) == 0 {
		return nil
	}
	slices.Sort(c.refused)
	return errors.New("these objects of the older group have to be put right first: " + some(c.refused))
}

func newCopier(c *Controller, m *migration, dry bool) *copier {
	return &copier{api: c.API, id: m.id(), dry: dry, log: c.Log, uids: map[types.UID]types.UID{}}
}
