package ipam

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// reference is a plain model of a block: the owner of each address, and since when the address cools down.
type reference struct {
	owner    map[int]string
	released map[int]time.Time
	queue    []int
}

// Any sequence of assignments and releases leaves a valid block with the state of the plain reference.
func TestBlockEqualsReferenceAfterAnySequence(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		cooldown := time.Duration(rng.IntN(3)) * 10 * time.Second
		now := time.Unix(1_800_000_000, 0)
		cidr := netip.MustParsePrefix([]string{"10.0.0.64/28", "fd00::40/124"}[rng.IntN(2)])
		b := newBlock(cidr, "host:a", now)
		ref := &reference{owner: map[int]string{}, released: map[int]time.Time{}}
		for i := range 16 {
			ref.queue = append(ref.queue, i)
		}
		for range 60 {
			now = now.Add(time.Duration(rng.IntN(8)) * time.Second)
			collect(b, now, cooldown)
			ref.collect(now, cooldown)
			handle := fmt.Sprintf("h%d", rng.IntN(5))
			b.SequenceNumber++
			switch rng.IntN(3) {
			case 0:
				n := rng.IntN(4)
				reserved := rng.IntN(16)
				got := assignNext(b, n, attribute(handle, nil), func(a netip.Addr) bool {
					return ordinalOf(cidr, a) == reserved
				})
				ref.assignNext(t, cidr, got, n, handle, reserved)
			case 1:
				o := rng.IntN(16)
				err := assignExact(b, addressAt(cidr, o), attribute(handle, nil))
				if free := slices.Contains(ref.queue, o); free != (err == nil) {
					t.Fatalf("seed %d: %d is free: %v, but assigning it gives %v", seed, o, free, err)
				} else if free {
					ref.queue = slices.DeleteFunc(ref.queue, func(f int) bool { return f == o })
					ref.owner[o] = handle
				}
			case 2:
				ordinals := ordinalsOf(b, handle)
				release(b, ordinals, now, cooldown)
				for _, o := range ordinals {
					delete(ref.owner, o)
					ref.released[o] = now
				}
				ref.collect(now, cooldown)
			}
			ref.compare(t, seed, b)
		}
	}
}

func (r *reference) assignNext(t *testing.T, cidr netip.Prefix, got []netip.Addr, n int, handle string, reserved int) {
	t.Helper()
	var want []netip.Addr
	var rest []int
	for _, o := range r.queue {
		if len(want) < n && o != reserved {
			want = append(want, addressAt(cidr, o))
			r.owner[o] = handle
		} else {
			rest = append(rest, o)
		}
	}
	r.queue = rest
	if !slices.Equal(got, want) {
		t.Fatalf("assigned %v, want %v", got, want)
	}
}

func (r *reference) collect(now time.Time, cooldown time.Duration) {
	for o := range 16 {
		if at, cooling := r.released[o]; cooling && (cooldown == 0 || at.Add(cooldown).Before(now)) {
			delete(r.released, o)
			r.queue = append(r.queue, o)
		}
	}
}

func (r *reference) compare(t *testing.T, seed uint64, b *model.Block) {
	t.Helper()
	if broken := validation.CheckBlock(b); len(broken) > 0 {
		t.Fatalf("seed %d: %v", seed, broken)
	}
	if !slices.Equal(b.Unallocated, r.queue) && len(b.Unallocated)+len(r.queue) > 0 {
		t.Fatalf("seed %d: queue %v, want %v", seed, b.Unallocated, r.queue)
	}
	for o, i := range b.Allocations {
		owner, owned := r.owner[o]
		released, cooling := r.released[o]
		switch {
		case owned != (i != nil && b.Attributes[*i].ReleasedAt == nil), owned && handleOf(b.Attributes[*i]) != owner:
			t.Fatalf("seed %d: %d should belong to %q", seed, o, owner)
		case cooling && !b.Attributes[*i].ReleasedAt.Equal(ptrTime(released)):
			t.Fatalf("seed %d: %d should cool down since %s", seed, o, released)
		}
		if _, stamped := b.SequenceNumberForAllocation[fmt.Sprint(o)]; stamped != (i != nil) {
			t.Fatalf("seed %d: %d is allocated: %v, has a sequence number: %v", seed, o, i != nil, stamped)
		}
	}
	seen := map[string]bool{}
	for _, a := range b.Attributes {
		text, _ := json.Marshal(a)
		if seen[string(text)] {
			t.Fatalf("seed %d: attribute %s is there twice", seed, text)
		}
		seen[string(text)] = true
	}
}

