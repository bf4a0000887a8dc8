package forget

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Queue collects addresses whose connections are to be deleted. Reading the kernel's table takes time, so addresses
// that come meanwhile are one batch of the next turn. A failure is retried until it succeeds. The zero value deletes
// none.
type Queue struct {
	Connections conntrack.Connections // nil: connections stay
	Loop        *reconcile.Loop
	Now         func() time.Time
	// Trouble begins the text of a failure: what is wrong as long as the connections stay.
	Trouble string
	// Rest bounds the work: after a turn the queue rests this many times as long as it took.
	Rest int

	mu         sync.Mutex
	stale      []netip.Addr // whose connections are to be forgotten
	forgetting bool
	turn       []netip.Addr // of which the connections are being forgotten
	attempts   int          // that failed in a row
	retryAt    time.Time
	ended      time.Time     // the last turn
	took       time.Duration // that turn
	rest       int           // after it: less than Rest if addresses that came since its start are urgent
	err        error         // of the last attempt
}

// Add puts addresses in the queue, with the next turn as soon as the queue has rested.
func (q *Queue) Add(list ...netip.Addr) { q.add(list, q.Rest) }

// AddUrgent is Add for addresses that somebody else has already: the rest is at most that many times as long as the
// last turn.
func (q *Queue) AddUrgent(rest int, list ...netip.Addr) { q.add(list, min(q.Rest, rest)) }

func (q *Queue) add(list []netip.Addr, rest int) {
	if q.Connections == nil || len(list) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stale, q.retryAt, q.rest = append(q.stale, list...), time.Time{}, min(q.rest, rest)
}

// Hurry shortens the rest as AddUrgent does if one of the addresses waits for its turn.
func (q *Queue) Hurry(rest int, list []netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if slices.ContainsFunc(list, func(a netip.Addr) bool { return slices.Contains(q.stale, a) }) {
		q.rest = min(q.rest, rest)
	}
}

// Has reports whether connections of an address are still to be forgotten.
func (q *Queue) Has(a netip.Addr) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Contains(q.stale, a) || slices.Contains(q.turn, a)
}

// Flush begins a turn if it is due.
func (q *Queue) Flush() {
	addresses := q.begin()
	if len(addresses) == 0 {
		return
	}
	q.Loop.Go(func() {
		began := q.Now()
		_, err := q.Connections.ForgetConnections(addresses)
		q.end(addresses, q.Now().Sub(began), err)
	})
}

// begin returns the addresses of the next turn, none if it is not due.
func (q *Queue) begin() []netip.Addr {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.forgetting || q.Now().Before(q.due()) {
		return nil
	}
	slices.SortFunc(q.stale, netip.Addr.Compare)
	addresses := slices.Compact(q.stale)
	if len(addresses) > 0 {
		q.stale, q.turn, q.forgetting, q.rest = nil, addresses, true, q.Rest
	}
	return addresses
}

// due is when the next turn may begin. The lock is held.
func (q *Queue) due() time.Time {
	rested := q.ended.Add(time.Duration(q.rest) * q.took)
	if rested.After(q.retryAt) {
		return rested
	}
	return q.retryAt
}

func (q *Queue) end(addresses []netip.Addr, took time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turn, q.forgetting, q.err, q.ended, q.took = nil, false, nil, q.Now(), took
	if err == nil {
		q.attempts = 0
		return
	}
	q.attempts++
	q.retryAt = q.Now().Add(reconcile.DefaultBackoff.After(q.attempts))
	q.err = fmt.Errorf("%s: %s (of %d): %w", q.Trouble, addresses[0], len(addresses), err)
	q.stale = append(q.stale, addresses...)
}

// Retry makes the next attempt due.
func (q *Queue) Retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retryAt = time.Time{}
}

// Next returns how long the next turn waits, pause if that is shorter or there is none.
func (q *Queue) Next(pause time.Duration) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.forgetting || len(q.stale) == 0 {
		return pause
	}
	wait := q.due().Sub(q.Now())
	if pause <= 0 || wait < pause {
		return wait
	}
	return pause
}

// Problem is the error of the last attempt, nil if it succeeded.
func (q *Queue) Problem() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}
