package server

import (
	"cmp"
	"sync"
	"time"
)

const (
	// patience is how long a call of take waits for a part that is usually read at once.
	patience = 300 * time.Millisecond
	// longestStep is how long a part may work on one change. Very many rules take the kernel some ten seconds.
	longestStep = 5 * time.Minute
	// longestAnswer is how long the BGP speaker may take to answer. It evaluates 500,000 routes of a peer again in
	// seven seconds on a busy machine, and answers nothing meanwhile.
	longestAnswer = 2 * time.Minute
)

// reading keeps the last state of a part that cannot be read during a step. One step may take long: one transaction of
// very many rules takes the kernel many seconds. Then probes and metrics get the state before. The zero value is ready.
type reading[T any] struct {
	longest time.Duration // 0: longestStep

	mu    sync.Mutex
	last  T
	began time.Time
	done  chan struct{} // closed at the end of the read that began then; nil: none is under way
}

// take returns the result of read. If that takes its time, late is true and the state is the one before, the zero value
// at first. A read that takes longer than longest may never end: take waits for it, so that /livez fails. The
// caller must not change the state.
func (r *reading[T]) take(read func() T) (state T, late bool) {
	for called := time.Now(); ; {
		began, done := r.start(read)
		if busy := time.Since(began); busy < cmp.Or(r.longest, longestStep) {
			select {
			case <-done:
			case <-time.After(patience - busy):
				return r.newest(), true
			}
		}
		<-done
		if !began.Before(called) { // an earlier read may have a state from before this call
			return r.newest(), false
		}
	}
}

// start begins to read, unless a read is under way.
func (r *reading[T]) start(read func() T) (began time.Time, done <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.began, r.done = time.Now(), make(chan struct{})
		go func() {
			state := read()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.last = state
			close(r.done)
			r.done = nil
		}()
	}
	return r.began, r.done
}

func (r *reading[T]) newest() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// asOf completes the reason of a check for people.
func asOf(reason string, late bool) string {
	if late {
		reason += " (before a change that is under way, and takes long)"
	}
	return reason
}
