package cni

import (
	"context"
	"sync"
	"time"
)

// deadline is a context that ends at a time. Its timer starts when something waits for that: a timer starts the
// runtime's poller and a thread, and a request to manxd needs neither.
type deadline struct {
	end  time.Time
	once sync.Once
	real context.Context
	stop context.CancelFunc
}

func within(d time.Duration) *deadline { return &deadline{end: time.Now().Add(d)} }

func (d *deadline) context() context.Context {
	d.once.Do(func() { d.real, d.stop = context.WithDeadline(context.Background(), d.end) })
	return d.real
}

// cancel ends the context.
func (d *deadline) cancel() {
	d.once.Do(func() { d.real, d.stop = context.WithCancel(context.Background()) })
	d.stop()
}

// Deadline implements context.Context.
func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }

// Done implements context.Context.
func (d *deadline) Done() <-chan struct{} { return d.context().Done() }

// Err implements context.Context.
func (d *deadline) Err() error { return d.context().Err() }

// Value implements context.Context.
func (d *deadline) Value(any) any { return nil }
