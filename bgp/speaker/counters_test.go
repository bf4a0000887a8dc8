package speaker

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestCountingIsBounded: with any number of callers, GoBGP counts for one at a time, with long pauses.
func TestCountingIsBounded(t *testing.T) {
	var b budget
	var counts atomic.Int32
	release, entered := make(chan struct{}), make(chan struct{}, 9)
	count := func() { counts.Add(1); entered <- struct{}{}; <-release }
	done := make(chan struct{})
	for range 8 {
		go func() { b.spend(time.Hour, count); done <- struct{}{} }()
	}
	<-entered
	for range 8 { // no caller waits for a slow count
		<-done
	}
	close(release)
	b.spend(time.Hour, count) // the end of the first one
	b.spend(time.Hour, count)
	if n := counts.Load(); n != 1 {
		t.Errorf("counted %d times, want once in an hour", n)
	}
}
