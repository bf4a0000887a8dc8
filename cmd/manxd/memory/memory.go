// Package memory bounds the memory of the daemon: it sets the garbage collector by the use of memory and the rate of
// route changes, and returns unused memory to the host.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	smallMemory = 256 << 20
	smallHeap   = 64 << 20
	burstHeap   = 112 << 20
	memoryPoll  = time.Second
)

// Tune trades memory for processor time, within a bound. The garbage collector runs seldom until the heap has 64
// MB, and then when it has one and a half of the live bytes: memory between objects that stay cannot be returned, so
// the garbage of a burst costs memory permanently. While many routes arrive, it runs when the heap has 112 MB, and a
// larger heap may have up to three times the live bytes: routes live elsewhere than their garbage, and earlier
// collection costs a third more processor time at the worst moment. So the first 100,000 routes cost three collections;
// with 128 MB they cost as many. The memory limit is 256 MB until the use is known, or two and a half times the use;
// with a constant limit the collector would run all the time once a peer advertises some 100,000 routes. Before many
// routes come, and after a burst, the mapped pages of the program's file are returned to the host: most were used by
// the start alone. After a burst, a start or a full table for instance, so is unused memory. GOGC and GOMEMLIMIT
// override all of this.
func Tune(ctx context.Context, routes *RouteChanges) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	tick := time.NewTicker(memoryPoll)
	defer tick.Stop()
	tune(ctx, routes, tick.C)
}

// tune adapts the settings after each collection: at a start the live bytes grow several times over between two polls,
// and the percentage for a small heap would let a larger one grow to twice its size.
func tune(ctx context.Context, routes *RouteChanges, polls <-chan time.Time) {
	collected := make(chan struct{}, 1)
	eachCollection(func() { notify(collected) })
	var limits runtimeLimits
	limits.follow(0, false)
	var burst burst
	for {
		over := false
		select {
		case <-ctx.Done():
			return
		case <-collected:
		case <-routes.many:
			if burst.learn() {
				forgetProgram()
			}
		case <-polls:
			over = burst.over(readMemory(routes.poll()))
		}
		limits.follow(readMemory(0).live, burst.learning())
		if over {
			debug.FreeOSMemory()
			forgetProgram()
		}
	}
}

// runtimeLimits are the settings of the garbage collector. Each change stops the program for a moment.
type runtimeLimits struct {
	percent int
	limit   int64
}

// follow adapts the settings to the live bytes.
func (l *runtimeLimits) follow(live uint64, learning bool) {
	if percent := gcPercent(live, learning); percent != l.percent {
		l.percent = percent
		debug.SetGCPercent(percent)
	}
	if limit := memoryLimit(live); limit != l.limit {
		l.limit = limit
		debug.SetMemoryLimit(limit)
	}
}

// memoryUse has the runtime's figures, in bytes.
type memoryUse struct {
	live      uint64 // in use at the last garbage collection
	held      uint64 // of the host's memory
	allocated uint64 // since the start
	learned   uint64 // changes of routes by BGP since the start
}

func readMemory(learned uint64) memoryUse {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return memoryUse{live: s[0].Value.Uint64(), held: s[1].Value.Uint64() - s[2].Value.Uint64(),
		allocated: s[3].Value.Uint64(), learned: learned}
}

// Values of GOGC: between bursts, and the most there and during one.
const often, seldom, rarely = 50, 400, 2000

// gcPercent returns the growth of the heap, in percent, until the next garbage collection when live bytes are in use.
func gcPercent(live uint64, learning bool) int {
	if learning {
		return int(min(rarely, roomInBurst(live)*100/max(1, live)))
	}
	if live >= smallHeap {
		return often
	}
	room := (smallHeap - live) * 100 / max(1, live)
	return int(min(seldom, max(often, room/10*10))) // in steps that do not change with each route
}

// roomInBurst returns the bytes to allocate until the next garbage collection while many routes come: the rest of
// burstHeap while that is at least half of it, then more and more, at most twice the live bytes.
func roomInBurst(live uint64) uint64 {
	if live <= burstHeap/2 {
		return burstHeap - live
	}
	return min(2*live, 3*live-burstHeap)
}

// memoryLimit returns the memory limit of the process when live bytes are in use, in steps, so that it does not change
// with each route.
func memoryLimit(live uint64) int64 {
	const step = 32 << 20
	return max(smallMemory, int64((5*live/2+step-1)/step*step))
}

const (
	calmPolls = 5       // polls without one until a burst is over
	calmRate  = 2 << 20 // largest number of bytes allocated from poll to poll outside a burst
	learnRate = 2000    // changes of routes from poll to poll in a burst of routes
	worthIt   = 8 << 20 // smallest number of bytes to return to the host
	pause     = 60      // polls between two returns of memory, which each collect all garbage
)

// burst detects the end of a burst of work.
type burst struct {
	before     uint64
	calm       int    // polls since its end
	spent      bool   // its memory was returned
	wait       int    // polls until memory may be returned again
	start      uint64 // allocated bytes at its start
	learned    uint64 // changes of routes before
	learnPolls int    // polls until memory is not traded for processor time any more
}

// learn records that many routes came, and reports whether they are the first ones.
func (b *burst) learn() (first bool) {
	first = b.learnPolls == 0
	b.learnPolls = calmPolls
	return first
}

// learning reports whether many routes came a short time ago.
func (b *burst) learning() bool { return b.learnPolls > 0 }

// over processes the memory in use at each poll. It returns true once after each burst if memory should be returned to
// the host: if that is worth a garbage collection and the last return was a while ago.
func (b *burst) over(use memoryUse) bool {
	calm := use.allocated-b.before < calmRate
	b.learnPolls = max(0, b.learnPolls-1)
	if use.learned-b.learned >= learnRate {
		b.learn()
	}
	b.learned = use.learned
	if b.spent && !calm {
		b.start = b.before
	}
	b.before = use.allocated
	b.wait = max(0, b.wait-1)
	if !calm {
		b.calm, b.spent = 0, false
		return false
	}
	b.calm++
	if b.spent || b.calm < calmPolls || b.wait > 0 {
		return false
	}
	b.spent = true
	// Memory in use at the last collection may have become garbage since, if so much was allocated.
	much := use.held > use.live+use.live/8+worthIt || use.allocated-b.start > use.live
	if much {
		b.wait = pause
	}
	return much
}
