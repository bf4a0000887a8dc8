package members

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// kernel is what an interval set in the kernel would hold; it refuses overlaps.
type kernel struct {
	t    *testing.T
	have map[netip.Prefix]bool
}

func (k *kernel) add(e ruleset.Element) {
	for p := range k.have {
		if p.Overlaps(e.Prefix) {
			k.t.Fatalf("%s is added while %s is there", e.Prefix, p)
		}
	}
	k.have[e.Prefix] = true
}

func (k *kernel) remove(e ruleset.Element) {
	if !k.have[e.Prefix] {
		k.t.Fatalf("%s is removed but not there", e.Prefix)
	}
	delete(k.have, e.Prefix)
}

// Whatever is added and removed, the kernel's elements never overlap and cover what the contributions cover.
func TestIntervalSetsNeverOverlap(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		k := &kernel{t, map[netip.Prefix]bool{}}
		s := New(true, k.add, k.remove)
		count := map[netip.Prefix]int{}
		for range 120 {
			bits := []int{0, 4, 8, 9, 10, 12, 31, 32}[r.IntN(8)]
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(r.IntN(4)) << 6, byte(r.IntN(3)) << 6, 0, byte(r.IntN(4))}), bits).Masked()
			if r.IntN(5) < 2 {
				s.Remove(ruleset.Element{Prefix: p})
				count[p] = max(0, count[p]-1)
			} else {
				s.Add(ruleset.Element{Prefix: p})
				count[p]++
			}
			var all []netip.Prefix
			for p, n := range count {
				if n > 0 {
					all = append(all, p)
				}
			}
			want := map[netip.Prefix]bool{}
			for _, p := range Reduce(all) {
				want[p] = true
			}
			if !maps.Equal(k.have, want) {
				t.Fatalf("seed %d: %v, want %v", seed, k.have, want)
			}
		}
		for p, n := range count {
			for range n {
				s.Remove(ruleset.Element{Prefix: p})
			}
		}
		if len(k.have) != 0 || s.nets.root != nil || s.Len() != 0 {
			t.Fatalf("seed %d: something is left: %v", seed, k.have)
		}
	}
}

func TestMergePorts(t *testing.T) {
	got := MergePorts([][2]uint16{{80, 80}, {65535, 65535}, {81, 90}, {1, 3}, {2, 2}, {85, 100}})
	want := [][2]uint16{{1, 3}, {80, 100}, {65535, 65535}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Fatal(got)
	}
}
