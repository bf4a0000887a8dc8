package reconcile

import (
	"context"
	"time"
)

// Loop calls a step whenever it was triggered and when the step asked to be called again; triggers that come while
// the step runs are one.
type Loop struct {
	wake chan struct{}
	// After is the clock: time.After, or a test's.
	After func(time.Duration) <-chan time.Time
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

// Run calls step at once and after each trigger, until ctx ends. A step that returns a positive duration is called
// again after it, even without a trigger.
func (l *Loop) Run(ctx context.Context, step func() time.Duration) {
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
