// Package election elects one of several candidates, which leads while it renews a lease in the datastore.
package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/retry"
)

// Lease has the datastore's operations for one campaign. Calls are sequential, except for Taken, which runs
// concurrently with Renew.
type Lease interface {
	// Free returns nil when the datastore shows no holder of the lease, or this campaign as the holder. The error Is
	// ErrTaken if another candidate was faster.
	Free(ctx context.Context) error
	// Claim takes the lease. It returns the time until which no other candidate can have it. The error Is ErrTaken if
	// another candidate was faster.
	Claim(ctx context.Context) (until time.Time, err error)
	// Renew extends the lease. An error that Is datastore.ErrNotLeading ends the lease; after any other error Renew is
	// called again.
	Renew(ctx context.Context) (until time.Time, err error)
	// Taken returns nil when the entry of this campaign in the datastore was deleted or replaced.
	Taken(ctx context.Context) error
	// Release releases the lease after the last Renew, so that others need not wait for its expiry.
	Release(ctx context.Context) error
}

// ErrTaken is the error of a late claim: another candidate leads.
var ErrTaken = errors.New("another candidate leads")

const (
	// DefaultTTL is the lifetime of a lease without renewal.
	DefaultTTL = 15 * time.Second
	// A lease is renewed three times in its lifetime. The leader stops a fifth of it early: clocks may differ in speed.
	renewals, reserve = 3, 5
	// scatter spreads the candidates after a leader's end, so that most find the next one in place.
	scatter = 100 * time.Millisecond
)

// backoff is the pause before another call to a datastore that does not answer.
var backoff = retry.Backoff{Min: 50 * time.Millisecond, Max: 10 * time.Second, Spread: true}

// End returns the time at which a leader stops if its lease was claimed or renewed by a call sent at the given time.
func End(sent time.Time, ttl time.Duration) time.Time { return sent.Add(ttl - ttl/reserve) }

// Every returns the interval between renewals, which is also the timeout of each.
func Every(ttl time.Duration) time.Duration { return ttl / renewals }

// Campaign is one candidate of an election.
type Campaign struct {
	Election, Candidate string
	// TTL is the lifetime of the lease without renewal.
	TTL time.Duration
	// Closed ends when the store is closed; the store waits for Tasks.
	Closed context.Context
	Tasks  *sync.WaitGroup
	Log    *zap.Logger
}

var electionName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

// Run returns when the candidate leads, or with an error when ctx ends or the datastore refuses. The end of ctx also
// ends leadership.
func (c Campaign) Run(ctx context.Context, lease Lease) (datastore.Leadership, error) {
	if !electionName.MatchString(c.Election) || c.Candidate == "" {
		return nil, fmt.Errorf("election %q with candidate %q: want a name of lower-case letters, digits, dots and "+
			"dashes, and a candidate", c.Election, c.Candidate)
	}
	c.Tasks.Add(1)
	defer c.Tasks.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.Closed, func() { cancel(errors.New("the store was closed")) })
	until, err := c.win(ctx, lease)
	if err != nil {
		stop()
		cancel(nil)
		return nil, fmt.Errorf("election %s: %w", c.Election, err)
	}
	l := &leadership{Campaign: c, lease: lease, until: until, ctx: ctx, cancel: cancel, stop: stop,
		done: make(chan struct{})}
	c.Tasks.Go(l.hold)
	return l, nil
}

// win returns when the candidate leads.
func (c Campaign) win(ctx context.Context, lease Lease) (until time.Time, err error) {
	logged := ""
	for failures := 0; ; {
		err := lease.Free(ctx)
		if err == nil && !retry.Sleep(ctx, rand.N(scatter)) {
			err = context.Cause(ctx)
		}
		if err == nil {
			until, err = lease.Claim(ctx)
			if err == nil && time.Now().Before(until) {
				return until, nil
			}
			if err == nil {
				err = errors.New("the datastore confirmed the lease after its end")
			}
		}
		switch {
		case ctx.Err() != nil:
			return until, context.Cause(ctx)
		case errors.Is(err, datastore.ErrUnauthorized):
			return until, err
		case errors.Is(err, ErrTaken):
			failures = 0
			continue
		}
		if text := err.Error(); text != logged {
			logged = text
			c.Log.Warn("there is no leader, and this candidate cannot become it, trying again",
				zap.String("election", c.Election), zap.Error(err))
		}
		failures++
		if !retry.Sleep(ctx, backoff.After(failures)) {
			return until, context.Cause(ctx)
		}
	}
}

// leadership implements datastore.Leadership.
type leadership struct {
	Campaign
	lease  Lease
	until  time.Time // no other candidate can lead before
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool
	done   chan struct{} // closed when the renewals have ended
}

// Context implements datastore.Leadership.
func (l *leadership) Context() context.Context { return l.ctx }

// hold renews the lease until leadership ends.
func (l *leadership) hold() {
	defer close(l.done)
	defer l.stop()
	end := time.AfterFunc(time.Until(l.until), func() { l.lost("the datastore did not renew the lease in time") })
	defer end.Stop()
	l.Tasks.Go(func() {
		if l.lease.Taken(l.ctx) == nil {
			l.lost("its entry in the datastore is gone")
		}
	})
	for retry.Sleep(l.ctx, Every(l.TTL)) {
		for {
			until, err := l.lease.Renew(l.ctx)
			if err == nil {
				end.Reset(time.Until(until))
				break
			}
			if errors.Is(err, datastore.ErrNotLeading) {
				l.cancel(err)
			}
			if !retry.Sleep(l.ctx, Every(l.TTL)/10) {
				return
			}
		}
	}
}

// lost ends leadership.
func (l *leadership) lost(why string) { l.cancel(fmt.Errorf("%w: %s", datastore.ErrNotLeading, why)) }

// Resign implements datastore.Leadership.
func (l *leadership) Resign(ctx context.Context) error {
	l.cancel(datastore.ErrNotLeading)
	<-l.done
	return l.lease.Release(ctx)
}

// Persist calls once until it succeeds. It continues after lost connections, and fails when ctx ends or the datastore
// refuses.
func Persist(ctx context.Context, once func(context.Context) error) error {
	return backoff.Repeat(ctx, once, func(err error) bool { return !errors.Is(err, datastore.ErrUnauthorized) })
}

// Observe implements the method of datastore.Elector. follow calls each with the leader's current name, empty for none,
// and then after each change, until each returns false.
func (c Campaign) Observe(ctx context.Context, follow func(context.Context, func(leader string) bool) error,
) <-chan string {
	out := make(chan string)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.Closed, cancel)
	c.Tasks.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		last, sent := "", false
		for ctx.Err() == nil {
			err := follow(ctx, func(name string) bool {
				if sent && name == last {
					return true
				}
				last, sent = name, true
				select {
				case out <- name:
				case <-ctx.Done():
				}
				return ctx.Err() == nil
			})
			if ctx.Err() != nil {
				return
			}
			c.Log.Warn("the leader cannot be observed", zap.String("election", c.Election), zap.Error(err))
			if !retry.Sleep(ctx, backoff.Max) {
				return
			}
		}
	})
	return out
}
