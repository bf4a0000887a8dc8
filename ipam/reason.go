package ipam

import (
	"fmt"
	"math/big"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// Asker is a request that names no pool, as far as the rules of a pool concern it.
type Asker struct {
	Node       string
	Use        v3.IPPoolAllowedUse
	NodeLabels map[string]string
	// NamespaceLabels are nil if they are not known, which counts as no labels.
	NamespaceLabels map[string]string
	// AnyNamespace leaves out the namespace selectors: the question is about a node, and about no pod of it.
	AnyNamespace bool
}

// WhyClosed returns why a pool gives no address to anybody who does not name it; empty if it may give one.
func WhyClosed(o *model.IPPool) string { return whyClosed(o.WithDefaults()) }

func whyClosed(o *model.IPPool) string {
	if why := whyShut(o); why != "" {
		return why
	}
	if mode := *o.Spec.AssignmentMode; mode != v3.Automatic {
		return fmt.Sprintf("its assignmentMode is %s: addresses are assigned on request alone", mode)
	}
	return ""
}

// whyShut returns why nothing is assigned from a pool, not even on request.
func whyShut(o *model.IPPool) string {
	switch {
	case o.Spec.Disabled:
		return "disabled: nothing is assigned"
	case o.DeletionTimestamp != nil:
		return "being deleted: nothing is assigned"
	case !o.Allocatable():
		return "its condition " + model.ConditionAllocatable + " is False: nothing is assigned"
	}
	return ""
}

// whyUnused returns why a pool is not for a purpose.
func whyUnused(o *model.IPPool, use v3.IPPoolAllowedUse) string {
	if allows(o, use) {
		return ""
	}
	return fmt.Sprintf("its allowedUses lack %s", use)
}

// WhyNot returns why the rules of a pool give an asker no address; empty if they let it have one. After an error, which
// is about a selector, AutoAssign refuses the request of the asker, whatever other pools there are.
func WhyNot(o *model.IPPool, a Asker) (string, error) { return whyNot(o.WithDefaults(), a) }

func whyNot(o *model.IPPool, a Asker) (string, error) {
	if why := whyClosed(o); why != "" {
		return why, nil
	}
	spec := o.Spec
	switch ok, err := selects(spec.NodeSelector, a.NodeLabels); {
	case err != nil:
		return "", unreadable("nodeSelector", err)
	case !ok:
		return fmt.Sprintf("its nodeSelector %q does not select node %s", spec.NodeSelector, a.Node), nil
	}
	if !a.AnyNamespace {
		switch ok, err := selects(spec.NamespaceSelector, a.NamespaceLabels); {
		case err != nil:
			return "", unreadable("namespaceSelector", err)
		case !ok && a.NamespaceLabels == nil:
			return fmt.Sprintf("its namespaceSelector is %q, and the labels of the namespace are not known",
				spec.NamespaceSelector), nil
		case !ok:
			return fmt.Sprintf("its namespaceSelector %q does not select the namespace", spec.NamespaceSelector), nil
		}
	}
	return whyUnused(o, a.Use), nil
}

// selects evaluates a selector; an empty one selects everything.
func selects(expression string, labels map[string]string) (bool, error) {
	s, err := selector.Parse(expression)
	if err != nil {
		return false, fmt.Errorf("selector %q: %w", expression, err)
	}
	return s.Matches(labels), nil
}

func unreadable(field string, err error) error {
	return fmt.Errorf("its %s cannot be read, and until it can all requests of its family that name no pool are "+
		"refused: %w", field, err)
}

// WhyNone returns why a pool has no address for an owner whom its rules let have one; empty if it has one.
func (u PoolUsage) WhyNone(owner Owner, strict bool) string {
	free := u.Free()
	if free.Sign() <= 0 {
		return "full: " + u.Text()
	}
	if !strict {
		return ""
	}
	for _, b := range u.Blocks {
		if b.Owner != owner.String() && b.InUse > 0 { // an empty one can be taken over
			free.Sub(free, big.NewInt(int64(b.free())))
		}
	}
	if free.Sign() > 0 {
		return ""
	}
	return fmt.Sprintf("no block left: %s, but the free ones are in blocks of other hosts, and strict affinity "+
		"forbids to borrow them", u.Text())
}

func (b BlockUsage) free() int { return b.Capacity - b.InUse - b.Reserved }

// WhyNoBlock returns why an owner whose blocks are full gets no further block, however much room its pools have; nil if
// it may take one. It then borrows no address either. limit is that of BlockLimit.
func WhyNoBlock(owner Owner, blocks, limit int, c model.IPAMConfig) error {
	switch {
	case blocks >= limit:
		return fmt.Errorf("%w: %s has %d blocks and all are full, the limit is %d; release addresses, or raise "+
			"maxBlocksPerHost or the block size", errBlockLimit, owner, blocks, limit)
	case !c.AutoAllocateBlocks:
		return fmt.Errorf("%s needs another block, but auto_allocate_blocks is off in the IPAM configuration", owner)
	}
	return nil
}

// HasFree reports whether one of the blocks of an owner has a free address.
func HasFree(owner Owner, blocks []BlockUsage) bool {
	return slices.ContainsFunc(blocks, func(b BlockUsage) bool { return b.Owner == owner.String() && b.free() > 0 })
}

// Text returns "2 of 64 addresses in use or cooling down (3%), 8 reserved".
func (u PoolUsage) Text() string {
	text := fmt.Sprintf("%d of %s addresses in use or cooling down", u.InUse, u.Capacity)
	if p := u.Percent(); p != "" {
		text += " (" + p + ")"
	}
	if u.Reserved != nil && u.Reserved.Sign() > 0 {
		text += fmt.Sprintf(", %s reserved", u.Reserved)
	}
	return text
}

// Percent returns how much of the pool is in use, as "3%"; empty if it has no address.
func (u PoolUsage) Percent() string {
	if u.Capacity.Sign() <= 0 {
		return ""
	}
	n := new(big.Int).Mul(big.NewInt(int64(u.InUse)), big.NewInt(100))
	return n.Div(n, u.Capacity).String() + "%"
}
