package members

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// kernel is the content of a set in the kernel. As the kernel does, an interval set refuses overlaps at every single
// step.
type kernel struct {
	t        *testing.T
	interval bool
	have     map[ruleset.Element]bool
	added    bool // since the last step
}

func (k *kernel) Add(e ruleset.Element) {
	for o := range k.have {
		if o == e || k.interval && o.Prefix.Overlaps(e.Prefix) {
			k.t.Fatalf("%v is added while %v is there", e, o)
		}
	}
	k.have[e], k.added = true, true
}

func (k *kernel) Remove(e ruleset.Element) {
	if !k.have[e] {
		k.t.Fatalf("%v is removed but not there", e)
	}
	if k.added {
		k.t.Fatalf("%v is removed after something was added", e)
	}
	delete(k.have, e)
}

func (k *kernel) Has(e ruleset.Element) bool { return k.have[e] }

func (k *kernel) networks() []netip.Prefix {
	var list []netip.Prefix
	for e := range k.have {
		list = append(list, e.Prefix)
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

// randomNetwork is often equal to another one, contains it, or is inside or beside it; its host bits are not always
// zero.
func randomNetwork(r *rand.Rand) netip.Prefix {
	if r.IntN(3) == 0 {
		a := [16]byte{0: 0x20 * byte(r.IntN(3)), 7: byte(r.IntN(2)), 8: 0x80 * byte(r.IntN(2)), 15: byte(r.IntN(4))}
		return netip.PrefixFrom(netip.AddrFrom16(a), []int{0, 1, 2, 3, 32, 56, 63, 64, 65, 120, 126, 127,
			128}[r.IntN(13)])
	}
	a := [4]byte{byte(r.IntN(4)) << 6, byte(r.IntN(3)) << 6, 0, byte(r.IntN(4))}
	return netip.PrefixFrom(netip.AddrFrom4(a), []int{0, 1, 4, 8, 9, 10, 12, 24, 30, 31, 32, 32}[r.IntN(12)])
}

// outermost is the desired content of the kernel: all contributions that are not inside another one.
func outermost(counts map[netip.Prefix]int) []netip.Prefix {
	var list []netip.Prefix
	for p, n := range counts {
		if n > 0 && !covered(counts, p) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

func covered(counts map[netip.Prefix]int, p netip.Prefix) bool {
	for o, n := range counts {
		if n > 0 && o.Bits() < p.Bits() && o.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// After any additions and removals, the kernel's elements never overlap and cover the same as the contributions.
func TestIntervalSetsNeverOverlap(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		k := &kernel{t: t, interval: true, have: map[ruleset.Element]bool{}}
		s := New(true, k)
		counts := map[netip.Prefix]int{}
		var held []netip.Prefix // all contributions, in order
		for range 120 {
			k.added = false
			switch i := r.IntN(10); {
			case i < 3 && len(held) > 0:
				n := r.IntN(len(held))
				s.Remove(ruleset.Element{Prefix: held[n]})
				counts[held[n].Masked()]--
				held = slices.Delete(held, n, n+1)
			case i == 3: // may not exist: nothing happens
				if p := randomNetwork(r); counts[p.Masked()] == 0 {
					s.Remove(ruleset.Element{Prefix: p})
				}
			default:
				p := randomNetwork(r)
				s.Add(ruleset.Element{Prefix: p})
				counts[p.Masked()]++
				held = append(held, p)
			}
			if got, want := k.networks(), outermost(counts); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v, want %v", seed, got, want)
			}
			different := 0
			for _, n := range counts {
				different += min(1, n)
			}
			if nodes := forks(t, &s.nets[0], s.nets[0].root) + forks(t, &s.nets[1], s.nets[1].root); nodes > max(0,
				2*different-1) {
				t.Fatalf("seed %d: %d nodes for %d networks", seed, nodes, different)
			}
			if n := s.nets[0].networks + s.nets[1].networks; n != different {
				t.Fatalf("seed %d: %d networks, want %d", seed, n, different)
			}
		}
		again := &kernel{t: t, interval: true, have: map[ruleset.Element]bool{}}
		other := New(true, again)
		for _, i := range r.Perm(len(held)) {
			again.added = false
			other.Add(ruleset.Element{Prefix: held[i]})
		}
		if !maps.Equal(k.have, again.have) {
			t.Fatalf("seed %d: %v in another order, want %v", seed, again.networks(), k.networks())
		}
		for _, i := range r.Perm(len(held)) {
			k.added = false
			s.Remove(ruleset.Element{Prefix: held[i]})
		}
		if len(k.have) != 0 || s.nets[0].nodes != nil || s.nets[1].nodes != nil {
			t.Fatalf("seed %d: something is left: %v, %d", seed, k.networks(), len(s.nets[0].nodes)+
				len(s.nets[1].nodes))
		}
	}
}

// forks counts the nodes of a tree, and fails if one has no purpose.
func forks(t *testing.T, tr *tree, at uint32) int {
	if at == 0 {
		return 0
	}
	n := tr.nodes[at]
	if n.count == 0 && (n.child[0] == 0 || n.child[1] == 0) {
		t.Fatalf("%v is neither a network nor a fork", n)
	}
	return 1 + forks(t, tr, n.child[0]) + forks(t, tr, n.child[1])
}

// changeRecorder records changes of an interval set.
type changeRecorder struct{ changes *[]string }

func (t changeRecorder) Add(e ruleset.Element) {
	*t.changes = append(*t.changes, "+"+e.Prefix.String())
}
func (t changeRecorder) Remove(e ruleset.Element) {
	*t.changes = append(*t.changes, "-"+e.Prefix.String())
}
func (changeRecorder) Has(ruleset.Element) bool { panic("an interval set knows its elements") }

func TestNetworksMakeWayForLargerOnesAndComeBack(t *testing.T) {
	var changes []string
	s := New(true, changeRecorder{&changes})
	for _, step := range []struct {
		name string
		want []string
	}{
		{"+10.0.1.0/24", []string{"+10.0.1.0/24"}},
		{"+10.0.0.0/16", []string{"-10.0.1.0/24", "+10.0.0.0/16"}},
		{"+10.0.2.5/32", nil},
		{"+10.0.1.7/32", nil},
		{"+0.0.0.0/0", []string{"-10.0.0.0/16", "+0.0.0.0/0"}},
		{"+0.0.0.0/0", nil},
		{"+::/0", []string{"+::/0"}},
		{"+255.255.255.255/32", nil},
		{"-0.0.0.0/0", nil},
		{"-10.0.0.0/16", nil},
		{"-0.0.0.0/0", []string{"-0.0.0.0/0", "+10.0.1.0/24", "+10.0.2.5/32", "+255.255.255.255/32"}},
		{"-10.0.1.0/24", []string{"-10.0.1.0/24", "+10.0.1.7/32"}},
		{"+10.0.99.1/16", []string{"-10.0.1.7/32", "-10.0.2.5/32", "+10.0.0.0/16"}},
		{"-192.0.2.0/24", nil},
		{"-::/0", []string{"-::/0"}},
	} {
		changes = nil
		change := s.Add
		if step.name[0] == '-' {
			change = s.Remove
		}
		change(ruleset.Element{Prefix: netip.MustParsePrefix(step.name[1:])})
		if !slices.Equal(changes, step.want) {
			t.Errorf("%s: %v, want %v", step.name, changes, step.want)
		}
	}
}

// Sets without intervals count each element separately, with protocol and port.
func TestElementsOfOtherSetsAreCounted(t *testing.T) {
	var kinds []ruleset.Element
	for _, a := range []string{"10.0.0.1/32", "10.0.0.2/32", "::ffff:10.0.0.1/128", "2001:db8::1/128"} {
		for _, port := range []uint16{0, 80} {
			for _, protocol := range []uint8{6, 17} {
				kinds = append(kinds, ruleset.Element{Prefix: netip.MustParsePrefix(a), Protocol: protocol, Low: port})
			}
		}
	}
	kinds = append(kinds, ruleset.Element{Low: 80, High: 90}, ruleset.Element{Low: 80, High: 91},
		ruleset.Element{Low: 80})
	for _, a := range []string{"10.0.0.1/32", "::ffff:10.0.0.1/32", "::ffff:10.0.0.1/128"} {
		kinds = append(kinds, ruleset.Element{Prefix: netip.MustParsePrefix(a), Low: 80, High: 90})
	}
	r := rand.New(rand.NewPCG(1, 1))
	k := &kernel{t: t, have: map[ruleset.Element]bool{}}
	s := New(false, k)
	counts := map[ruleset.Element]int{}
	for range 3000 {
		e := kinds[r.IntN(len(kinds))]
		k.added = false
		if r.IntN(2) == 0 {
			s.Add(e)
			counts[e]++
		} else {
			s.Remove(e)
			counts[e] = max(0, counts[e]-1)
		}
		n, more := 0, 0
		for e, c := range counts {
			if k.have[e] != (c > 0) {
				t.Fatalf("%v is there: %v, with %d contributions", e, k.have[e], c)
			}
			if n += min(1, c); c > 1 {
				more++
			}
		}
		if len(s.more) != more || len(k.have) != n {
			t.Fatalf("%d elements, %d with more than one contribution, want %d and %d", len(k.have), len(s.more), n,
				more)
		}
	}
}

func addresses(n int) []ruleset.Element {
	list := make([]ruleset.Element, n)
	for i := range list {
		list[i].Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	return list
}

// tableSet is a set as the calculator has it.
type tableSet struct{ *ruleset.Table }

func newTableSet(interval bool) tableSet {
	t := tableSet{ruleset.NewTable()}
	t.AddSet(ruleset.Set{Name: "s", Type: ruleset.Addresses4, Interval: interval})
	return t
}

func (t tableSet) Add(e ruleset.Element)      { t.AddElement("s", e) }
func (t tableSet) Remove(e ruleset.Element)   { t.RemoveElement("s", e) }
func (t tableSet) Has(e ruleset.Element) bool { return t.Contains("s", e) }

func BenchmarkAdd100k(b *testing.B) {
	for _, interval := range []bool{false, true} {
		b.Run(fmt.Sprintf("interval=%v", interval), func(b *testing.B) {
			list := addresses(100000)
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				s := New(interval, newTableSet(interval))
				for _, e := range list {
					s.Add(e)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
				runtime.KeepAlive(s)
			}
		})
	}
}

func BenchmarkChangeAmong100k(b *testing.B) {
	for _, interval := range []bool{false, true} {
		b.Run(fmt.Sprintf("interval=%v", interval), func(b *testing.B) {
			s := New(interval, newTableSet(interval))
			list := addresses(100000)
			for _, e := range list {
				s.Add(e)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Remove(list[i%len(list)])
				s.Add(list[i%len(list)])
			}
		})
	}
}

// A network that contains all others is the most expensive change.
func BenchmarkCover100k(b *testing.B) {
	s := New(true, newTableSet(true))
	for _, e := range addresses(100000) {
		s.Add(e)
	}
	all := ruleset.Element{Prefix: netip.MustParsePrefix("10.0.0.0/8")}
	for b.Loop() {
		s.Add(all)
		s.Remove(all)
	}
}
