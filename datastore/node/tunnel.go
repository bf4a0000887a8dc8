package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
	"github.com/manxnet/manx/retry"
)

// Tunnels maintains the addresses of this node's tunnel devices: one from a pool that uses the tunnel, as long as there
// is such a pool, recorded in the Node for the other nodes.
type Tunnels struct {
	Store datastore.Store
	IPAM  *ipam.Allocator
	Node  string
	// Types are the tunnels to maintain; other fields of the Node stay unchanged.
	Types []TunnelType
	// EncryptsHosts reports, by the FelixConfigurations and the Node, whether the node's own packets are encrypted:
	// WireGuard uses the node's own address then, and its devices need none. nil: they are not.
	EncryptsHosts func(model.Reader) bool
	// Linger is how long an address stays that no pool needs any more, in a pool that has another mode now: until they
	// know of it, other nodes send by the tunnel. 0: it is released at once.
	Linger time.Duration
	// PodCIDR is set if pods get their addresses from their node's pod CIDRs, so that there is no IPAM: the address of
	// a tunnel is then the first one of a CIDR, which the plugin host-local leaves free as that of the gateway.
	PodCIDR bool
	Log     *zap.Logger

	unneeded map[string]time.Time // since when tunnels are, by name
}

// tunnelBackoff is the pause before another attempt to set the tunnel addresses.
var tunnelBackoff = retry.Backoff{Min: time.Second, Max: 30 * time.Second}

var errNoNode = fmt.Errorf("there is no such Node: %w", datastore.ErrNotFound)

// Run ensures the addresses now and whenever a pool or the own Node changes, until ctx ends. It retries after errors.
func (t *Tunnels) Run(ctx context.Context, tables *datastore.Tables) error {
	if _, err := tables.WaitInSync(ctx); err != nil {
		return err
	}
	for {
		before := t.inputs(tables.Snapshot())
		if err := t.ensureUntilDone(ctx); err != nil {
			return err
		}
		for {
			snapshot := tables.Snapshot()
			if !t.inputs(snapshot).equal(before) {
				break
			}
			due := t.due()
			if err := await(ctx, due, snapshot.ReplacedOf(model.KindNode), snapshot.ReplacedOf(model.KindIPPool),
				snapshot.ReplacedOf(model.KindFelixConfiguration)); err != nil {
				return err
			}
			if !due.IsZero() && !due.After(time.Now()) {
				break
			}
		}
	}
}

// tunnelInputs are the objects that tunnel addresses follow from.
type tunnelInputs struct {
	node         *model.Object
	pools, felix []*model.Object
}

func (t *Tunnels) inputs(s *datastore.Snapshot) tunnelInputs {
	return tunnelInputs{s.Get(model.ResourceKey(model.KindNode, t.Node)), slices.Collect(s.All(model.KindIPPool)),
		slices.Collect(s.All(model.KindFelixConfiguration))}
}

func (i tunnelInputs) equal(other tunnelInputs) bool {
	return i.node == other.node && slices.Equal(i.pools, other.pools) && slices.Equal(i.felix, other.felix)
}

// ensureUntilDone repeats Ensure until it succeeds or ctx ends.
func (t *Tunnels) ensureUntilDone(ctx context.Context) error {
	err := tunnelBackoff.Repeat(ctx, t.Ensure, func(err error) bool {
		if errors.Is(err, errNoNode) { // its creation is a change
			return false
		}
		t.Log.Warn("tunnel addresses are not as they should be, trying again", zap.Error(err))
		return true
	})
	if errors.Is(err, errNoNode) {
		clear(t.unneeded) // there is nothing to release them from
		return nil
	}
	return err
}

