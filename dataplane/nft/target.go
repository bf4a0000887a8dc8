package nft

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/retry"
)

const (
	// DefaultCompare is the time after which the whole table is compared without a reason.
	DefaultCompare = 10 * time.Minute
	// slow is the pause when the kernel lacks the feature as a whole: an administrator may load a module.
	slow = time.Minute
	// transient is how often in a row an error counts as transient.
	transient = 3
)

// Target applies the desired table to the kernel. Not safe for concurrent use.
type Target struct {
	// Compare is the interval between comparisons with the kernel's table. Set it before the first Flush.
	Compare time.Duration
	// OnCommit, if set, is called for each transaction that the kernel accepted, with its duration.
	OnCommit func(d time.Duration, c ruleset.Changes)
	// Refused names the counter of packets that are dropped in place of refused rules; empty for none.
	Refused string

	kernel  nftables.Rules
	now     func() time.Time
	backoff retry.Backoff

	table     *ruleset.Table
	stale     bool          // the kernel's content is unknown
	known     bool          // the kernel had the whole desired state before pending
	pending   map[unit]bool // changed since the kernel last had the whole desired state
	compareAt time.Time
	ahead     bool      // something was committed ahead of the other changes
	waitUntil time.Time // nothing is tried before, after a failure of the whole
	failure   error     // that failure
	failures  int       // of the whole, in a row

	refused map[unit]*refusal
	users   map[string]string // chains that are replaced because they name a refused set

	repairs     []reconcile.Repair
	moreRepairs int
	lost        bool // see TakeLost
	status      Status
}

// refusal records a refused unit.
type refusal struct {
	reason   string
	since    time.Time
	attempts int
	retryAt  time.Time
}

// Result is the outcome of a Flush.
type Result struct {
	Transactions int   // accepted by the kernel
	Compared     bool  // with the whole table in the kernel
	Refused      int   // units that are replaced
	Err          error // why nothing could be done, or not all that was tried
}

// New makes a target of which nothing is known yet. now is the clock.
func New(k nftables.Rules, now func() time.Time) *Target {
	return &Target{
		Compare: DefaultCompare, kernel: k, now: now, backoff: reconcile.DefaultBackoff,
		stale: true, pending: map[unit]bool{}, refused: map[unit]*refusal{}, status: Status{Since: now()},
	}
}

// Resync makes the next Flush compare with the kernel's table: another program changed it, or may have.
func (g *Target) Resync() { g.stale = true }

// Retry makes the next Flush retry all failures without waiting for their time, and compare with the kernel's content.
func (g *Target) Retry() {
	for _, r := range g.refused {
		r.retryAt, r.attempts = time.Time{}, 0
	}
	g.stale, g.waitUntil, g.failures = true, time.Time{}, 0
}

// Flush commits the changes of t since the last call, as one transaction if the kernel accepts it. It compares with the
// kernel's table first if that is unknown. After a failure of the whole it waits, and returns the error of that failure
// until then. It returns after which time to be called again even if nothing changes; 0 for never.
func (g *Target) Flush(t *ruleset.Table) (Result, time.Duration) {
	g.table = t
	c := t.TakeChanges()
	g.touch(c)
	var r Result
	before := g.status.Transactions
	switch now := g.now(); {
	case now.Before(g.waitUntil):
		r.Err = g.failure // the kernel does not have these changes either
	case g.stale || g.due(now) || !now.Before(g.compareAt) || !g.independent(c):
		r.Compared = true
		r.Err = g.settle(g.compare())
	case !c.Empty():
		r.Err = g.commitChanges(c, &r)
	}
	g.noteSync()
	r.Transactions, r.Refused = int(g.status.Transactions-before), len(g.refused)
	return r, g.wait()
}

// touch records the units that change: refused ones are tried again at once.
func (g *Target) touch(c ruleset.Changes) {
	for _, u := range units(c) {
		g.pending[u] = true
		if r := g.refused[u]; r != nil {
			r.retryAt, r.attempts = time.Time{}, 0
		}
	}
}

// due reports whether a refused unit is to be tried again.
func (g *Target) due(now time.Time) bool {
	for _, r := range g.refused {
		if !now.Before(r.retryAt) {
			return true
		}
	}
	return false
}

