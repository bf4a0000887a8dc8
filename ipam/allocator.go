package ipam

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/retry"
)

// Store has the methods of a datastore that the allocator uses: single objects with compare-and-swap revisions. Its
// errors wrap model.ErrNotFound, model.ErrExists and model.ErrConflict. A datastore.Store is one.
type Store interface {
	Get(ctx context.Context, key model.Key) (*model.Object, error)
	// List returns the objects of a kind in key order; for affinities namespace may name the owner ("host/node-1").
	List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error)
	Create(ctx context.Context, o *model.Object) (*model.Object, error)
	Update(ctx context.Context, o *model.Object) (*model.Object, error)
	Delete(ctx context.Context, key model.Key, revision int64) (*model.Object, error)
}

// Allocator assigns and releases addresses. It keeps no state: any number of allocators, in any number of processes and
// beside Calico's own, may use one store. It is safe for concurrent use.
type Allocator struct {
	store Store
	log   *zap.Logger
	now   func() time.Time
}

// New returns an allocator. A nil logger disables logging. now is the clock, time.Now if nil.
func New(store Store, log *zap.Logger, now func() time.Time) *Allocator {
	if log == nil {
		log = zap.NewNop()
	}
	if now == nil {
		now = time.Now
	}
	return &Allocator{store: store, log: log, now: now}
}

// refresh makes a store that answers from memory read the datastore from now on. It reports whether answers may differ
// from the earlier ones. A negative answer needs that, since no failed write would show that it is outdated.
func (a *Allocator) refresh() bool {
	s, ok := a.store.(interface{ Refresh() bool })
	return ok && s.Refresh()
}

// Host returns the owner of a node's blocks.
func Host(name string) Owner { return Owner{Type: model.AffinityHost, Name: name} }

// Owner is the owner of blocks: a host, or a virtual owner such as "load-balancer".
type Owner struct {
	Type model.AffinityType
	Name string
}

// parseOwner parses the affinity of a block.
func parseOwner(affinity string) (Owner, bool) {
	typ, name, ok := strings.Cut(affinity, ":")
	return Owner{Type: model.AffinityType(typ), Name: name}, ok
}

// String returns the owner in the form of a block's affinity: "host:node-1".
func (o Owner) String() string { return string(o.Type) + ":" + o.Name }

// path returns the owner in the form of the keys of its affinities.
func (o Owner) path() string { return string(o.Type) + "/" + o.Name }

func (o Owner) affinity(cidr netip.Prefix) model.Affinity {
	return model.Affinity{Type: o.Type, Host: o.Name, CIDR: cidr}
}

// session is one operation of an allocator, with the configuration read at its start.
type session struct {
	*Allocator
	config   model.IPAMConfig
	cooldown time.Duration // time between the release of an address and its next assignment
}

func (a *Allocator) begin(ctx context.Context) (session, error) {
	c, err := a.Config(ctx)
	if err != nil {
		return session{}, err
	}
	s := session{Allocator: a, config: c}
	if c.IPCooldownSeconds != nil {
		s.cooldown = time.Duration(*c.IPCooldownSeconds) * time.Second
	}
	return s, nil
}

// Config returns the allocator's configuration, with Calico's defaults if there is none.
func (a *Allocator) Config(ctx context.Context) (model.IPAMConfig, error) {
	o, err := a.store.Get(ctx, model.IPAMConfigKey)
	if errors.Is(err, model.ErrNotFound) {
		return model.IPAMConfig{AutoAllocateBlocks: true}, nil
	}
	if err != nil {
		return model.IPAMConfig{}, fmt.Errorf("read IPAM configuration: %w", err)
	}
	c, ok := o.Value.(*model.IPAMConfig)
	if !ok || o.Err != nil {
		return model.IPAMConfig{}, fmt.Errorf("IPAM configuration cannot be used: %w", o.Err)
	}
	return *c, nil
}

// maxTries is the maximum number of attempts of a write that conflicts.
const maxTries = 100

// repeat repeats try after conflicts, with random pauses that spread concurrent writers. They grow by a millisecond,
// not as those of a retry.Backoff: a conflict means that another writer was faster, so the datastore is well.
func repeat(ctx context.Context, what string, try func() error) error {
	var err error
	for i := range maxTries {
		if err = try(); !errors.Is(err, model.ErrConflict) {
			return err
		}
		if !retry.Sleep(ctx, rand.N(time.Duration(min(i+1, 20))*time.Millisecond)) {
			return fmt.Errorf("%s: %w (last try: %w)", what, ctx.Err(), err)
		}
	}
	return fmt.Errorf("%s: gave up after %d tries, too many others write at the same time: %w", what, maxTries, err)
}

// certain reports whether a failed write certainly had no effect. After a timeout or a lost connection it may have had.
func certain(err error) bool {
	return errors.Is(err, model.ErrConflict) || errors.Is(err, model.ErrNotFound) || errors.Is(err, model.ErrExists)
}

// cleanup returns a context that gives clean-up work time to finish even if ctx has ended.
func cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
}
