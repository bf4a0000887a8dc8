package reconcile

import (
	"context"
	"sync"
	"time"
)

// Loop calls a step whenever it was triggered and at the time that the step returned; triggers that come while the step
// runs are one.
type Loop struct {
	wake chan struct{}
	// After is the clock: time.After, or a test's.
	After func(time.Duration) <-chan time.Time
	// Background runs the functions of Go, in a goroutine if it is nil.
	Background func(func())

	working sync.WaitGroup
}

// NewLoop makes a Loop on the system's clock.
func NewLoop() *Loop { return &Loop{wake: make(chan struct{}, 1), After: time.After} }

// Trigger makes the loop call its step soon. It never blocks.
func (l *Loop) Trigger() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Go runs f beside the loop, for work that would hold up the steps, and triggers a step at its end.
func (l *Loop) Go(f func()) {
	work := func() {
		f()
		l.Trigger()
	}
	if l.Background != nil {
		l.Background(work)
		return
	}
	l.working.Go(work)
}

// Wait returns when nothing runs beside the loop any more.
func (l *Loop) Wait() { l.working.Wait() }

// Run calls step at once and after each trigger, until ctx ends. A step that returns a positive duration is called
// again after it, even without a trigger. Run returns when the functions of Go have ended, too.
func (l *Loop) Run(ctx context.Context, step func() time.Duration) {
	defer l.Wait()
	for ctx.Err() == nil {
		var timer <-chan time.Time
		if again := step(); again > 0 {
			timer = l.After(again)
		}
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer:
		}
	}
}
