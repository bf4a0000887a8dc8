package reconcile

import (
	"context"
	"testing"
	"time"
)

func TestLoopCoalescesTriggers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := NewLoop()
	timer := make(chan time.Time)
	l.After = func(time.Duration) <-chan time.Time { return timer }
	steps, release := make(chan int), make(chan time.Duration)
	done := make(chan struct{})
	go func() {
		n := 0
		l.Run(ctx, func() time.Duration {
			n++
			steps <- n
			return <-release
		})
		close(done)
	}()
	if <-steps != 1 {
		t.Fatal("no step at start")
	}
	for range 100 {
		l.Trigger()
	}
	release <- 0
	if <-steps != 2 {
		t.Fatal("no step after triggers")
	}
	release <- time.Second // 100 triggers were one: only the timer wakes it now
	timer <- time.Time{}
	if <-steps != 3 {
		t.Fatal("no step after the timer")
	}
	cancel()
	release <- 0
	<-done
}
