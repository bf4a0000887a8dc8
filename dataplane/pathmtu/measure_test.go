package pathmtu

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// The largest step that gets through is found with few packets, and a host that does not answer, or not always, says
// nothing about the path.
func TestMeasure(t *testing.T) {
	upTo := func(path int) func(int, int) bool { return func(size, _ int) bool { return size <= path } }
	for _, c := range []struct {
		rule  string
		limit int
		// answers reports whether the nth packet, of a size, is answered.
		answers func(size, n int) bool
		want    int
		why     string
		most    int // packets
	}{
		{"all", 1500, upTo(1500), 1500, "", 1},
		{"all of a jumbo frame", 9000, upTo(9000), 9000, "", 1},
		{"a tunnel on the way", 1500, upTo(1400), 1400, "", 13},
		{"an unusual size", 1500, upTo(1420), 1400, "", 13},
		{"a router without jumbo frames", 9000, upTo(1500), 1500, "", 16},
		{"the least", 9000, upTo(1280), 1280, "", 16},
		{"an interface below all steps", 1000, upTo(1500), 1000, "", 1},
		{"the first two are lost", 1500, func(_, n int) bool { return n > 2 }, 1500, "", 3},
		{"nothing", 1500, upTo(0), 0, "it answers no ICMP echo request of 1280 bytes", 6},
		{"small ones alone", 1500, upTo(1200), 0, "it answers no ICMP echo request of 1280 bytes", 6},
		{"it stops", 1500, func(size, n int) bool { return size <= 1400 && n < 8 }, 0,
			"it answers ICMP echo requests no more", 16},
		{"a storm", 1500, func(_, n int) bool { return n > 3 && (n < 5 || n > 8) }, 0,
			"some ICMP echo requests of 1400 bytes are answered and some are not", 16},
	} {
		n := 0
		mtu, err := measure(c.limit, func(size int) (bool, error) {
			if n++; size > c.limit {
				t.Errorf("%s: %d bytes do not fit the interface", c.rule, size)
			}
			return c.answers(size, n), nil
		})
		why := ""
		if err != nil {
			why = err.Error()
		}
		if mtu != c.want || why != c.why || n > c.most {
			t.Errorf("%s: %d %q after %d packets, want %d %q after %d", c.rule, mtu, why, n, c.want, c.why, c.most)
		}
	}
}

// An error of this host ends a measurement, whenever it comes.
func TestMeasureFails(t *testing.T) {
	boom := errors.New("boom")
	var ends []int
	for failing := 1; ; failing++ {
		n := 0
		mtu, err := measure(1500, func(size int) (bool, error) {
			if n++; n == failing {
				return false, boom
			}
			return size <= 1400, nil
		})
		if err == nil {
			break
		}
		if mtu != 0 || !errors.Is(err, boom) || n != failing {
			t.Errorf("the %dth packet fails: %d %v after %d", failing, mtu, err, n)
		}
		ends = append(ends, n)
	}
	if len(ends) < 10 || !slices.IsSorted(ends) {
		t.Error(fmt.Sprint(ends))
	}
}
