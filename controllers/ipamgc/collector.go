package ipamgc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/nodename"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/retry"
)

// Collector releases unused addresses and blocks. Any number may run concurrently: each release is a compare-and-swap
// on the evaluated assignment.
type Collector struct {
	// Store is Calico's datastore, Source has the nodes and endpoints of Kubernetes; they are the same if Kubernetes is
	// the datastore.
	Store, Source datastore.Store
	Pods          Pods
	IPAM          *ipam.Allocator
	Log           *zap.Logger
	Now           func() time.Time
	// Grace is the time that an address must look unused on an existing node before its release. 0: addresses there are
	// never released.
	Grace time.Duration
	// Settle is the time to wait for more changes after a change; default one second.
	Settle time.Duration
	// Releases counts and keeps the releases. Collectors of one process may share it.
	Releases *Releases

	mu      sync.Mutex // guards the following fields
	x       *index
	names   nodename.Index
	handles map[string]time.Time // those with a count that is too high, since when
	pools   poolIndex
}

// Kinds returns the kinds that the tables of the two stores must have.
func Kinds() (store, source []model.Kind) {
	return []model.Kind{model.KindIPAMBlock, model.KindBlockAffinity, model.KindNode, model.KindIPPool,
			model.KindIPReservation, model.KindClusterInformation},
		[]model.Kind{model.KindNode, model.KindWorkloadEndpoint}
}

// scanPeriod returns the interval between complete passes.
func (c *Collector) scanPeriod() time.Duration {
	if c.Grace <= 0 {
		return 5 * time.Minute
	}
	return max(c.Grace/2, time.Second)
}

// retryAfter is the pause after a failed pass.
const retryAfter = 15 * time.Second

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context, store, source *datastore.Tables) error {
	c.reset()
	var was, wasSource *datastore.Snapshot
	next := time.Time{} // the next complete pass
	for ctx.Err() == nil {
		now, nowSource := store.Snapshot(), source.Snapshot()
		c.take(now.Changes(was), nowSource.Changes(wasSource))
		was, wasSource = now, nowSource
		wait := time.Until(next)
		if now.InSync() && nowSource.InSync() && !model.Locked(now) {
			full := wait <= 0
			if err := c.pass(ctx, now, nowSource, full); err != nil {
				c.Log.Warn("not everything that is unused could be released, trying again", zap.Error(err),
					zap.Duration("after", retryAfter))
				wait, next = retryAfter, time.Now().Add(retryAfter)
			} else if full {
				wait = c.scanPeriod()
				next = time.Now().Add(wait)
			}
		} else {
			wait = retryAfter
		}
		c.wait(ctx, now, nowSource, wait)
	}
	return ctx.Err()
}

// wait returns when there is a change, after the time to wait for more changes, or when the time is up.
func (c *Collector) wait(ctx context.Context, store, source *datastore.Snapshot, d time.Duration) {
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
		return
	case <-store.Replaced():
	case <-source.Replaced():
	}
	settle := c.Settle
	if settle == 0 {
		settle = time.Second
	}
	retry.Sleep(ctx, settle)
}

func (c *Collector) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.x, c.names, c.handles, c.pools = newIndex(), nodename.Index{}, map[string]time.Time{}, poolIndex{}
}

