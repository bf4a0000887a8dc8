package ipam

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

// lowWater is how many free addresses a host keeps in its blocks: with fewer it claims another one.
const lowWater = 8

// fruitless is how long a Keeper waits after it found no block to claim: looking for one reads all blocks.
const fruitless = time.Minute

// Keeper keeps free addresses in the blocks of a host, so that an assignment need not wait for a block to be claimed.
type Keeper struct {
	allocator func() *Allocator
	log       *zap.Logger

	mu   sync.Mutex
	todo map[Family]Request
	wake chan struct{}
	wait map[Family]time.Time // until when it makes no sense to look
}

// NewKeeper returns a Keeper; allocator gives one for each look.
func NewKeeper(allocator func() *Allocator, log *zap.Logger) *Keeper {
	return &Keeper{allocator: allocator, log: log, todo: map[Family]Request{}, wake: make(chan struct{}, 1),
		wait: map[Family]time.Time{}}
}

// Assigned tells of a request that was served. It does not wait.
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
			k.look(ctx, family, r)
		}
	}
}

func (k *Keeper) look(ctx context.Context, family Family, r Request) {
	if time.Now().Before(k.wait[family]) {
		return
	}
	block, enough, err := k.allocator().Ahead(ctx, r, family, lowWater)
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