// Ensure sets the tunnel addresses: it assigns missing ones, writes the Node once, and then releases unused ones. If
// the Node cannot be written, it releases the new ones. It is an error if the datastore is locked.
func (t *Tunnels) Ensure(ctx context.Context) error {
	if err := datastoreReady(ctx, t.Store); err != nil {
		return fmt.Errorf("tunnel addresses of node %s: %w", t.Node, err)
	}
	node, err := t.readNode(ctx)
	if err != nil {
		return err
	}
	pools, err := t.readPools(ctx)
	if err != nil {
		return err
	}
	hosts, err := t.encryptsHosts(ctx, node)
	if err != nil {
		return err
	}
	results := make([]tunnelResult, 0, len(t.Types))
	for _, kind := range t.Types {
		r, err := t.settle(ctx, kind, node, kind.candidates(node, pools, hosts, t.Log), pools)
		results = append(results, r)
		if err != nil {
			t.undo(ctx, results)
			return fmt.Errorf("%s tunnel address of node %s: %w", kind, t.Node, err)
		}
	}
	if err := t.writeNode(ctx, results); err != nil {
		t.undo(ctx, results)
		return err
	}
	if t.PodCIDR {
		return nil // IPAM has nothing to release
	}
	var errs []error
	for _, r := range results {
		if err := t.releaseSurplus(ctx, r); err != nil {
			errs = append(errs, fmt.Errorf("release old %s tunnel addresses of node %s: %w", r.kind, t.Node, err))
		}
	}
	return errors.Join(errs...)
}

func (t *Tunnels) readNode(ctx context.Context) (*model.Node, error) {
	o, err := t.Store.Get(ctx, model.ResourceKey(model.KindNode, t.Node))
	if errors.Is(err, datastore.ErrNotFound) {
		return nil, fmt.Errorf("read node %s for its tunnel addresses: %w", t.Node, errNoNode)
	}
	if err != nil {
		return nil, fmt.Errorf("read node %s for its tunnel addresses: %w", t.Node, err)
	}
	node, ok := o.Value.(*model.Node)
	if !ok {
		return nil, fmt.Errorf("node %s cannot be read: %w", t.Node, o.Err)
	}
	return node, nil
}

func (t *Tunnels) readPools(ctx context.Context) ([]*model.IPPool, error) {
	objects, _, err := t.Store.List(ctx, model.KindIPPool, "")
	if err != nil {
		return nil, fmt.Errorf("read IP pools for tunnel addresses: %w", err)
	}
	var pools []*model.IPPool
	for _, o := range objects {
		if p, ok := o.Value.(*model.IPPool); ok && o.Err == nil {
			pools = append(pools, p)
		}
	}
	return pools, nil
}

// encryptsHosts reads what EncryptsHosts needs.
func (t *Tunnels) encryptsHosts(ctx context.Context, node *model.Node) (bool, error) {
	if t.EncryptsHosts == nil {
		return false, nil
	}
	objects, _, err := t.Store.List(ctx, model.KindFelixConfiguration, "")
	if err != nil {
		return false, fmt.Errorf("read FelixConfigurations for tunnel addresses: %w", err)
	}
	set := model.NewSet(model.NewObject(model.ResourceKey(model.KindNode, t.Node), node))
	for _, o := range objects {
		set[o.Key] = o
	}
	return t.EncryptsHosts(set), nil
}

// tunnelResult is the new state of one tunnel's address.
type tunnelResult struct {
	kind    TunnelType
	old     netip.Addr // in the Node; invalid for none
	address netip.Addr // invalid if there must be none
	fresh   bool       // newly assigned
	held    []netip.Addr
}

// settle finds or assigns the address of one tunnel.
func (t *Tunnels) settle(
	ctx context.Context, kind TunnelType, node *model.Node, candidates []netip.Prefix, pools []*model.IPPool,
) (tunnelResult, error) {
	r := tunnelResult{kind: kind}
	r.old, _ = netip.ParseAddr(kind.get(node))
	if t.PodCIDR {
		r.address = t.firstOf(kind, node, candidates, pools)
		return r, nil
	}
	held, err := t.IPAM.IPsByHandle(ctx, kind.handleOf(t.Node))
	if err != nil && !errors.Is(err, model.ErrNotFound) {
		return r, err
	}
	r.held = held
	if len(candidates) > 0 || !r.old.IsValid() {
		delete(t.unneeded, kind.name)
	}
	current, err := t.currentOf(ctx, r.old)
	if err != nil {
		return r, err
	}
	switch d := decideTunnel(kind, t.Node, candidates, current, held); d.action {
	case tunnelNone:
		if t.lingers(kind, current, pools) {
			r.address = r.old
		}
		return r, nil
	case tunnelKeep:
		r.address = d.address
		return r, nil
	case tunnelRegister:
		r.fresh, r.address, err = true, d.address, t.register(ctx, kind, d.address)
		if err == nil || !errors.Is(err, ipam.ErrAssigned) {
			return r, err
		}
	}
	r.fresh = true
	r.address, err = t.assign(ctx, kind, candidates)
	return r, err
}

