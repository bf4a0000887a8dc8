package nftables

import (
	"context"
	"errors"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// ErrUncertain is what CommitRules and others wrap when the answer of the kernel was lost: what was asked may have
// happened or not, so read again.
var ErrUncertain = errors.New("the kernel's answer was lost")

// ErrMissing is what they wrap when the kernel has no nf_tables, or nothing of it would do. An expression or a type
// of set that it lacks is the error of the rule or set that needs it, like others: the rest can do without.
var ErrMissing = errors.New("the kernel's nf_tables is missing or too old")

// Rules reads and changes one table of the inet family and nothing else of nftables.
type Rules interface {
	// ReadRules returns the whole table, nil if there is none.
	ReadRules() (*ruleset.Actual, error)
	// CommitRules makes all changes in one transaction; the table is made if it is missing. An error that is not
	// ErrUncertain means that nothing was changed.
	CommitRules(ruleset.Changes) error
	// CheckRules answers like CommitRules and changes nothing.
	CheckRules(ruleset.Changes) error
	// DeleteRules removes the table with all that is in it. It succeeds if there is none.
	DeleteRules() error
	// WatchRules calls handle once it listens, and then whenever somebody else changes the table or may have done so
	// (events were lost), from one goroutine, until ctx ends.
	WatchRules(ctx context.Context, handle func()) error
	// RuleCounters returns packets and bytes of the rules that count, by chain and in the order of the chain's rules.
	RuleCounters() (map[string][]Counter, error)
}

// Counter is what a rule counted.
type Counter struct {
	ID             string // of the rule
	Packets, Bytes uint64
}
