package offload

import (
	"errors"
	"testing"
)

// Packets count as lost only if others are answered before and after them.
func TestMeasure(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		rule string
		// answers reports whether the nth packet is answered.
		answers func(offload bool, n int) bool
		want    verdict
		packets int
	}{
		{"all arrive", func(bool, int) bool { return true }, works, 1},
		{"the first two are lost", func(_ bool, n int) bool { return n > 2 }, works, 3},
		{"the hardware's are lost", func(offload bool, _ int) bool { return !offload }, broken, 8},
		{"nobody answers", func(bool, int) bool { return false }, unknown, 6},
		{"the first three are lost", func(_ bool, n int) bool { return n > 3 }, works, 5},
		{"it stops", func(offload bool, n int) bool { return !offload && n < 5 }, unknown, 10},
	} {
		n := 0
		have, err := measure(func(offload bool) (bool, error) {
			n++
			return c.answers(offload, n), nil
		})
		if have != c.want || err != nil || n != c.packets {
			t.Errorf("%s: %d %v after %d packets, want %d after %d", c.rule, have, err, n, c.want, c.packets)
		}
	}
	for failing := 1; failing <= 8; failing++ {
		n := 0
		have, err := measure(func(offload bool) (bool, error) {
			if n++; n == failing {
				return false, boom
			}
			return !offload, nil
		})
		if have != unknown || !errors.Is(err, boom) || n != failing {
			t.Errorf("the %dth packet fails: %d %v after %d", failing, have, err, n)
		}
	}
}