// independent reports whether changes fit the kernel's table although that has replacements: chains that drop all are
// there under their names, but refused sets and the rules that name them differ from the premise of the changes.
func (g *Target) independent(c ruleset.Changes) bool {
	if c.Empty() || len(g.refused) == 0 {
		return true
	}
	for u := range g.refused {
		ch := g.table.Chain(u.name)
		if u.kind != chain || ch == nil || ch.Base != nil {
			return false
		}
	}
	return true
}

// commitChanges is the usual way: the kernel has all earlier changes, so only these remain.
func (g *Target) commitChanges(c ruleset.Changes, r *Result) error {
	err := g.commit(c)
	switch {
	case err == nil:
		clear(g.pending)
		return g.settle(nil)
	case passes(err), hopeless(err):
		return g.settle(err)
	}
	r.Compared = true // perhaps it was refused because the kernel's table differs from the expected one
	return g.settle(g.compare())
}

// settle records the outcome of an attempt as a whole.
func (g *Target) settle(err error) error {
	g.stale, g.failure = err != nil, err
	if err == nil {
		g.failures, g.waitUntil, g.status.LastError = 0, time.Time{}, ""
		return nil
	}
	g.failures++
	pause := g.backoff.After(g.failures)
	if hopeless(err) {
		pause = slow
	}
	g.waitUntil, g.status.LastError = g.now().Add(pause), err.Error()
	return err
}

// commit makes the changes in one transaction. Objects that nothing names yet may go ahead in one of their own,
// invisible to packets, since there are two things that the kernel does not show at one stroke:
//   - a packet finds the elements of a new interval set only when the kernel has ended the transaction, some time after
//     it meets the new rules;
//   - a packet that is on its way may find a new entry of a verdict map and follow it to a chain that is still empty to
//     it.
func (g *Target) commit(c ruleset.Changes) error {
	ahead, rest := split(c)
	if ahead.Empty() || rest.Empty() {
		return g.transact(c)
	}
	switch err := g.transact(ahead); {
	case err == nil:
		g.ahead = true
		return g.transact(rest)
	case passes(err), hopeless(err):
		return err
	}
	return g.transact(c)
}

// split takes new sets and chains out of changes if they have to go ahead. Where there are new maps, the table is new
// or has new stages, and there is nothing to go on as it was.
func split(c ruleset.Changes) (ahead, rest ruleset.Changes) {
	entries, sets := false, false
	for _, m := range c.Maps {
		entries = entries || len(m.Add) > 0
		if m.Created {
			return ruleset.Changes{}, c
		}
	}
	rest.Maps = c.Maps
	for _, s := range c.Sets {
		if s.Created && !s.Deleted {
			ahead.Sets = append(ahead.Sets, s)
			sets = sets || s.Interval && len(s.Add) > 0
		} else {
			rest.Sets = append(rest.Sets, s)
		}
	}
	for _, ch := range c.Chains {
		if ch.Old == nil && ch.New.Base == nil {
			ahead.Chains = append(ahead.Chains, ch)
		} else {
			rest.Chains = append(rest.Chains, ch)
		}
	}
	if !sets && !(entries && len(ahead.Chains) > 0) {
		return ruleset.Changes{}, c
	}
	return ahead, rest
}

func (g *Target) transact(c ruleset.Changes) error {
	start := g.now()
	err := g.kernel.CommitRules(c)
	if err != nil {
		g.status.FailedTransactions++
		return err
	}
	g.status.Transactions++
	g.status.LastCommit = g.now().Sub(start)
	if g.OnCommit != nil {
		g.OnCommit(g.status.LastCommit, c)
	}
	return nil
}

func (g *Target) noteSync() {
	if ok := !g.stale && len(g.refused) == 0; ok != g.status.InSync {
		g.status.InSync, g.status.Since = ok, g.now()
	}
}

// wait is the time to the next scheduled work.
func (g *Target) wait() time.Duration {
	now, at := g.now(), g.compareAt
	for _, r := range g.refused {
		if r.retryAt.Before(at) {
			at = r.retryAt
		}
	}
	if g.stale {
		at = g.waitUntil
	}
	return max(at.Sub(now), time.Millisecond)
}

// passes: the error is not about the content of the request; the same may be accepted later.
func passes(err error) bool {
	for _, e := range []error{nftables.ErrUncertain, unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// hopeless: the kernel would refuse anything.
func hopeless(err error) bool {
	return errors.Is(err, nftables.ErrMissing) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}
