// Package deletions gives pools and tiers the finalizers of calico-kube-controllers, ends the deletion of those that
// have one, and keeps the conditions of both current.
package deletions

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Calico's finalizers. Calico 3.32 and later have them on custom resources of projectcalico.org/v3.
const (
	ofPool = "projectcalico.org/ippool-finalizer"
	ofTier = "projectcalico.org/tier-controller"
)

// Controller is the controller. Its units are pools and tiers.
type Controller struct {
	// Store is read again before a deletion ends: the watch of another kind may be behind.
	Store datastore.Store
	// Native reports whether an object is a custom resource of projectcalico.org/v3, which gets a finalizer and a
	// condition. The API server then waits for this controller before it removes the object. nil: none is.
	Native func(*model.Object) bool
	// NoIPAM is set if another program assigns pods' addresses: then there are no blocks.
	NoIPAM bool
	// Now is usually time.Now.
	Now func() time.Time
}

// Name implements loop.Controller.
func (*Controller) Name() string { return "deletions" }

// Kinds implements loop.Controller.
func (c *Controller) Kinds() (store, source []model.Kind) {
	return append(append(model.PolicyKinds(), model.KindTier), c.poolKinds()...), nil
}

// poolKinds are the kinds on which the deletion of a pool depends.
func (c *Controller) poolKinds() []model.Kind {
	if c.NoIPAM {
		return []model.Kind{model.KindIPPool}
	}
	return []model.Kind{model.KindIPPool, model.KindIPAMBlock}
}

// every has the unit of all pools and that of all tiers: a deleted block or policy does not tell its pool or tier.
var every = map[model.Kind]model.Key{model.KindIPPool: {Kind: model.KindIPPool}, model.KindTier: {Kind: model.KindTier}}

// Touched implements loop.Controller. Pools depend on each other and on blocks, tiers on policies.
func (*Controller) Touched(ch datastore.Change, _ bool) []model.Key {
	if ch.Key.Kind == model.KindIPPool || ch.Key.Kind == model.KindIPAMBlock {
		return []model.Key{every[model.KindIPPool]}
	}
	return []model.Key{every[model.KindTier]}
}

// All implements loop.Controller.
func (*Controller) All(loop.State) []model.Key {
	return []model.Key{every[model.KindIPPool], every[model.KindTier]}
}

// Decide implements loop.Controller.
func (c *Controller) Decide(s loop.State, unit model.Key) (list []change.Change) {
	for o := range s.Store.All(unit.Kind) {
		var next change.Change
		switch v := o.Value.(type) {
		case *model.IPPool:
			next = c.pool(s.Store, o, v)
		case *model.Tier:
			next = c.tier(s.Store, o, v)
		}
		if next.New != nil {
			list = append(list, next)
		}
	}
	return list
}

func (c *Controller) native(o *model.Object) bool { return c.Native != nil && c.Native(o) }

// tier ends the deletion of a tier, or sees to its finalizer and its condition.
func (c *Controller) tier(r model.Reader, o *model.Object, t *model.Tier) change.Change {
	has, native := slices.Contains(t.Finalizers, ofTier), c.native(o)
	used := func(r model.Reader) bool { return policiesIn(r, t.Name) > 0 }
	if t.DeletionTimestamp != nil && has && !used(r) {
		end := removed(o, ofTier, "the tier is deleted, and has no policies")
		end.Unless = c.still(used, model.PolicyKinds()...)
		return end
	}
	next := change.Change{}
	if t.DeletionTimestamp == nil && !has && native {
		next = added(o, ofTier, "a deletion of the tier waits until it has no policies")
	}
	return c.withCondition(o, next, tierVerdict(r, t), native)
}

