// Package deletions ends the deletion of pools and tiers that calico-kube-controllers have given a finalizer, and keeps
// the condition of such pools current.
package deletions

import (
	"context"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/change"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Calico's finalizers. calico-kube-controllers add them to custom resources of projectcalico.org/v3.
const (
	ofPool = "projectcalico.org/ippool-finalizer"
	ofTier = "projectcalico.org/tier-controller"
)

// Controller is the controller. Its units are pools and tiers.
type Controller struct {
	// Store is read again before a deletion ends: the watch of another kind may be behind.
	Store datastore.Store
	// Now is usually time.Now.
	Now func() time.Time
}

// Name implements loop.Controller.
func (*Controller) Name() string { return "deletions" }

// Kinds implements loop.Controller.
func (*Controller) Kinds() (store, source []model.Kind) {
	return append(policies(), model.KindIPPool, model.KindIPAMBlock, model.KindTier), nil
}

// policies are the kinds whose objects are in tiers.
func policies() []model.Kind {
	return []model.Kind{model.KindNetworkPolicy, model.KindGlobalNetworkPolicy, model.KindStagedNetworkPolicy,
		model.KindStagedGlobalNetworkPolicy}
}

// every is the unit of all pools, and of all tiers: what a block or a policy was part of.
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
		switch v := o.Value.(type) {
		case *model.IPPool:
			if !slices.Contains(v.Finalizers, ofPool) {
				continue // as every pool in crd.projectcalico.org
			}
			if v.DeletionTimestamp != nil && !assigned(s.Store, v) {
				end := finished(o, ofPool, "the pool is deleted, and no address of it is assigned")
				end.Unless = c.still(func(r model.Reader) bool { return assigned(r, v) }, model.KindIPAMBlock)
				list = append(list, end)
			} else if next, differs := c.condition(s.Store, o, v); differs {
				list = append(list, next)
			}
		case *model.Tier:
			if v.DeletionTimestamp != nil && slices.Contains(v.Finalizers, ofTier) && !populated(s.Store, v.Name) {
				end := finished(o, ofTier, "the tier is deleted, and has no policies")
				end.Unless = c.still(func(r model.Reader) bool { return populated(r, v.Name) }, policies()...)
				list = append(list, end)
			}
		}
	}
	return list
}

// still evaluates a condition with the objects that the datastore has now.
func (c *Controller) still(holds func(model.Reader) bool, kinds ...model.Kind) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		now := model.Set{}
		for _, kind := range kinds {
			objects, _, err := c.Store.List(ctx, kind, "")
			if err != nil {
				return false, err
			}
			for _, o := range objects {
				now[o.Key] = o
			}
		}
		return holds(now), nil
	}
}

// finished removes a finalizer.
func finished(o *model.Object, finalizer, reason string) change.Change {
	next := o.Clone()
	m := next.Metadata()
	m.SetFinalizers(slices.DeleteFunc(m.GetFinalizers(), func(f string) bool { return f == finalizer }))
	return change.Change{Old: o, New: next, Reason: reason}
}

// assigned reports whether an address of a pool is assigned.
func assigned(r model.Reader, p *model.IPPool) bool {
	pool, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil {
		return true
	}
	for o := range r.All(model.KindIPAMBlock) {
		b, ok := o.Value.(*model.Block)
		if ok && pool.Overlaps(b.CIDR) && slices.ContainsFunc(b.Allocations, func(a *int) bool { return a != nil }) {
			return true
		}
	}
	return false
}

// populated reports whether a tier has policies.
func populated(r model.Reader, tier string) bool {
	for _, kind := range policies() {
		for o := range r.All(kind) {
			if model.PolicyTier(o.Value) == tier {
				return true
			}
		}
	}
	return false
}

// condition brings the condition Allocatable of a pool up to date.
func (c *Controller) condition(r model.Reader, o *model.Object, p *model.IPPool) (change.Change, bool) {
	if p.Status == nil {
		return change.Change{}, false
	}
	i := slices.IndexFunc(p.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == model.ConditionAllocatable
	})
	status, reason, message := verdict(r, p)
	if i < 0 || p.Status.Conditions[i].Status == status {
		return change.Change{}, false
	}
	next := o.Clone()
	at := &next.Value.(*model.IPPool).Status.Conditions[i]
	at.Status, at.Reason, at.Message = status, reason, message
	at.LastTransitionTime = metav1.NewTime(c.Now().Truncate(time.Second))
	return change.Change{Old: o, New: next, Reason: message}, true
}

// verdict decides whether addresses may be assigned from a pool.
func verdict(r model.Reader, p *model.IPPool) (status metav1.ConditionStatus, reason, message string) {
	if p.DeletionTimestamp != nil {
		return metav1.ConditionFalse, "Terminating", "the pool is being deleted"
	}
	if p.Spec.Disabled {
		return metav1.ConditionFalse, "Disabled", "the pool is disabled"
	}
	own, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil {
		return metav1.ConditionFalse, "InvalidCIDR", "the CIDR cannot be read"
	}
	for o := range r.All(model.KindIPPool) {
		other, ok := o.Value.(*model.IPPool)
		if !ok || other.Name == p.Name {
			continue
		}
		cidr, err := netip.ParsePrefix(other.Spec.CIDR)
		if err == nil && cidr.Overlaps(own) && older(other, p) {
			return metav1.ConditionFalse, "CIDROverlap", "the CIDR overlaps that of the older pool " + other.Name
		}
	}
	return metav1.ConditionTrue, "Allocatable", "addresses can be assigned"
}

// older orders pools.
func older(a, b *model.IPPool) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}