// The order of releases does not change the remaining assignments.
func TestReleaseInAnyOrderLeavesTheSameAllocations(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		b := newBlock(netip.MustParsePrefix("10.0.0.0/29"), "host:a", now)
		for i := range 8 {
			assignNext(b, 1, attribute(fmt.Sprintf("h%d", i%4), nil), nothing)
		}
		for _, i := range rng.Perm(3) {
			release(b, ordinalsOf(b, fmt.Sprintf("h%d", i)), now, 0)
		}
		left := ordinalsOf(b, "h3")
		if !slices.Equal(left, []int{3, 7}) || len(b.Attributes) != 1 || len(b.Unallocated) != 6 {
			t.Fatalf("seed %d: %v, %v, %v", seed, left, b.Attributes, b.Unallocated)
		}
	}
}

func nothing(netip.Addr) bool { return false }

func TestWindowsReservedAddressesLeaveABlockEmpty(t *testing.T) {
	b := newBlock(netip.MustParsePrefix("10.0.0.0/29"), "host:w", time.Now())
	for _, o := range []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.7"} {
		if err := assignExact(b, netip.MustParseAddr(o),
			attribute("Windows-Reserved-IPAM-Handle", map[string]string{"note": "windows host rsvd"})); err != nil {
			t.Fatal(err)
		}
	}
	if !isEmpty(b) {
		t.Error("what Windows reserves counts as in use")
	}
	if got := assignNext(b, 1, attribute("h", nil), nothing); len(got) != 1 || got[0].String() != "10.0.0.3" {
		t.Errorf("assigned %v", got)
	}
	if isEmpty(b) {
		t.Error("an address is in use")
	}
}

// A handle that an old migration damaged counts up to the end of its line.
func TestHandleEndsAtLineEnd(t *testing.T) {
	b := newBlock(netip.MustParsePrefix("10.0.0.0/29"), "host:w", time.Now())
	assignNext(b, 1, attribute("h\r\nnode: n", nil), nothing)
	if got := ordinalsOf(b, "h"); len(got) != 1 {
		t.Errorf("handle h has %v", got)
	}
}

// Any stored block is either refused or usable: operations on it do not panic, and leave it valid.
func FuzzBlock(f *testing.F) {
	b := newBlock(netip.MustParsePrefix("10.0.0.0/29"), "host:a", time.Unix(1_800_000_000, 0))
	assignNext(b, 3, attribute("h", map[string]string{"node": "a"}), nothing)
	release(b, []int{1}, time.Unix(1_800_000_000, 0), time.Hour)
	seed, _ := json.Marshal(b)
	f.Add(seed)
	f.Add(
		[]byte(
			`{"cidr":"fd00::/126","affinity":null,"allocations":[0,null,null,0],"unallocated":[2,1],"attributes":[{}],"sequenceNumber":18446744073709551615,"sequenceNumberForAllocation":null}`))
	f.Add(
		[]byte(
			`{"cidr":"10.0.0.0/30","allocations":[null,null,null,null],"unallocated":[0,1,2,3],"hostAffinity":"old"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var head struct{ CIDR netip.Prefix }
		if json.Unmarshal(raw, &head) != nil || !head.CIDR.IsValid() {
			return
		}
		now := time.Unix(1_900_000_000, 0)
		s := session{Allocator: New(newMemory(), nil, func() time.Time { return now }), cooldown: time.Minute}
		held, err := s.hold(codec.Decode(model.BlockKey(head.CIDR), bytes.Clone(raw), 1))
		if err != nil {
			return
		}
		before := len(validation.CheckBlock(held.Block))
		assignNext(held.Block, 2, attribute("fuzz", nil), nothing)
		_ = assignExact(held.Block, held.CIDR.Addr(), attribute("fuzz", nil))
		isEmpty(held.Block)
		release(held.Block, ordinalsOf(held.Block, "fuzz"), now, 0)
		if after := validation.CheckBlock(held.Block); len(after) > before {
			t.Errorf("broken: %v", after)
		}
		if _, err := codec.Encode(held.object); err != nil {
			t.Error(err)
		}
	})
}

func ptrTime(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