// pool ends the deletion of a pool, or sees to its finalizer and its condition. A pool inside of an older one gets no
// finalizer: all addresses in its range are those of the older one, and its deletion mends the overlap.
func (c *Controller) pool(r model.Reader, o *model.Object, p *model.IPPool) change.Change {
	has, native := slices.Contains(p.Finalizers, ofPool), c.native(o)
	inner := func(r model.Reader) bool {
		cidr, err := netip.ParsePrefix(p.Spec.CIDR)
		return err == nil && native && inside(r, p, cidr)
	}
	used := func(r model.Reader) bool { return !inner(r) && assigned(r, p) }
	if p.DeletionTimestamp != nil && has && !used(r) {
		end := removed(o, ofPool, "the pool is deleted, and no address of it is assigned")
		end.Unless = c.still(used, c.poolKinds()...)
		return end
	}
	if !has && !native {
		return change.Change{} // as every pool in crd.projectcalico.org
	}
	next := change.Change{}
	switch {
	case !native || p.DeletionTimestamp != nil:
	case inner(r) && has:
		next = removed(o, ofPool, "the addresses in its range are those of an older pool")
		next.Unless = c.still(func(r model.Reader) bool { return !inner(r) }, model.KindIPPool)
	case !inner(r) && !has:
		next = added(o, ofPool, "a deletion of the pool waits until no address of it is assigned")
	}
	return c.withCondition(o, next, poolVerdict(r, p), native)
}

// still evaluates a condition with the objects that the datastore has now. It fails if a block or a policy cannot be
// read: that may be the one for which a deletion has to wait. Without a pool that cannot be read, a deletion waits for
// more.
func (c *Controller) still(holds func(model.Reader) bool, kinds ...model.Kind) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		now := model.Set{}
		for _, kind := range kinds {
			objects, _, err := c.Store.List(ctx, kind, "")
			if err != nil {
				return false, err
			}
			for _, o := range objects {
				if o.Err != nil && kind != model.KindIPPool {
					return false, fmt.Errorf("%s cannot be read: %w", o.Key, o.Err)
				}
				now[o.Key] = o
			}
		}
		return holds(now), nil
	}
}

// added adds a finalizer.
func added(o *model.Object, finalizer, reason string) change.Change {
	next := o.Clone()
	m := next.Metadata()
	m.SetFinalizers(append(slices.Clone(m.GetFinalizers()), finalizer))
	return change.Change{Old: o, New: next, Reason: reason}
}

// removed removes a finalizer.
func removed(o *model.Object, finalizer, reason string) change.Change {
	next := o.Clone()
	m := next.Metadata()
	m.SetFinalizers(slices.DeleteFunc(m.GetFinalizers(), func(f string) bool { return f == finalizer }))
	return change.Change{Old: o, New: next, Reason: reason}
}

// assigned reports whether an address of a pool is assigned. The addresses of blocks inside of an older pool are those
// of that pool.
func assigned(r model.Reader, p *model.IPPool) bool {
	pool, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil {
		return true
	}
	for o := range r.All(model.KindIPAMBlock) {
		b, ok := o.Value.(*model.Block)
		if ok && pool.Overlaps(b.CIDR) && slices.ContainsFunc(b.Allocations, func(a *int) bool { return a != nil }) &&
			!inside(r, p, b.CIDR) {
			return true
		}
	}
	return false
}

// policiesIn returns how many policies a tier has.
func policiesIn(r model.Reader, tier string) (n int) {
	for _, kind := range model.PolicyKinds() {
		for o := range r.All(kind) {
			if model.PolicyTier(o.Value) == tier {
				n++
			}
		}
	}
	return n
}

// withCondition adds the condition want to the change next of an object, which may be none, if it is news. Another
// program may have written the same status with other words. Only a custom resource of projectcalico.org/v3 gets a
// condition that it does not have.
func (c *Controller) withCondition(
	o *model.Object, next change.Change, want metav1.Condition, native bool,
) change.Change {
	have := conditionsOf(o.Value)
	old := meta.FindStatusCondition(have, want.Type)
	switch {
	case old == nil && !native:
		return next
	case old == nil || old.Status != want.Status:
	case want.Status == metav1.ConditionTrue || old.Reason == want.Reason && old.Message == want.Message:
		return next
	}
	want.LastTransitionTime = metav1.NewTime(c.Now().Truncate(time.Second))
	conditions := slices.Clone(have)
	meta.SetStatusCondition(&conditions, want)
	if next.New == nil {
		next = change.Change{Old: o, New: o.Clone(), Reason: want.Message}
	}
	switch v := next.New.Value.(type) {
	case *model.IPPool:
		v.Status = &model.IPPoolStatus{Conditions: conditions}
	case *model.Tier:
		v.Status = &model.TierStatus{Conditions: conditions}
	}
	return next
}

