package ipam

import (
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// PoolUsage is the utilization of a pool.
type PoolUsage struct {
	// Name and CIDR identify the pool; Name is empty for the blocks outside all pools.
	Name string
	CIDR netip.Prefix
	// Capacity is the number of addresses of the pool.
	Capacity *big.Int
	// Reserved is the number of these addresses that IPReservations exclude from assignment.
	Reserved *big.Int
	// InUse counts the addresses that are assigned or cooling down, and ReservedInUse those of them that were assigned
	// before they were reserved, or on request.
	InUse         int
	ReservedInUse int
	Blocks        []BlockUsage
}

// Free returns the number of addresses that can still be assigned: neither in use nor reserved.
func (u PoolUsage) Free() *big.Int {
	n := new(big.Int).Sub(u.Capacity, big.NewInt(int64(u.InUse-u.ReservedInUse)))
	if u.Reserved != nil {
		n.Sub(n, u.Reserved)
	}
	return n
}

// BlockUsage is the utilization of a block.
type BlockUsage struct {
	CIDR netip.Prefix
	// Owner is "host:node-1", empty for a block without owner.
	Owner    string
	Capacity int
	InUse    int
	Reserved int // free, but excluded by an IPReservation
}

// Utilization returns the utilization of the pools, in name order. If there are blocks outside all pools, a last entry
// without name holds them.
func (a *Allocator) Utilization(ctx context.Context) ([]PoolUsage, error) {
	s, err := a.begin(ctx)
	if err != nil {
		return nil, err
	}
	pools, err := s.readPools(ctx)
	if err != nil {
		return nil, err
	}
	reserved, err := s.readReservations(ctx)
	if err != nil {
		return nil, err
	}
	return s.usageOf(ctx, pools, reserved)
}

func (s session) usageOf(ctx context.Context, pools []pool, reserved reservations) ([]PoolUsage, error) {
	objects, _, err := s.store.List(ctx, model.KindIPAMBlock, "")
	if err != nil {
		return nil, fmt.Errorf("read blocks: %w", err)
	}
	usage := make([]PoolUsage, len(pools), len(pools)+1)
	for i, p := range pools {
		usage[i] = PoolUsage{Name: p.name, CIDR: p.cidr, Capacity: sizeOf(p.cidr), Reserved: reserved.sizeIn(p.cidr)}
	}
	var orphans []BlockUsage
	for _, o := range objects {
		b, err := s.hold(o)
		if err != nil {
			continue // the audit shows it
		}
		use := BlockUsage{CIDR: b.CIDR, Owner: ownerOf(b.Block), Capacity: blockSize(b.CIDR)}
		use.InUse = use.Capacity - len(b.Unallocated)
		use.Reserved = len(b.Unallocated) - freeIn(b.Block, reserved.has)
		i := slices.IndexFunc(pools, func(p pool) bool { return within(b.CIDR, p.cidr) })
		if i < 0 {
			orphans = append(orphans, use)
			continue
		}
		usage[i].InUse += use.InUse
		usage[i].ReservedInUse += int(reserved.sizeIn(b.CIDR).Int64()) - use.Reserved
		usage[i].Blocks = append(usage[i].Blocks, use)
	}
	if len(orphans) > 0 {
		usage = append(usage, orphanUsage(orphans))
	}
	return usage, nil
}

func orphanUsage(blocks []BlockUsage) PoolUsage {
	u := PoolUsage{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Capacity: new(big.Int), Reserved: new(big.Int),
		Blocks: blocks}
	for _, b := range blocks {
		u.InUse += b.InUse
		u.Capacity.Add(u.Capacity, big.NewInt(int64(b.Capacity)))
	}
	return u
}

func sizeOf(p netip.Prefix) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
}

// sizeIn returns the number of reserved addresses in p.
func (r reservations) sizeIn(p netip.Prefix) *big.Int {
	sum := new(big.Int)
	first, end := p.Masked().Addr(), last(p)
	for _, x := range r {
		if x.first.BitLen() != first.BitLen() || end.Less(x.first) || x.last.Less(first) {
			continue
		}
		from, to := x.first, x.last
		if from.Less(first) {
			from = first
		}
		if end.Less(to) {
			to = end
		}
		n := new(big.Int).Sub(toInt(to), toInt(from))
		sum.Add(sum, n.Add(n, big.NewInt(1)))
	}
	return sum
}

// explain returns the reasons why the pools could not serve a request.
func (x *search) explain(ctx context.Context) []string {
	usage, err := x.usageOf(ctx, x.pools, x.reserved)
	if err != nil {
		return []string{"why could not be found out: " + err.Error()}
	}
	var reasons []string
	for _, u := range usage {
		if u.Name == "" {
			continue
		}
		why := u.WhyNone(x.owner, x.config.StrictAffinity)
		if why == "" {
			why = "it had no free address when it was tried: " + u.Text() + " by now"
		}
		reasons = append(reasons, fmt.Sprintf("pool %s (%s): %s", u.Name, u.CIDR, why))
	}
	return reasons
}
