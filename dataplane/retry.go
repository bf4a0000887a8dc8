package dataplane

import (
	"context"
	"errors"

	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/dataplane/shape"
)

// Retried is what came of trying again what had failed in one part of the host.
type Retried struct {
	Part            string // "routes", "interfaces", "bandwidth", "endpoints" or "policy"
	Failed, Failing int    // before, and still
	Reason          string // of one that still fails
}

// ErrNotStarted is why nothing could be tried again: there is no state of the datastore to act upon yet.
var ErrNotStarted = errors.New("nothing is programmed before the datastore has been read once")

// retrier is a target of the Agent whose failures can be tried again.
type retrier interface {
	Retry()
	Failures() int
	Problem() error
}

var _, _, _ retrier = (*route.Target)(nil), (*link.Target)(nil), (*shape.Target)(nil)

// Retry tries at once everything that the kernel, or the file system, refused, compares with all that is there, and
// tells for each part what came of it. It returns ErrNotStarted, or ctx's error if the agent does not come to it
// before.
func (a *Agent) Retry(ctx context.Context) ([]Retried, error) {
	done := make(chan []Retried, 1)
	a.inbox.put(func(b *batch) { b.retries = append(b.retries, done) })
	a.loop.Trigger()
	return await(ctx, done)
}

// Retry tries at once every part of the rules that the kernel refused, compares with all that is there, and tells what
// came of it. It returns ErrNotStarted, or ctx's error if the agent does not come to it before.
func (a *PolicyAgent) Retry(ctx context.Context) (Retried, error) {
	done := make(chan Retried, 1)
	a.put(func(b *policyBatch) { b.retries, b.links = append(b.retries, done), true })
	return await(ctx, done)
}

// await waits for the answer to a Retry.
func await[T any](ctx context.Context, done <-chan T) (answer T, err error) {
	select {
	case answer, ok := <-done:
		if !ok {
			return answer, ErrNotStarted
		}
		return answer, nil
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// refuseRetry tells those who wait for a Retry that there is nothing to act upon.
func refuseRetry[T any](waiting []chan<- T) {
	for _, w := range waiting {
		close(w)
	}
}

// retry makes the next flush try again what failed. The returned function tells those who wait what came of it.
func (a *Agent) retry(waiting []chan<- []Retried) func() {
	if len(waiting) == 0 {
		return func() {}
	}
	parts := []retrier{a.routes, a.links, a.shapes}
	list := []Retried{{Part: "routes"}, {Part: "interfaces"}, {Part: "bandwidth"}}
	if a.files.target != nil {
		parts, list = append(parts, a.files.target), append(list, Retried{Part: "endpoints"})
	}
	for i, p := range parts {
		list[i].Failed = p.Failures()
		p.Retry()
	}
	return func() {
		for i, p := range parts {
			list[i].Failing = p.Failures()
			if err := p.Problem(); err != nil {
				list[i].Reason = err.Error()
			}
		}
		for _, w := range waiting {
			w <- list
		}
	}
}

// retry makes the next flush try again what failed. The returned function tells those who wait what came of it.
func (a *PolicyAgent) retry(waiting []chan<- Retried) func() {
	if len(waiting) == 0 {
		return func() {}
	}
	r := Retried{Part: "policy"}
	r.Failed, _ = a.target.Failing()
	a.target.Retry()
	return func() {
		r.Failing, r.Reason = a.target.Failing()
		for _, w := range waiting {
			w <- r
		}
	}
}
