package retry

import (
	"fmt"
	"time"
)

// Failures are the objects whose last attempt failed, and when each is tried again. K names objects.
type Failures[K comparable] struct {
	backoff Backoff
	failed  map[K]*failure
	example K         // of failed, for messages
	retryAt time.Time // the earliest of failed
}

type failure struct {
	err      error
	attempts int
	retryAt  time.Time
}

// NewFailures makes an empty set.
func NewFailures[K comparable](backoff Backoff) *Failures[K] {
	return &Failures[K]{backoff: backoff, failed: map[K]*failure{}}
}

// Add records a failed attempt, and reports whether the object failed otherwise, or did not fail, before.
func (t *Failures[K]) Add(k K, err error, now time.Time) (news bool) {
	f := t.failed[k]
	if f == nil {
		f = &failure{}
		t.failed[k] = f
	}
	news = f.err == nil || f.err.Error() != err.Error()
	f.err = err
	f.attempts++
	f.retryAt = now.Add(t.backoff.After(f.attempts))
	t.retryBy(f.retryAt)
	return news
}

func (t *Failures[K]) retryBy(at time.Time) {
	if t.retryAt.IsZero() || at.Before(t.retryAt) {
		t.retryAt = at
	}
}

// Forgive forgets the failures of an object.
func (t *Failures[K]) Forgive(k K) {
	if len(t.failed) > 0 {
		delete(t.failed, k)
	}
}

// Of returns why the last attempt at an object failed, nil if it did not.
func (t *Failures[K]) Of(k K) error {
	if f := t.failed[k]; f != nil {
		return f.err
	}
	return nil
}

// Due calls retry for each object whose time has come. Its cost is that of all failures at those times alone.
func (t *Failures[K]) Due(now time.Time, retry func(K)) {
	if len(t.failed) == 0 || now.Before(t.retryAt) {
		return
	}
	t.retryAt = time.Time{}
	for k, f := range t.failed {
		if !now.Before(f.retryAt) {
			retry(k)
		} else {
			t.retryBy(f.retryAt)
		}
	}
}

// All calls retry for each object. How long later attempts wait starts again from the shortest time.
func (t *Failures[K]) All(retry func(K)) {
	for k, f := range t.failed {
		f.attempts = 0
		retry(k)
	}
}

// Next is when the first object is due again; ok is false if there is none.
func (t *Failures[K]) Next() (at time.Time, ok bool) { return t.retryAt, len(t.failed) > 0 }

// Len is the number of objects.
func (t *Failures[K]) Len() int { return len(t.failed) }

// Problem returns how many objects failed, with the reason of one of them, the same one as long as it fails; nil if
// none did. name is an object's for people.
func (t *Failures[K]) Problem(name func(K) string) error {
	if len(t.failed) == 0 {
		return nil
	}
	f := t.failed[t.example]
	if f == nil {
		for t.example, f = range t.failed {
			break
		}
	}
	if len(t.failed) == 1 {
		return fmt.Errorf("%s: %w", name(t.example), f.err)
	}
	return fmt.Errorf("%d changes failed, for instance %s: %w", len(t.failed), name(t.example), f.err)
}