// conditionsOf returns the conditions of a pool or a tier.
func conditionsOf(value any) []metav1.Condition {
	switch v := value.(type) {
	case *model.IPPool:
		if v.Status != nil {
			return v.Status.Conditions
		}
	case *model.Tier:
		if v.Status != nil {
			return v.Status.Conditions
		}
	}
	return nil
}

// tierVerdict decides whether a tier can be used.
func tierVerdict(r model.Reader, t *model.Tier) metav1.Condition {
	if t.DeletionTimestamp == nil {
		return metav1.Condition{Type: model.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready",
			Message: "policies of the tier are evaluated"}
	}
	policies := "1 policy"
	if n := policiesIn(r, t.Name); n != 1 {
		policies = fmt.Sprintf("%d policies", n)
	}
	return metav1.Condition{Type: model.ConditionReady, Status: metav1.ConditionFalse, Reason: "Terminating",
		Message: "the deletion of the tier waits for the deletion of " + policies}
}

// poolVerdict decides whether addresses may be assigned from a pool.
func poolVerdict(r model.Reader, p *model.IPPool) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return metav1.Condition{Type: model.ConditionAllocatable, Status: metav1.ConditionFalse, Reason: reason,
			Message: message}
	}
	if p.DeletionTimestamp != nil {
		return no("Terminating", "the pool is being deleted")
	}
	if p.Spec.Disabled {
		return no("Disabled", "the pool is disabled")
	}
	if _, err := netip.ParsePrefix(p.Spec.CIDR); err != nil {
		return no("InvalidCIDR", "the CIDR cannot be read")
	}
	if other := Overlapped(r, p); other != "" {
		return no("CIDROverlap", "the CIDR overlaps that of the older pool "+other)
	}
	return metav1.Condition{Type: model.ConditionAllocatable, Status: metav1.ConditionTrue, Reason: "Allocatable",
		Message: "addresses can be assigned"}
}

// Overlapped returns an older pool in use whose range overlaps, empty for none.
func Overlapped(r model.Reader, p *model.IPPool) string {
	own, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil {
		return ""
	}
	for other, cidr := range olderThan(r, p) {
		if cidr.Overlaps(own) {
			return other.Name
		}
	}
	return ""
}

// inside reports whether a part of the range of a pool is inside of an older pool in use.
func inside(r model.Reader, p *model.IPPool, part netip.Prefix) bool {
	for _, cidr := range olderThan(r, p) {
		if cidr.Bits() <= part.Bits() && cidr.Overlaps(part) {
			return true
		}
	}
	return false
}

// olderThan visits the older pools in use, with their ranges.
func olderThan(r model.Reader, p *model.IPPool) iter.Seq2[*model.IPPool, netip.Prefix] {
	return func(yield func(*model.IPPool, netip.Prefix) bool) {
		for o := range r.All(model.KindIPPool) {
			other, ok := o.Value.(*model.IPPool)
			if !ok || other.Name == p.Name || other.Spec.Disabled || !older(other, p) {
				continue
			}
			if cidr, err := netip.ParsePrefix(other.Spec.CIDR); err == nil && !yield(other, cidr) {
				return
			}
		}
	}
}

// older orders pools.
func older(a, b *model.IPPool) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// Release removes the finalizers of all pools and tiers, and returns their number. Afterwards a deletion waits for
// nobody; one that has waited ends.
func Release(ctx context.Context, store datastore.Store) (removedFrom int, err error) {
	for _, of := range []struct {
		kind      model.Kind
		finalizer string
	}{{model.KindIPPool, ofPool}, {model.KindTier, ofTier}} {
		for again := true; again; {
			again = false
			objects, _, err := store.List(ctx, of.kind, "")
			if err != nil {
				return removedFrom, err
			}
			for _, o := range objects {
				if m := o.Metadata(); m == nil || !slices.Contains(m.GetFinalizers(), of.finalizer) {
					continue
				}
				done, err := removed(o, of.finalizer, "").Apply(ctx, store)
				switch {
				case err != nil:
					return removedFrom, err
				case done:
					removedFrom++
				default:
					again = true // another writer was faster
				}
			}
		}
	}
	return removedFrom, nil
}
