package nftables

import (
	"context"
	"errors"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// ErrUncertain is wrapped by CommitRules and others when the answer of the kernel was lost: the request may have
// succeeded or not, so read again.
var ErrUncertain = errors.New("the kernel's answer was lost")

// ErrMissing is wrapped by them when the kernel has no nf_tables, or too old a version for any use. A missing
// expression or set type is the error of the rule or set that needs it, like others: the rest can do without.
var ErrMissing = errors.New("the kernel's nf_tables is missing or too old")

// Rules reads and changes one table of the inet family and nothing else of nftables.
type Rules interface {
	// ReadRules returns the whole table, nil if there is none.
	ReadRules() (*ruleset.Actual, error)
	// CommitRules makes all changes in one transaction; the table is made if it is missing. After an error other than
	// ErrUncertain nothing was changed.
	CommitRules(ruleset.Changes) error
	// CheckRules answers like CommitRules and changes nothing.
	CheckRules(ruleset.Changes) error
	// DeleteRules removes the table with all that is in it. It succeeds if there is none.
	DeleteRules() error
	// WatchRules calls handle once it listens, and then whenever another program changes the table or may have done so
	// (events were lost), from one goroutine, until ctx ends.
	WatchRules(ctx context.Context, handle func()) error
	// RuleCounters returns packets and bytes of the rules that count, by chain and in the order of the chain's rules.
	RuleCounters() (map[string][]Counter, error)
	// ChainCounters is RuleCounters for some chains, at the cost of these alone. Chains that do not exist have none.
	ChainCounters(chains []string) (map[string][]Counter, error)
	// NamedCounters returns the counters that rules name in CountedBy. Its cost is that of their number.
	NamedCounters() (map[string]Counter, error)
}

// Counter is the counter of a rule, or one that rules name.
type Counter struct {
	ID             string // of the rule; empty for a named one
	Packets, Bytes uint64
}
