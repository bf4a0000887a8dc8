package filter

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/manxnet/manx/dataplane/nft"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Reached is the newest snapshot that the kernel's rules have been computed from; nil before there was one. A large
// policy of a namespace may still be that of an earlier one.
func (t *Target) Reached() model.Reader { return t.reached }

// Complete is the newest snapshot that all of the kernel's rules have been computed from, those of large policies of
// namespaces too; nil before there was one.
func (t *Target) Complete() model.Reader { return t.complete }

// Fresh reports, during the call of Programmed, whether Reached may have other versions of this node's workloads than
// at the one before.
func (t *Target) Fresh() bool { return t.fresh }

// Calculator has the wanted rules. It must not be changed.
func (t *Target) Calculator() *policy.Calculator { return t.calculator }

// Status returns the status of the kernel's table. Its cost follows the size of the table.
func (t *Target) Status() nft.Status { return t.table.Status() }

// Missing lists the kinds of log and counter that this kernel does not support, with the reasons.
func (t *Target) Missing() []string { return t.missing }

// Outdated is why connections go on to the workloads that had their floating addresses, empty if none is known to.
func (t *Target) Outdated() string {
	if err := t.translated.Problem(); err != nil {
		return err.Error()
	}
	return ""
}

// Unprotected is why a workload of this node may be without rules although its interface exists, empty if none is.
func (t *Target) Unprotected() string {
	if len(t.calculator.Strays()) == 0 { // as usual: the interfaces need not be listed
		return ""
	}
	t.RefreshLinks()
	return t.calculator.Unprotected()
}

// Health returns the health of the rules.
func (t *Target) Health() reconcile.Health {
	h := reconcile.Health{Part: "policy"}
	var reason string
	if h.Failures, reason = t.table.Failing(); h.Failures > 0 {
		h.Problem = errors.New(reason)
	}
	if !t.haveLinks && t.linksErr != nil {
		h.Failures++
		h.Problem = fmt.Errorf("nothing is changed before the host's interfaces are known: %w", t.linksErr)
	}
	if err := t.translated.Problem(); err != nil {
		h.Failures++
		h.Problem = cmp.Or(h.Problem, err)
	}
	return h
}

// Notices are none: Status has all.
func (t *Target) Notices() []reconcile.Notice { return nil }

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
// Connections that were ended because of that are one of them.
func (t *Target) Repairs() (list []reconcile.Repair, more int) {
	list, more = t.table.Repairs()
	return append(list, t.unfiltered.take()...), more
}
