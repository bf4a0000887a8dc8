package server

import (
	"sync"
	"time"
)

const (
	// patience is how long a reading waits for its part, which usually answers at once.
	patience = 300 * time.Millisecond
	// longestStep is how long a part may work on one change. Very many rules take the kernel some ten seconds.
	longestStep = 5 * time.Minute
)

// reading asks a part that does not answer during a step, and one step may take long: one transaction of very many
// rules takes the kernel many seconds. Then probes and metrics get the answer before. The zero value is ready.
type reading[T any] struct {
	mu    sync.Mutex
	last  T
	began time.Time
	done  chan struct{} // closed at the end of the question that began then; nil: none is open
}

// take returns the result of read. If that takes its time, late is true and the answer is the one before, the zero
// value at first. A read that takes longer than longestStep may never end: take waits for it, so that /livez notices.
// The caller must not change the answer.
func (r *reading[T]) take(read func() T) (answer T, late bool) {
	for asked := time.Now(); ; {
		began, done := r.ask(read)
		if busy := time.Since(began); busy < longestStep {
			select {
			case <-done:
			case <-time.After(patience - busy):
				return r.newest(), true
			}
		}
		<-done
		if !began.Before(asked) { // an earlier question may have an answer from before this one
			return r.newest(), false
		}
	}
}

// ask begins to read, unless a question is open.
func (r *reading[T]) ask(read func() T) (began time.Time, done <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.began, r.done = time.Now(), make(chan struct{})
		go func() {
			answer := read()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.last = answer
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
