package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/manxnet/manx/retry"
)

// readAgain is the pause after a failed comparison, which grows while it fails in a row.
const readAgain = time.Second

// idle is the pause between comparisons while there is no object.
const idle = time.Hour

// Checked is a Table that is compared with all that exists every so often, since no event reports each change by
// others. It repeats and reports for a target. Not safe for concurrent use.
type Checked[K, V comparable] struct {
	Table *Table[K, V]
	// Part names the objects in the results of a retry.
	Part    string
	every   time.Duration
	now     func() time.Time
	checkAt time.Time
	failed  int   // comparisons in a row
	failure error // of the last comparison
}

// NewChecked makes a Checked that is compared at least every so often, the first time with the first Flush. now is the
// clock.
func NewChecked[K, V comparable](
	applier Applier[K, V], part string, every time.Duration, now func() time.Time,
) Checked[K, V] {
	equal := func(a, b V) bool { return a == b }
	return Checked[K, V]{Table: NewTable(applier, equal, now, DefaultBackoff), Part: part, every: every, now: now}
}

// Resync makes the next Flush compare.
func (c *Checked[K, V]) Resync() { c.checkAt = time.Time{} }

// Retry makes the next Flush retry failed steps, and compare.
func (c *Checked[K, V]) Retry() {
	c.Table.retryAll()
	c.Resync()
}

// Due reports whether it is time to compare.
func (c *Checked[K, V]) Due() bool { return !c.now().Before(c.checkAt) }

// Compare compares with all that exists, after prepare, which may be nil. After an error of either it is due again
// soon, and nothing is changed.
func (c *Checked[K, V]) Compare(prepare func() error) error {
	if prepare != nil {
		c.failure = prepare()
	} else {
		c.failure = nil
	}
	if c.failure == nil {
		c.failure = c.Table.Resync()
	}
	pause := c.every
	if c.failed++; c.failure == nil {
		c.failed = 0
	} else {
		pause = retry.Backoff{Min: readAgain, Max: c.every}.After(c.failed)
	}
	c.checkAt = c.now().Add(pause)
	return c.failure
}

// Failure returns the error of the last comparison, also while changes are applied between two of them.
func (c *Checked[K, V]) Failure() error { return c.failure }

// Flush compares if that is due, and applies the desired objects. It returns the number of changes that were tried and
// of failures.
func (c *Checked[K, V]) Flush() (steps, failures int, err error) {
	if c.Due() {
		if err := c.Compare(nil); err != nil {
			return 0, 0, err
		}
	}
	steps, failures = c.Table.Flush()
	return steps, failures, c.failure
}

// Next returns how long the next Flush may wait if nothing happens before.
func (c *Checked[K, V]) Next() time.Duration {
	at := c.checkAt
	if retry, ok := c.Table.Next(); ok && retry.Before(at) {
		at = retry
	}
	return max(at.Sub(c.now()), time.Millisecond)
}

// Rest postpones the next comparison if there is no object: then there is nothing that others could change.
func (c *Checked[K, V]) Rest() {
	if c.Table.Len() == 0 {
		c.checkAt = c.now().Add(idle)
	}
}

// Health returns the health of the objects.
func (c *Checked[K, V]) Health() Health {
	return Health{Part: c.Part, Failures: c.Table.Failures(), Problem: c.Table.problem()}
}

// Notices returns one for each object that is not as desired and cannot be made so, by their names.
func (c *Checked[K, V]) Notices() (list []Notice) {
	for k, s := range c.Table.All() {
		if s.Phase == Failed || s.Phase == Removing && s.Reason != "" {
			list = append(list, Notice{Subject: fmt.Sprint(k), Text: s.Reason, Since: s.Since})
		}
	}
	slices.SortFunc(list, func(a, b Notice) int { return cmp.Compare(a.Subject, b.Subject) })
	return list
}

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
func (c *Checked[K, V]) Repairs() (list []Repair, more int) { return c.Table.Repairs() }

// Row is the state of one object, for people.
type Row struct {
	// Key is its name.
	Key string
	// Desired and Actual are empty if the object is not wanted, or not there.
	Desired, Actual string
	Status
}

// Rows returns all objects that are wanted or there, by their names.
func (c *Checked[K, V]) Rows() []Row {
	rows := make([]Row, 0, c.Table.Len())
	for k, s := range c.Table.All() {
		row := Row{Key: fmt.Sprint(k), Status: s}
		want, have := c.Table.Get(k)
		if want != nil {
			row.Desired = fmt.Sprint(*want)
		}
		if have != nil {
			row.Actual = fmt.Sprint(*have)
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}

// Counts returns how many objects are in each phase.
func (c *Checked[K, V]) Counts() map[Phase]int {
	counts := map[Phase]int{}
	for _, s := range c.Table.All() {
		counts[s.Phase]++
	}
	return counts
}
