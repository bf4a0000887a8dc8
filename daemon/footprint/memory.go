// Package footprint bounds the memory of the daemon: garbage is collected early, and unused memory returns to the host.
package footprint

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// gcPercent is the daemon's GOGC: the heap grows to one and a half of the live bytes. Memory between objects that stay
// cannot be returned, so the garbage of a burst costs memory permanently.
const gcPercent = 50

// Tune sets the garbage collector, and after each burst of work, such as a start or a full table, it returns unused
// memory and the mapped pages of the program's file to the host: most pages were used by the start alone. It ends with
// ctx. GOGC and GOMEMLIMIT override all of this.
func Tune(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(gcPercent)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var burst burst
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if burst.over(readMemory()) {
			debug.FreeOSMemory()
			forgetProgram()
		}
	}
}

// memoryUse has the runtime's figures, in bytes.
type memoryUse struct {
	live      uint64 // in use at the last garbage collection
	held      uint64 // of the host's memory
	allocated uint64 // since the start
}

func readMemory() memoryUse {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return memoryUse{live: s[0].Value.Uint64(), held: s[1].Value.Uint64() - s[2].Value.Uint64(),
		allocated: s[3].Value.Uint64()}
}

const (
	calmPolls = 5       // polls without one until a burst is over
	calmRate  = 2 << 20 // largest number of bytes allocated from poll to poll outside a burst
	worthIt   = 8 << 20 // smallest number of bytes to return to the host
	pause     = 60      // polls between two returns of memory, which each collect all garbage
)

// burst detects the end of a burst of work.
type burst struct {
	before uint64
	calm   int    // polls since its end
	spent  bool   // its memory was returned
	wait   int    // polls until memory may be returned again
	start  uint64 // allocated bytes at its start
}

// over processes the memory in use at each poll. It returns true once after each burst if memory should be returned to
// the host: if that is worth a garbage collection and the last return was a while ago.
func (b *burst) over(use memoryUse) bool {
	calm := use.allocated-b.before < calmRate
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
