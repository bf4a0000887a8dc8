package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	smallMemory = 256 << 20
	memoryPoll  = time.Second
)

// tuneRuntime trades memory for processor time, up to a bound: the garbage collector runs seldom until the process has
// 256 MB, or twice what it really uses. A bound that does not grow would have the collector run all the time once a
// peer announces some 100,000 routes. GOGC and GOMEMLIMIT override this.
func tuneRuntime(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(smallMemory)
	tick := time.NewTicker(memoryPoll)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for limit := int64(smallMemory); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(live)
		if next := memoryLimit(live[0].Value.Uint64()); next != limit {
			limit = next
			debug.SetMemoryLimit(limit)
		}
	}
}

// memoryLimit is what the process may have when live bytes are in use, in steps that it does not change with each route.
func memoryLimit(live uint64) int64 {
	const step = 32 << 20
	return max(smallMemory, int64((2*live+step-1)/step*step))
}
