package memory

import (
	"runtime"
	"sync/atomic"
)

// RouteChanges counts the changes of routes by BGP. It is safe for concurrent use.
type RouteChanges struct {
	count atomic.Uint64 // since the start
	known atomic.Uint64 // those that the receiver of many, or of poll, knows
	many  chan struct{} // receives when learnRate changes came that the receiver does not know
}

func NewRouteChanges() *RouteChanges { return &RouteChanges{many: make(chan struct{}, 1)} }

// Add counts n changes.
func (f *RouteChanges) Add(n int) {
	if count := f.count.Add(uint64(n)); count-f.known.Load() >= learnRate {
		f.known.Store(count)
		notify(f.many)
	}
}

// poll returns the number of changes so far.
func (f *RouteChanges) poll() uint64 {
	count := f.count.Load()
	f.known.Store(count)
	return count
}

// notify puts a token into a channel that holds one, if it is empty.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// eachCollection calls f soon after each garbage collection. f must not block.
func eachCollection(f func()) {
	type marker struct{ _ *marker } // with a pointer: the runtime may keep other small objects together
	runtime.AddCleanup(new(marker), func(struct{}) {
		eachCollection(f)
		f()
	}, struct{}{})
}
