package ipam

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// ipamState has all objects of the allocator.
type ipamState struct {
	blocks     map[netip.Prefix]*model.Block
	handles    map[string]*model.Handle
	affinities map[string]model.AffinityState // by key name
	// has counts the addresses of each handle in each block.
	has map[string]map[netip.Prefix]int
	// owner has the handle of each assigned address.
	owner map[netip.Addr]string
}

func readState(t testing.TB, store Store) ipamState {
	t.Helper()
	s := ipamState{
		blocks: map[netip.Prefix]*model.Block{}, handles: map[string]*model.Handle{},
		affinities: map[string]model.AffinityState{},
		has:        map[string]map[netip.Prefix]int{}, owner: map[netip.Addr]string{},
	}
	for _, kind := range []model.Kind{model.KindIPAMBlock, model.KindIPAMHandle, model.KindBlockAffinity} {
		objects, _, err := store.List(context.Background(), kind, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.Err != nil {
				t.Fatalf("%s: %v", o.Key, o.Err)
			}
			switch v := o.Value.(type) {
			case *model.Block:
				s.addBlock(t, o.Key, v)
			case *model.Handle:
				s.handles[o.Key.Name] = v
			case *model.BlockAffinity:
				s.affinities[o.Key.Name] = v.State
			}
		}
	}
	return s
}

func (s *ipamState) addBlock(t testing.TB, key model.Key, b *model.Block) {
	t.Helper()
	if key != model.BlockKey(b.CIDR) {
		t.Errorf("block %s is stored as %s", b.CIDR, key)
	}
	for cidr := range s.blocks {
		if cidr.Overlaps(b.CIDR) {
			t.Errorf("blocks %s and %s overlap", cidr, b.CIDR)
		}
	}
	s.blocks[b.CIDR] = b
	if broken := validation.CheckBlock(b); len(broken) > 0 {
		t.Errorf("block %s is invalid: %v", b.CIDR, broken)
		return
	}
	for o, i := range b.Allocations {
		if i == nil || b.Attributes[*i].ReleasedAt != nil {
			continue
		}
		handle := handleOf(b.Attributes[*i])
		if s.has[handle] == nil {
			s.has[handle] = map[netip.Prefix]int{}
		}
		s.has[handle][b.CIDR]++
		s.owner[addressAt(b.CIDR, o)] = handle
	}
}

// checkHandles requires each address to be counted by its handle. A handle may count more addresses only after an
// interrupted operation.
func (s *ipamState) checkHandles(t testing.TB, interrupted func(handle string) bool) {
	t.Helper()
	for handle, blocks := range s.has {
		if handle == "" {
			continue
		}
		h := s.handles[handle]
		if h == nil {
			t.Errorf("handle %s is lost: it has addresses in %v", handle, blocks)
			continue
		}
		for cidr, n := range blocks {
			if h.Block[cidr.String()] < n {
				t.Errorf("handle %s counts %d addresses in %s, which has %d of it", handle, h.Block[cidr.String()],
					cidr, n)
			}
		}
	}
	for handle, h := range s.handles {
		if interrupted(handle) {
			continue
		}
		if len(h.Block) == 0 {
			t.Errorf("handle %s is empty but was not deleted", handle)
		}
		for name, n := range h.Block {
			if real := s.has[handle][netip.MustParsePrefix(name)]; real != n {
				t.Errorf("handle %s counts %d addresses in %s, which has %d of it", handle, n, name, real)
			}
		}
	}
}

// checkAffinities requires an affinity of each block's owner: a block without it would never be used or released.
func (s *ipamState) checkAffinities(t testing.TB) {
	t.Helper()
	for cidr, b := range s.blocks {
		owner, ok := parseOwner(ownerOf(b))
		if !ok {
			continue
		}
		if _, ok := s.affinities[model.AffinityKey(owner.affinity(cidr)).Name]; !ok {
			t.Errorf("block %s belongs to %s, which has no affinity for it", cidr, owner)
		}
	}
	for name, state := range s.affinities {
		key := model.Key{Kind: model.KindBlockAffinity, Name: name}
		aff, _ := key.Affinity()
		b := s.blocks[aff.CIDR]
		if state == model.StateConfirmed && (b == nil || ownerOf(b) != aff.String()) {
			t.Errorf("affinity %s is confirmed, but the block does not exist or belongs to another", name)
		}
	}
}

// releaseEverything releases all handles and blocks, and requires that no key of any kind is left.
func releaseEverything(t testing.TB, store Store, now func() time.Time) {
	t.Helper()
	ctx := context.Background()
	a := New(store, nil, now)
	s := readState(t, store)
	for handle := range s.handles {
		if _, err := a.ReleaseByHandle(ctx, handle); err != nil {
			t.Errorf("release by handle: %v", err)
		}
	}
	owners := map[Owner]bool{}
	for name := range s.affinities {
		parts := strings.SplitN(name, "/", 3)
		owners[Owner{Type: model.AffinityType(parts[0]), Name: parts[1]}] = true
	}
	for owner := range owners {
		if err := a.ReleaseHostAffinities(ctx, owner, true); err != nil {
			t.Errorf("release blocks: %v", err)
		}
	}
	s = readState(t, store)
	for cidr, b := range s.blocks {
		t.Errorf("block %s of %q is left: %v", cidr, ownerOf(b), b.Attributes)
	}
	for handle, h := range s.handles {
		t.Errorf("handle %s is left: %v", handle, h.Block)
	}
	for name, state := range s.affinities {
		t.Errorf("affinity %s is left: %s", name, state)
	}
}

// poolObject returns an IP pool for tests.
func poolObject(name, cidr string, blockSize int, change ...func(*model.IPPoolSpec)) *model.Object {
	p := &model.IPPool{
		TypeMeta:   metav1.TypeMeta{Kind: "IPPool", APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: model.IPPoolSpec{
			CIDR: cidr, BlockSize: blockSize, NodeSelector: "all()", IPIPMode: v3.IPIPModeNever,
			VXLANMode:   v3.VXLANModeNever,
			AllowedUses: []v3.IPPoolAllowedUse{workload, tunnel},
		},
	}
	for _, c := range change {
		c(&p.Spec)
	}
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), p)
}

// nodeObject returns a Node for tests. labels are pairs of name and value.
func nodeObject(name string, labels ...string) *model.Object {
	n := &model.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: model.APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := 0; i+1 < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return model.NewObject(model.ResourceKey(model.KindNode, name), n)
}

func create(t testing.TB, store Store, objects ...*model.Object) {
	t.Helper()
	for _, o := range objects {
		if _, err := store.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
}
