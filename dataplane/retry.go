package dataplane

import (
	"context"
	"errors"
)

// Retried is the result of a retry in one part of the host.
type Retried struct {
	Part            string // "routes", "interfaces", "neighbours", "bandwidth", "endpoints" or "policy"
	Failed, Failing int    // before, and still
	Reason          string // of one that still fails
}

// ErrNotStarted is the error of a retry before the start: there is no state of the datastore to act upon yet.
var ErrNotStarted = errors.New("nothing is programmed before the datastore has been read once")

// requestRetry retries at once every failed step of the kernel, or the file system, compares with the actual state, and
// returns the result for each part. It returns ErrNotStarted, or ctx's error if the agent does not come to it before.
func (a *Agent) requestRetry(ctx context.Context) ([]Retried, error) {
	done := make(chan []Retried, 1)
	a.put(func(b *batch) { b.retries = append(b.retries, done) })
	select {
	case answer, ok := <-done:
		if !ok {
			return nil, ErrNotStarted
		}
		return answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// refuseRetry ends the waits of requestRetry's callers, because there is no state to act upon.
func refuseRetry(waiting []chan<- []Retried) {
	for _, w := range waiting {
		close(w)
	}
}

// retry makes the next flush retry failed steps. The returned function passes the results to the waiting callers.
func (a *Agent) retry(waiting []chan<- []Retried) func() {
	if len(waiting) == 0 {
		return func() {}
	}
	failed := map[string]int{}
	for _, h := range a.health() {
		failed[h.Part] = h.Failures
	}
	for _, t := range a.targets {
		t.Retry()
	}
	return func() {
		var list []Retried
		for _, h := range a.health() {
			r := Retried{Part: h.Part, Failed: failed[h.Part], Failing: h.Failures}
			if h.Problem != nil {
				r.Reason = h.Problem.Error()
			}
			list = append(list, r)
		}
		for _, w := range waiting {
			w <- list
		}
	}
}
