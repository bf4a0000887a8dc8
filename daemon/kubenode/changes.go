package kubenode

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/manxnet/manx/ipam"
)

// Changes records an Event once for each fault, and again when the fault of its subject changes.
type Changes struct {
	events   *Events
	reason   Reason
	reported map[string]string
}

// NewChanges returns Changes that record Events with a reason.
func NewChanges(e *Events, r Reason) *Changes { return &Changes{events: e, reason: r} }

// Record records the differences to the current faults, by subject.
func (c *Changes) Record(wrong map[string]string) {
	for _, subject := range slices.Sorted(maps.Keys(wrong)) {
		if text := wrong[subject]; c.reported[subject] != text {
			c.events.Warn(c.reason, text)
		}
	}
	c.reported = maps.Clone(wrong)
}

// nearlyFull is the percentage of a pool's addresses in use from which an Event is recorded.
const nearlyFull = 90

// Pools records Events about pools that are nearly full.
type Pools struct {
	count   func(context.Context) ([]ipam.PoolUsage, error)
	changes *Changes
}

// NewPools returns Pools that use count, such as Utilization of an ipam.Allocator.
func NewPools(e *Events, count func(context.Context) ([]ipam.PoolUsage, error)) *Pools {
	return &Pools{count: count, changes: NewChanges(e, PoolNearlyFull)}
}

// Evaluate counts the pools' addresses, which reads all blocks.
func (p *Pools) Evaluate(ctx context.Context) error {
	usage, err := p.count(ctx)
	if err != nil {
		return err
	}
	wrong := map[string]string{}
	for _, u := range usage {
		if u.Name != "" && u.Free().Cmp(percent(u.Capacity, 100-nearlyFull)) < 0 {
			wrong[u.Name] = fmt.Sprintf("the IPPool %s (%s) is nearly full: more than %d %% of its addresses are in "+
				"use or reserved",
				u.Name, u.CIDR, nearlyFull)
		}
	}
	p.changes.Record(wrong)
	return nil
}

func percent(n *big.Int, p int64) *big.Int {
	n = new(big.Int).Mul(n, big.NewInt(p))
	return n.Div(n, big.NewInt(100))
}