// firstOf returns the first address of the node's pod CIDRs that is in one of the candidates, an invalid one if there
// is none. Without candidates it is the address that lingers.
func (t *Tunnels) firstOf(
	kind TunnelType, node *model.Node, candidates []netip.Prefix, pools []*model.IPPool,
) netip.Addr {
	for _, text := range node.Status.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil || ipam.FamilyOf(p.Addr()) != kind.family {
			continue
		}
		first := p.Masked().Addr().Next()
		if has(candidates, first) {
			delete(t.unneeded, kind.name)
			return first
		}
		current := tunnelCurrent{address: first, assigned: true, attrs: t.attrs(kind)}
		if len(candidates) == 0 && kind.get(node) == first.String() && t.lingers(kind, current, pools) {
			return first
		}
	}
	return netip.Addr{}
}

// lingers reports whether the address of a tunnel stays for now, although no pool needs it.
func (t *Tunnels) lingers(kind TunnelType, current tunnelCurrent, pools []*model.IPPool) bool {
	inPool := func(p *model.IPPool) bool {
		pool, err := ippool.Parse(p.Name, &p.Spec)
		return err == nil && pool.CIDR.Contains(current.address)
	}
	if t.Linger == 0 || !current.belongsTo(kind, t.Node) || !slices.ContainsFunc(pools, inPool) {
		return false
	}
	if t.unneeded == nil {
		t.unneeded = map[string]time.Time{}
	}
	since, known := t.unneeded[kind.name]
	if !known {
		since = time.Now()
		t.unneeded[kind.name] = since
	}
	return time.Since(since) < t.Linger
}

// due returns when the first address that lingers is to be released, the zero time if none does.
func (t *Tunnels) due() (at time.Time) {
	for _, since := range t.unneeded {
		if end := since.Add(t.Linger); at.IsZero() || end.Before(at) {
			at = end
		}
	}
	return at
}

// currentOf queries IPAM for the assignment of the address in the Node.
func (t *Tunnels) currentOf(ctx context.Context, addr netip.Addr) (tunnelCurrent, error) {
	if !addr.IsValid() {
		return tunnelCurrent{}, nil
	}
	a, err := t.IPAM.GetAssignmentAttributes(ctx, addr)
	var cooling *ipam.CoolingError
	switch {
	case errors.Is(err, model.ErrNotFound), errors.As(err, &cooling):
		return tunnelCurrent{address: addr}, nil
	case err != nil:
		return tunnelCurrent{}, err
	}
	return tunnelCurrent{address: addr, assigned: true, handle: a.Handle, attrs: a.Attrs}, nil
}

func (t *Tunnels) attrs(kind TunnelType) map[string]string {
	return map[string]string{"node": t.Node, "type": kind.attribute}
}

// register assigns an address without a handle again, with the handle.
func (t *Tunnels) register(ctx context.Context, kind TunnelType, addr netip.Addr) error {
	if _, err := t.IPAM.ReleaseIPs(ctx, ipam.Release{Address: addr}); err != nil {
		return err
	}
	return t.IPAM.AssignIP(ctx, ipam.AddressRequest{
		Address: addr, Host: t.Node, Handle: kind.handleOf(t.Node), Attrs: t.attrs(kind),
		Use: v3.IPPoolAllowedUseTunnel,
	})
}

