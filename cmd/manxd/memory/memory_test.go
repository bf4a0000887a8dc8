package memory

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestMemoryLimitGrowsWithUse(t *testing.T) {
	for _, x := range []struct {
		live uint64
		want int64
	}{{0, smallMemory}, {smallMemory * 2 / 5, smallMemory}, {smallMemory*2/5 + 2, smallMemory + 32<<20},
		{1 << 30, 5 << 29},
		{1<<30 + 12<<20, 5<<29 + 32<<20}} {
		if got := memoryLimit(x.live); got != x.want {
			t.Errorf("%d bytes live: limit %d, want %d", x.live, got, x.want)
		}
	}
}

func TestGarbageOfLargeHeapsIsCollectedEarlierBetweenBursts(t *testing.T) {
	for _, x := range []struct {
		live        uint64
		calm, burst int
	}{{0, 400, 2000}, {smallHeap / 5, 400, 775}, {smallHeap / 4, 300, 600}, {smallHeap / 2, 100, 250},
		{smallHeap, 50, 125}, {burstHeap, 50, 200}, {1 << 30, 50, 200}} {
		if got := gcPercent(x.live, false); got != x.calm {
			t.Errorf("%d bytes live: GOGC %d, want %d", x.live, got, x.calm)
		}
		if got := gcPercent(x.live, true); got != x.burst {
			t.Errorf("%d bytes live in a burst: GOGC %d, want %d", x.live, got, x.burst)
		}
	}
}

// The heap of a burst stays within its bound until half of the bound is live. Above that, more live bytes never leave
// less room.
func TestHeapOfABurstIsBounded(t *testing.T) {
	for live := uint64(0); live < 4*burstHeap; live += 1 << 20 {
		room := roomInBurst(live)
		if live <= burstHeap/2 && live+room != burstHeap {
			t.Errorf("%d bytes live: the heap grows to %d", live, live+room)
		}
		if next := roomInBurst(live + 1<<20); live >= burstHeap/2 && next < room {
			t.Errorf("%d bytes live: less room with more, %d and %d", live, room, next)
		}
		if room < burstHeap/2 || live > burstHeap && room != 2*live {
			t.Errorf("%d bytes live: %d more", live, room)
		}
	}
}

// Many changes of routes cause one signal at once. Changes that a poll has returned do not count.
func TestManyRoutesAreSignalledAtOnce(t *testing.T) {
	signalled := func(f *RouteChanges) bool {
		select {
		case <-f.many:
			return true
		default:
			return false
		}
	}
	f := NewRouteChanges()
	for i, step := range []struct {
		add  int
		poll bool
		want bool
	}{{add: learnRate - 1}, {add: 1, want: true}, {add: learnRate - 1}, {poll: true}, {add: learnRate - 1},
		{add: learnRate, want: true}} {
		f.Add(step.add)
		if step.poll {
			f.poll()
		}
		if got := signalled(f); got != step.want {
			t.Errorf("step %d: signalled is %t", i, got)
		}
	}
	if f.poll() != 4*learnRate-2 {
		t.Errorf("%d changes", f.poll())
	}
	var b burst
	if !b.learn() || b.learn() || !b.learning() {
		t.Error("only the first routes begin a burst")
	}
}

func TestCollectionsAreReported(t *testing.T) {
	reports := make(chan struct{}, 100)
	eachCollection(func() { notify(reports) })
	for range 3 {
		runtime.GC()
		select {
		case <-reports:
		case <-time.After(time.Minute):
			t.Fatal("a collection is not reported")
		}
	}
}

// A burst of routes ends after several polls with few changes. A peer's pauses between UPDATEs do not end it. Other
// bursts, such as a start with many policies, are no bursts of routes.
func TestBurstOfRoutesEndsWhenItIsCalm(t *testing.T) {
	var b burst
	use := memoryUse{live: 200 << 20, held: 300 << 20}
	for i, step := range []struct {
		routes   uint64
		learning bool
	}{{0, false}, {50_000, true}, {0, true}, {learnRate, true}, {0, true}, {0, true}, {0, true}, {learnRate / 2, true},
		{0, false}, {learnRate - 1, false}, {learnRate, true}} {
		use.allocated += 50 << 20
		use.learned += step.routes
		b.over(use)
		if b.learning() != step.learning {
			t.Errorf("poll %d: learning is %t", i, b.learning())
		}
	}
}

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

// TestTheHeapOfAStartIsBounded: the live bytes that a collection finds set the next one, without a poll between them.
func TestTheHeapOfAStartIsBounded(t *testing.T) {
	was := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(was); debug.SetMemoryLimit(math.MaxInt64) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tune(ctx, NewRouteChanges(), nil)
	}()
	defer func() { cancel(); <-done }()
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	kept := make([][]byte, 0, 50)
	for range cap(kept) {
		kept = append(kept, make([]byte, 1<<20))
	}
	for end := time.Now().Add(time.Minute); percent() != often; time.Sleep(time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatalf("GOGC is %d with %d MB in use, want %d", percent(), len(kept), often)
		}
	}
	runtime.KeepAlive(kept)
}