// pass makes the releases of the decision. It continues after an error.
func (c *Collector) pass(ctx context.Context, store, source model.Reader, full bool) error {
	cooldown, err := c.IPAM.Cooldown(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	d := c.x.decide(c.Now(), c.Grace, cooldown, tableFacts{store, source}, full)
	c.mu.Unlock()
	var errs []error
	pinned := map[string]bool{} // nodes with an address that was found in use after all
	for _, tunnels := range []bool{false, true} {
		for _, group := range d.leaks {
			if group[0].tunnel() != tunnels || tunnels && pinned[group[0].node()] {
				continue
			}
			errs = append(errs, c.release(ctx, group, pinned))
		}
	}
	for _, name := range d.dead {
		if !pinned[name] {
			errs = append(errs, c.giveUp(ctx, name))
		}
	}
	for _, b := range d.surplus {
		errs = append(errs, c.releaseBlock(ctx, b))
	}
	for _, s := range d.stale {
		errs = append(errs, c.finish(ctx, s))
	}
	for _, cidr := range d.cold {
		_, err := c.IPAM.CollectCold(ctx, cidr)
		errs = append(errs, err)
	}
	if full {
		errs = append(errs, c.settleHandles(ctx))
	}
	return errors.Join(errs...)
}

// release releases all addresses of a handle, if none of them is in use.
func (c *Collector) release(ctx context.Context, group []*allocation, pinned map[string]bool) error {
	var releases []ipam.Release
	for _, a := range group {
		reason, inUse, err := c.verify(ctx, a)
		if inUse || err != nil {
			c.mu.Lock()
			for _, b := range group {
				b.use()
				pinned[b.node()] = true
				c.x.dirty[b.node()] = c.x.dirty[b.node()] || err != nil
			}
			c.mu.Unlock()
			if err != nil {
				return fmt.Errorf("%s is kept, it is not known whether it is in use: %w", a.Address, err)
			}
			c.Log.Debug("address is in use after all", zap.Stringer("address", a.Address),
				zap.String("handle", a.Handle))
			return nil
		}
		c.mu.Lock()
		a.reason = reason
		c.mu.Unlock()
		sequence := a.Sequence
		releases = append(releases, ipam.Release{Address: a.Address, Handle: a.Handle, Sequence: &sequence})
	}
	result, err := c.IPAM.ReleaseIPs(ctx, releases...)
	var mismatch *ipam.MismatchError
	if errors.As(err, &mismatch) {
		err = nil // assigned again since: the watch will report it
	}
	for _, a := range group {
		if slices.Contains(result.Addresses, a.Address) {
			c.logRelease(a)
		}
	}
	return err
}

// logRelease logs the release of an address.
func (c *Collector) logRelease(a *allocation) {
	namespace, pod, _ := a.pod()
	r := Release{At: c.Now(), Address: a.Address, Handle: a.Handle, Node: a.node(), Namespace: namespace, Pod: pod,
		VM: a.vm(), Reason: a.reason, Since: a.suspect}
	c.mu.Lock()
	pool := c.pools.of(a.Address)
	c.mu.Unlock()
	c.Releases.add(r, pool)
	c.Log.Info("unused address was released", zap.Stringer("address", r.Address), zap.String("handle", r.Handle),
		zap.String("node", r.Node), zap.String("pod", namespace+"/"+pod), zap.String("reason", r.Text()),
		zap.Time("unusedSince", r.Since))
}

// logBlock logs the release of a block.
func (c *Collector) logBlock(cidr netip.Prefix, node string, reason Reason, since time.Time) {
	r := Release{At: c.Now(), Since: since, Block: cidr, Node: node, Reason: reason}
	c.Releases.add(r, "")
	c.Log.Info("block was released", zap.Stringer("block", cidr), zap.String("node", node),
		zap.String("reason", r.Text()))
}

// giveUp releases the blocks of a node that does not exist.
func (c *Collector) giveUp(ctx context.Context, name string) error {
	n, err := c.liveNode(ctx, name)
	if err != nil {
		c.again(name)
		return fmt.Errorf("blocks of node %s are kept, it is not known whether it exists: %w", name, err)
	}
	if n.foreign || n.exists {
		return nil
	}
	c.mu.Lock()
	var blocks []netip.Prefix
	for cidr := range c.x.byHost[name] {
		blocks = append(blocks, cidr)
	}
	c.mu.Unlock()
	if err := c.IPAM.ReleaseHostAffinities(ctx, ipam.Host(name), true); err != nil {
		c.again(name)
		return fmt.Errorf("blocks of node %s, which does not exist: %w", name, err)
	}
	for _, cidr := range blocks {
		c.logBlock(cidr, name, nodeGone, time.Time{})
	}
	return nil
}

// again marks a node for another evaluation.
func (c *Collector) again(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.x.dirty[name] = true
}

// releaseBlock releases an empty block of a node that has others.
func (c *Collector) releaseBlock(ctx context.Context, b *block) error {
	err := c.IPAM.ReleaseAffinity(ctx, ipam.Host(b.host), b.cidr, true)
	switch {
	case errors.Is(err, ipam.ErrNotEmpty), errors.Is(err, datastore.ErrNotFound):
		return nil // in use again, or another process was faster
	case err != nil:
		return err
	}
	c.logBlock(b.cidr, b.host, surplus, b.emptySince)
	return nil
}

// finish completes a block release that another process began.
func (c *Collector) finish(ctx context.Context, s *claim) error {
	err := c.IPAM.ReleaseAffinity(ctx, ipam.Host(s.Host), s.CIDR, true)
	switch {
	case errors.Is(err, ipam.ErrNotEmpty), errors.Is(err, datastore.ErrNotFound):
		return nil // in use again, or another process was faster
	case err != nil:
		return err
	}
	c.logBlock(s.CIDR, s.Host, unfinished, s.since)
	return nil
}

// settleHandles corrects handles whose count is too high in two consecutive passes: an address is counted before it is
// assigned. It reads the datastore.
func (c *Collector) settleHandles(ctx context.Context) error {
	objects, _, err := c.Store.List(ctx, model.KindIPAMHandle, "")
	if err != nil {
		return err
	}
	var errs []error
	now, suspects := c.Now(), map[string]time.Time{}
	for _, o := range objects {
		h, ok := o.Value.(*model.Handle)
		if !ok || o.Err != nil || !c.overcounts(o.Key.Name, h) {
			continue
		}
		since, again := c.handles[o.Key.Name]
		if !again {
			suspects[o.Key.Name] = now
			continue
		}
		if now.Sub(since) < min(c.Grace, time.Minute) {
			suspects[o.Key.Name] = since
			continue
		}
		if err := c.IPAM.SettleHandle(ctx, o.Key.Name); err != nil {
			errs = append(errs, err)
			suspects[o.Key.Name] = since
			continue
		}
		c.Log.Info("handle counted addresses that it does not have", zap.String("handle", o.Key.Name))
	}
	c.handles = suspects
	return errors.Join(errs...)
}

// overcounts reports whether a handle counts more addresses in a block than the block has.
func (c *Collector) overcounts(id string, h *model.Handle) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := map[string]int{}
	for p := range c.x.byHandle[id] {
		has[p.block.String()]++
	}
	for cidr, n := range h.Block {
		if n > has[cidr] {
			return true
		}
	}
	return len(h.Block) == 0
}
