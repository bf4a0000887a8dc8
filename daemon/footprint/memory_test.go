package footprint

import "testing"

func TestMemoryIsGivenBackOnceAfterABurst(t *testing.T) {
	var b burst
	use := memoryUse{live: 100 << 20, held: 300 << 20}
	polls := func(n int, allocate uint64) (times int) {
		for range n {
			use.allocated += allocate
			if b.over(use) {
				times++
			}
		}
		return times
	}
	for _, step := range []struct {
		name     string
		polls    int
		allocate uint64
		held     uint64
		times    int
	}{
		{"a burst", 10, 50 << 20, 300 << 20, 0},
		{"shortly after it", calmPolls - 1, 1000, 300 << 20, 0},
		{"the burst goes on", 1, 50 << 20, 300 << 20, 0},
		{"after it", 100, 1000, 300 << 20, 1},
		{"another one that took little", 3, 10 << 20, 115 << 20, 0},
		{"after that", 100, 1000, 115 << 20, 0},
		{"a third one", 1, 3 << 20, 400 << 20, 0},
		{"after the third", 100, calmRate - 1, 400 << 20, 1},
		{"a fourth one soon", 1, 3 << 20, 400 << 20, 0},
		{"after the fourth", 10, 1000, 400 << 20, 1},
		{"a fifth one at once", 1, 3 << 20, 400 << 20, 0},
		{"after the fifth", pause - 15, 1000, 400 << 20, 0},
		{"later", 15, 1000, 400 << 20, 1},
	} {
		use.held = step.held
		if got := polls(step.polls, step.allocate); got != step.times {
			t.Errorf("%s: given back %d times, want %d", step.name, got, step.times)
		}
	}
}
