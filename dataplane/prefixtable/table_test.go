package prefixtable

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"unsafe"
)

func randomPrefix(r *rand.Rand) netip.Prefix {
	if r.IntN(2) == 0 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(64))}), r.IntN(33))
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(64))}), r.IntN(129))
}

// After any additions and removals in any order, the table has the content of a map.
func TestTableIsAMap(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		table, want := New[int](), map[netip.Prefix]int{}
		var beside []uint32
		for i := range 4000 {
			p := randomPrefix(r)
			switch n := table.Find(p); {
			case n == 0 != (want[p] == 0):
				t.Fatalf("seed %d: %s is row %d, want %d", seed, p, n, want[p])
			case r.IntN(3) == 0 && n != 0:
				table.Remove(n)
				delete(want, p)
			case r.IntN(8) == 0 && n != 0:
				b := table.Beside(n)
				*table.Row(b) = -1
				beside = append(beside, b)
			case r.IntN(8) == 0 && len(beside) > 0:
				table.Remove(beside[0])
				beside = beside[1:]
			default:
				n = table.Put(p)
				want[p] = i + 1
				*table.Row(n) = want[p]
			}
		}
		have := map[netip.Prefix]int{}
		for n := range table.All() {
			if *table.Row(n) == -1 {
				continue
			}
			have[table.Prefix(n)] = *table.Row(n)
			if table.Find(table.Prefix(n)) != n {
				t.Fatalf("seed %d: row %d is not found", seed, n)
			}
		}
		if !maps.Equal(have, want) || table.Len() != len(want)+len(beside) {
			t.Fatalf("seed %d: %d rows, want %d", seed, table.Len(), len(want)+len(beside))
		}
		for n := range table.All() {
			table.Remove(n)
		}
		if table.Len() != 0 || table.pages != nil || table.index != nil {
			t.Fatalf("seed %d: an empty table keeps memory", seed)
		}
	}
}

// The same address in the two families, and the same address with another length, are different prefixes.
func TestPrefixesAreToldApart(t *testing.T) {
	table := New[string]()
	list := []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.0/16", "::ffff:10.0.0.0/104", "a00::/8", "a00::/16"}
	for _, s := range list {
		*table.Row(table.Put(netip.MustParsePrefix(s))) = s
	}
	for _, s := range list {
		p := netip.MustParsePrefix(s)
		if n := table.Find(p); n == 0 || *table.Row(n) != s || table.Prefix(n) != p {
			t.Errorf("%s is row %d", s, n)
		}
	}
	if table.Find(netip.MustParsePrefix("10.0.0.0/9")) != 0 {
		t.Error("a prefix that was never put is found")
	}
}

func TestRowsAreSmall(t *testing.T) {
	if n := unsafe.Sizeof(entry[[3]uint32]{}); n != 32 {
		t.Errorf("a row of 12 bytes takes %d", n)
	}
}

func TestInternedValues(t *testing.T) {
	var set Interned[string, int]
	number := func(s string) uint32 { return set.Number(s, func() int { return len(s) }) }
	a, b, c := number("a"), number("bb"), number("ccc")
	if a == 0 || a == b || number("a") != a || *set.At(b) != 2 || set.values[c].key != "ccc" || set.Len() != 3 {
		t.Fatalf("%d %d %d", a, b, c)
	}
	set.Sweep(slices.Values([]uint32{b, b}))
	if set.Len() != 1 || number("bb") != b || *set.At(b) != 2 {
		t.Fatal("what is in use was forgotten, or the rest was not")
	}
	if d := number("dddd"); d != a && d != c || *set.At(d) != 4 {
		t.Errorf("a free number is not used again: %d", d)
	}
	for i := 0; !set.Crowded(); i++ {
		if i > 2*fewValues {
			t.Fatal("it never is crowded")
		}
		set.Number(string(rune('0'+i)), func() int { return 0 })
	}
	set.Sweep(slices.Values([]uint32{b}))
	if set.Crowded() || set.Len() != 1 {
		t.Errorf("%d values are left", set.Len())
	}
}

func benchPrefixes(n int) []netip.Prefix {
	list := make([]netip.Prefix, n)
	for i := range list {
		v := uint32(20<<24) + uint32(i)<<6
		list[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), 26)
	}
	return list
}

func BenchmarkPut100k(b *testing.B) {
	list := benchPrefixes(100_000)
	for b.Loop() {
		table := New[[11]uint32]()
		for _, p := range list {
			table.Put(p)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(list)), "ns/row")
	b.ReportAllocs()
}

func BenchmarkFind100k(b *testing.B) {
	list := benchPrefixes(100_000)
	table := New[[11]uint32]()
	for _, p := range list {
		table.Put(p)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Find(list[i*7919%len(list)])
	}
}
