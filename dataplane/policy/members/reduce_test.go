package members

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func TestReduce(t *testing.T) {
	for _, test := range []struct {
		name       string
		nets, want []string
	}{
		{"nothing", nil, nil},
		{"same", []string{"10.0.0.0/8", "10.0.0.0/8"}, []string{"10.0.0.0/8"}},
		{"host bits", []string{"10.1.2.3/8"}, []string{"10.0.0.0/8"}},
		{"inside", []string{"10.0.0.1/32", "10.0.0.0/8", "10.255.0.0/16"}, []string{"10.0.0.0/8"}},
		{"halves", []string{"128.0.0.0/1", "0.0.0.0/1"}, []string{"0.0.0.0/0"}},
		{"quarters", []string{"10.0.0.3/32", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.0/32"}, []string{"10.0.0.0/30"}},
		{"neighbours that are no halves", []string{"10.0.0.1/32", "10.0.0.2/32"},
			[]string{"10.0.0.1/32", "10.0.0.2/32"}},
		{"all", []string{"::/0", "0.0.0.0/0", "10.0.0.0/8", "2001:db8::/32"}, []string{"0.0.0.0/0", "::/0"}},
		{"families apart", []string{"0.0.0.0/32", "::/128", "::1/128"}, []string{"0.0.0.0/32", "::/127"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var nets, want []netip.Prefix
			for _, n := range test.nets {
				nets = append(nets, netip.MustParsePrefix(n))
			}
			for _, n := range test.want {
				want = append(want, netip.MustParsePrefix(n))
			}
			given := slices.Clone(nets)
			if got := Reduce(nets); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if !slices.Equal(nets, given) {
				t.Errorf("the list that was given became %v", nets)
			}
		})
	}
}

// The result has the same addresses in the fewest networks: of 256 addresses, each is compared.
func TestReduceIsMinimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	last := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	for range 2000 {
		var nets []netip.Prefix
		for range r.IntN(40) {
			nets = append(nets, netip.PrefixFrom(last(r.IntN(256)), 26+r.IntN(7)))
		}
		var in [256]bool
		for i := range in {
			in[i] = slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(last(i)) })
		}
		got := Reduce(nets)
		for i := range in {
			n := 0
			for _, p := range got {
				if p.Contains(last(i)) {
					n++
				}
			}
			if (n == 1) != in[i] || n > 1 {
				t.Fatalf("%v: %s is in %d networks of %v", nets, last(i), n, got)
			}
		}
		if want := fewest(in[:]); len(got) != want || !slices.IsSortedFunc(got, netip.Prefix.Compare) {
			t.Fatalf("%v: %v, want %d networks, sorted", nets, got, want)
		}
	}
}

// fewest returns the smallest number of networks for these addresses.
func fewest(in []bool) int {
	switch {
	case !slices.Contains(in, true):
		return 0
	case !slices.Contains(in, false):
		return 1
	}
	return fewest(in[:len(in)/2]) + fewest(in[len(in)/2:])
}

func TestMergePorts(t *testing.T) {
	for _, test := range []struct {
		name         string
		ranges, want [][2]uint16
	}{
		{"nothing", nil, nil},
		{"neighbours", [][2]uint16{{81, 90}, {80, 80}}, [][2]uint16{{80, 90}}},
		{"overlapping", [][2]uint16{{1, 10}, {5, 20}, {2, 3}}, [][2]uint16{{1, 20}}},
		{"apart", [][2]uint16{{80, 80}, {82, 82}}, [][2]uint16{{80, 80}, {82, 82}}},
		{"ends", [][2]uint16{{65535, 65535}, {0, 0}, {1, 65534}}, [][2]uint16{{0, 65535}}},
		{"after the last port comes none", [][2]uint16{{65535, 65535}, {0, 0}}, [][2]uint16{{0, 0}, {65535, 65535}}},
		{"backwards", [][2]uint16{{10, 5}, {7, 7}}, [][2]uint16{{7, 7}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			given := slices.Clone(test.ranges)
			if got := MergePorts(test.ranges); !slices.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
			if !slices.Equal(test.ranges, given) {
				t.Errorf("the list that was given became %v", test.ranges)
			}
		})
	}
}
