package main

import "testing"

func TestMemoryLimitGrowsWithWhatIsInUse(t *testing.T) {
	for _, x := range []struct {
		live uint64
		want int64
	}{{0, smallMemory}, {smallMemory / 2, smallMemory}, {smallMemory/2 + 1, smallMemory + 32<<20}, {1 << 30, 2 << 30}, {1<<30 + 16<<20, 2<<30 + 32<<20}} {
		if got := memoryLimit(x.live); got != x.want {
			t.Errorf("with %d bytes in use: %d, want %d", x.live, got, x.want)
		}
	}
}
