package ipam

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

// lowWater is the number of free addresses in a host's blocks below which another block is claimed.
const lowWater = 8

// fruitless is the pause of a Keeper after it found no block to claim: each search reads all blocks.
const fruitless = time.Minute

// Keeper keeps free addresses in the blocks of a host, so that an assignment need not wait for a claim.
type Keeper struct {
	allocator func() *Allocator
	log       *zap.Logger

	mu   sync.Mutex
	todo map[Family]Request
	wake chan struct{}
	wait map[Family]time.Time // end of the pause after a fruitless search
}

// NewKeeper returns a Keeper, which calls allocator for each search.
func NewKeeper(allocator func() *Allocator, log *zap.Logger) *Keeper {
	return &Keeper{allocator: allocator, log: log, todo: map[Family]Request{}, wake: make(chan struct{}, 1),
		wait: map[Family]time.Time{}}
}

// Assigned reports a served request to the Keeper. It does not block.
func (k *Keeper) Assigned(r Request) {
	k.mu.Lock()
	if r.Num4 > 0 {
		k.todo[IPv4] = r
	}
	if r.Num6 > 0 {
		k.todo[IPv6] = r
	}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run claims blocks until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.wake:
		}
		k.mu.Lock()
		todo := k.todo
		k.todo = map[Family]Request{}
		k.mu.Unlock()
		for family, r := range todo {
			k.claimAhead(ctx, family, r)
		}
	}
}

func (k *Keeper) claimAhead(ctx context.Context, family Family, r Request) {
	if time.Now().Before(k.wait[family]) {
		return
	}
	block, enough, err := k.allocator().ahead(ctx, r, family, lowWater)
	switch {
	case ctx.Err() != nil, enough:
		return
	case err != nil:
		k.log.Warn("no block is claimed ahead", zap.Stringer("family", family), zap.Error(err))
	case block.IsValid():
		k.log.Info("block is claimed ahead", zap.Stringer("block", block))
		return
	}
	k.wait[family] = time.Now().Add(fruitless)
}