func (t *Tunnels) assign(ctx context.Context, kind TunnelType, candidates []netip.Prefix) (netip.Addr, error) {
	request := ipam.Request{Host: t.Node, Handle: kind.handleOf(t.Node), Attrs: t.attrs(kind),
		Use: v3.IPPoolAllowedUseTunnel}
	if kind.family == ipam.IPv4 {
		request.Num4, request.Pools4 = 1, candidates
	} else {
		request.Num6, request.Pools6 = 1, candidates
	}
	result, err := t.IPAM.AutoAssign(ctx, request)
	if err == nil {
		err = result.Short()
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return append(result.V4.Addresses, result.V6.Addresses...)[0].Addr(), nil
}

// writeNode writes the addresses to the Node if they differ, as a compare-and-swap that changes nothing else.
func (t *Tunnels) writeNode(ctx context.Context, results []tunnelResult) error {
	for range 100 {
		o, err := t.Store.Get(ctx, model.ResourceKey(model.KindNode, t.Node))
		if err != nil {
			return fmt.Errorf("write tunnel addresses to node %s: %w", t.Node, err)
		}
		o = o.Clone()
		node, ok := o.Value.(*model.Node)
		if !ok {
			return fmt.Errorf("node %s cannot be read: %w", t.Node, o.Err)
		}
		changed := false
		for _, r := range results {
			changed = r.kind.put(node, r.address) || changed
		}
		if !changed {
			return nil
		}
		if _, err = t.Store.Update(ctx, o); err == nil {
			t.Log.Info("tunnel addresses changed", zap.String("node", t.Node), zap.Stringers("addresses", results))
			return nil
		}
		if !errors.Is(err, model.ErrConflict) {
			return fmt.Errorf("write tunnel addresses to node %s: %w", t.Node, err)
		}
	}
	return fmt.Errorf("write tunnel addresses to node %s: gave up after 100 tries: %w", t.Node, model.ErrConflict)
}

// String returns a result for the log.
func (r tunnelResult) String() string {
	if !r.address.IsValid() {
		return r.kind.name + " none"
	}
	return r.kind.name + " " + r.address.String()
}

// undo releases the newly assigned addresses after a failure.
func (t *Tunnels) undo(ctx context.Context, results []tunnelResult) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for _, r := range results {
		if !r.fresh || !r.address.IsValid() {
			continue
		}
		_, err := t.IPAM.ReleaseIPs(ctx, ipam.Release{Address: r.address, Handle: r.kind.handleOf(t.Node)})
		if err != nil {
			t.Log.Warn("tunnel address stays assigned, the next try uses it", zap.Stringer("address", r.address),
				zap.Error(err))
		}
	}
}

// releaseSurplus releases all addresses of the tunnel except the one in use.
func (t *Tunnels) releaseSurplus(ctx context.Context, r tunnelResult) error {
	handle := r.kind.handleOf(t.Node)
	if !r.address.IsValid() {
		_, err := t.IPAM.ReleaseByHandle(ctx, handle)
		if errors.Is(err, model.ErrNotFound) {
			return t.releaseUnregistered(ctx, r)
		}
		return err
	}
	var surplus []ipam.Release
	for _, addr := range r.held {
		if addr != r.address {
			surplus = append(surplus, ipam.Release{Address: addr, Handle: handle})
		}
	}
	if len(surplus) == 0 {
		return nil
	}
	_, err := t.IPAM.ReleaseIPs(ctx, surplus...)
	return err
}

// releaseUnregistered releases the old address of the Node, if it was assigned by a version that set no handle, or to
// our handle, which is lost.
func (t *Tunnels) releaseUnregistered(ctx context.Context, r tunnelResult) error {
	current, err := t.currentOf(ctx, r.old)
	if err != nil || !current.unregistered() && (!current.assigned || current.handle != r.kind.handleOf(t.Node)) {
		return err
	}
	_, err = t.IPAM.ReleaseIPs(ctx, ipam.Release{Address: r.old})
	return err
}

// has reports whether one of the prefixes contains an address.
func has(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
