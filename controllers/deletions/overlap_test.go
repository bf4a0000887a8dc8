package deletions_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/deletions"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore/model"
)

const (
	poolFinalizer = "projectcalico.org/ippool-finalizer"
	tierFinalizer = "projectcalico.org/tier-controller"
)

// poolOf returns a pool that was created in a second of the test.
func poolOf(name, cidr string, second int64, change func(*model.IPPool)) *model.Object {
	p := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1e9+second, 0)}}
	p.Spec.CIDR = cidr
	if change != nil {
		change(p)
	}
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), p)
}

// block returns a block with one address that is assigned.
func block(cidr string) *model.Object {
	b := &model.Block{CIDR: netip.MustParsePrefix(cidr), Allocations: []*int{new(int)}}
	return model.NewObject(model.BlockKey(b.CIDR), b)
}

func given(p *model.IPPool) { p.Finalizers = []string{poolFinalizer} }

func deleted(p *model.IPPool) {
	given(p)
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(2e9, 0)}
}

func disabled(p *model.IPPool) { p.Spec.Disabled = true }

func controller(s *memory.Store) *deletions.Controller {
	return &deletions.Controller{Store: s, Native: func(*model.Object) bool { return true }, Now: time.Now}
}

// finalizer makes the decisions with a snapshot, and returns whether the object in the datastore has a finalizer then.
func finalizer(t *testing.T, s *memory.Store, snapshot model.Set, key model.Key, finalizer string) (bool, error) {
	t.Helper()
	c := controller(s)
	var errs []error
	for _, d := range c.Decide(loop.State{Store: snapshot}, model.Key{Kind: key.Kind}) {
		_, err := d.Apply(t.Context(), s)
		errs = append(errs, err)
	}
	o, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(o.Metadata().GetFinalizers(), finalizer), errors.Join(errs...)
}

// stored returns a datastore and a snapshot of it.
func stored(t *testing.T, objects ...*model.Object) (*memory.Store, model.Set) {
	t.Helper()
	s, now := memory.New(objects...), model.Set{}
	for _, o := range objects {
		have, err := s.Get(t.Context(), o.Key)
		if err != nil {
			t.Fatal(err)
		}
		now[o.Key] = have
	}
	return s, now
}

// A pool inside of an older one that is in use has no finalizer. One that is only in part in an older one, or around
// it, waits for its other addresses.
func TestOverlappingPools(t *testing.T) {
	for name, c := range map[string]struct {
		objects []*model.Object
		want    bool
	}{
		"inside": {[]*model.Object{poolOf("older", "10.7.0.0/24", 1, nil), poolOf("pool", "10.7.0.0/25", 2, given)},
			false},
		"the same range": {[]*model.Object{poolOf("older", "10.7.0.0/24", 1, nil),
			poolOf("pool", "10.7.0.0/24", 2, given)}, false},
		"inside, deleted, with addresses": {[]*model.Object{poolOf("older", "10.7.0.0/24", 1, nil),
			poolOf("pool", "10.7.0.0/25", 2, deleted), block("10.7.0.0/26")}, false},
		"inside of a disabled one": {[]*model.Object{poolOf("older", "10.7.0.0/24", 1, disabled),
			poolOf("pool", "10.7.0.0/25", 2, nil)}, true},
		"inside of a younger one": {[]*model.Object{poolOf("younger", "10.7.0.0/24", 3, nil),
			poolOf("pool", "10.7.0.0/25", 2, nil)}, true},
		"around": {[]*model.Object{poolOf("older", "10.7.0.0/25", 1, nil), poolOf("pool", "10.7.0.0/24", 2, nil)},
			true},
		"around, deleted, with an address of its own": {[]*model.Object{poolOf("older", "10.7.0.0/25", 1, nil),
			poolOf("pool", "10.7.0.0/24", 2, deleted), block("10.7.0.128/26")}, true},
		"around, deleted, with an address of the older one": {[]*model.Object{poolOf("older", "10.7.0.0/25", 1, nil),
			poolOf("pool", "10.7.0.0/24", 2, deleted), block("10.7.0.0/26")}, false},
		"around a disabled one, deleted, with an address in both": {[]*model.Object{
			poolOf("older", "10.7.0.0/25", 1, disabled), poolOf("pool", "10.7.0.0/24", 2, deleted),
			block("10.7.0.0/26")}, true},
	} {
		s, now := stored(t, c.objects...)
		has, err := finalizer(t, s, now, model.ResourceKey(model.KindIPPool, "pool"), poolFinalizer)
		if has != c.want || err != nil {
			t.Errorf("%s: it has a finalizer: %t, %v", name, has, err)
		}
	}
}

// The snapshot may be behind: a pool keeps its finalizer if the older pool has gone meanwhile.
func TestTheOlderPoolHasGone(t *testing.T) {
	for name, change := range map[string]func(*model.IPPool){"in use": given, "deleted": deleted} {
		s, now := stored(t, poolOf("older", "10.7.0.0/24", 1, nil), poolOf("pool", "10.7.0.0/25", 2, change),
			block("10.7.0.0/26"))
		s.Remove(model.ResourceKey(model.KindIPPool, "older"))
		has, err := finalizer(t, s, now, model.ResourceKey(model.KindIPPool, "pool"), poolFinalizer)
		if !has || err != nil {
			t.Errorf("%s: it has a finalizer: %t, %v", name, has, err)
		}
	}
}

// A block or a policy that cannot be read may be the last one of a pool or a tier: the deletion waits, with the reason.
func TestUnreadableObjectsKeepFinalizers(t *testing.T) {
	bad := func(key model.Key) *model.Object { return &model.Object{Key: key, Err: errors.New("it is broken")} }
	tier := &model.Tier{ObjectMeta: metav1.ObjectMeta{Name: "web", Finalizers: []string{tierFinalizer},
		DeletionTimestamp: &metav1.Time{Time: time.Unix(2e9, 0)}}}
	for _, c := range []struct {
		deleted, unreadable *model.Object
		finalizer           string
	}{
		{poolOf("pool", "10.7.0.0/24", 1, deleted), bad(block("10.7.0.0/26").Key), poolFinalizer},
		{model.NewObject(model.ResourceKey(model.KindTier, "web"), tier),
			bad(model.ResourceKey(model.KindGlobalNetworkPolicy, "web.deny")), tierFinalizer},
	} {
		s, now := stored(t, c.deleted, c.unreadable)
		has, err := finalizer(t, s, now, c.deleted.Key, c.finalizer)
		if !has || err == nil || !strings.Contains(err.Error(), "it is broken") {
			t.Errorf("%s: it has a finalizer: %t, %v", c.deleted.Key, has, err)
		}
		s.Remove(c.unreadable.Key)
		if has, err := finalizer(t, s, now, c.deleted.Key, c.finalizer); has || err != nil {
			t.Errorf("%s: it has a finalizer when the other object has gone: %t, %v", c.deleted.Key, has, err)
		}
	}
}
