package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// Network is the name of Calico's network: of its handles, and of its folder in Root.
const Network = "k8s-pod-network"

// Root is the folder in which host-local has a folder for each network.
const Root = "/var/lib/cni/networks"

// Folder returns the folder of a network of host-local.
func Folder(network string) (string, error) {
	if network == "" || filepath.Base(network) != network || network == "." || network == ".." {
		return "", fmt.Errorf("network %q: want the name of a folder in %s", network, Root)
	}
	return filepath.Join(Root, network), nil
}

// Store has the methods of a datastore that an upgrade uses.
type Store interface {
	ipam.Store
	Keeps(kind model.Kind) bool
}

// Upgrade moves the addresses in one folder of host-local to IPAM.
type Upgrade struct {
	Store  Store
	Folder string
	Node   string
	// Network is the name of the network whose plugin will detach the containers.
	Network string
	Now     func() time.Time
}

// errLocked reports a datastore that is locked: nothing may be assigned.
var errLocked = errors.New("the datastore is locked (datastoreReady is false), as during a migration: run this again " +
	"after the end of it, or after \"manxctl datastore unlock\"")

// Plan reads the folder and the datastore, and changes nothing.
func (u *Upgrade) Plan(ctx context.Context) (Plan, error) {
	content, err := Read(u.Folder)
	if err != nil || len(content.Files) == 0 {
		return decide(content, facts{}), err
	}
	f, err := u.facts(ctx)
	if err != nil {
		return Plan{}, err
	}
	return decide(content, f), nil
}

func (u *Upgrade) facts(ctx context.Context) (facts, error) {
	f := facts{node: u.Node, network: u.Network, allPods: u.Store.Keeps(model.KindNamespace),
		blocks: map[netip.Prefix]*model.Block{}, pods: map[netip.Addr]*model.WorkloadEndpoint{}}
	if err := u.checkLock(ctx); err != nil {
		return f, err
	}
	o, err := u.Store.Get(ctx, model.ResourceKey(model.KindNode, u.Node))
	if err != nil {
		return f, fmt.Errorf("node %s: %w", u.Node, err)
	}
	node, ok := o.Value.(*model.Node)
	if !ok {
		return f, fmt.Errorf("node %s cannot be read: %w", u.Node, o.Err)
	}
	f.podCIDRs = node.Status.PodCIDRs
	objects := map[model.Kind][]*model.Object{}
	for _, kind := range []model.Kind{model.KindIPPool, model.KindIPAMBlock, model.KindWorkloadEndpoint} {
		if objects[kind], _, err = u.Store.List(ctx, kind, ""); err != nil {
			return f, fmt.Errorf("read %s objects: %w", kind, err)
		}
	}
	f.pools = enabled(objects[model.KindIPPool])
	for _, o := range objects[model.KindIPAMBlock] {
		if b, ok := o.Value.(*model.Block); ok && o.Err == nil {
			f.blocks[b.CIDR] = b
		}
	}
	for _, o := range objects[model.KindWorkloadEndpoint] {
		w, ok := o.Value.(*model.WorkloadEndpoint)
		if !ok || w.Spec.Node != u.Node {
			continue
		}
		// Its annotations do not count: whoever may change a pod can write another one's address there.
		for _, p := range model.Networks(w.Spec.IPNetworks) {
			f.pods[p.Addr()] = w
		}
	}
	return f, nil
}

func (u *Upgrade) checkLock(ctx context.Context) error {
	o, err := u.Store.Get(ctx, model.ResourceKey(model.KindClusterInformation, "default"))
	if errors.Is(err, model.ErrNotFound) {
		return nil // no node has started in this cluster yet
	}
	if err != nil {
		return err
	}
	if model.Locks(o) {
		return errLocked
	}
	return nil
}

// errChanged reports a plan that is no longer what there is to do.
var errChanged = errors.New("host-local or IPAM has changed meanwhile, and nothing was done: run this again")

// Do does the steps of a plan, while host-local waits. It first waits at most timeout for a host-local at work, and
// plans again: the error is errChanged if the plan is another one now. It goes on after a failed step, the file
// of which stays.
func (u *Upgrade) Do(ctx context.Context, p Plan, timeout time.Duration) (done int, err error) {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	unlock, err := lock(waiting, u.Folder)
	defer unlock()
	if err != nil {
		return 0, fmt.Errorf("wait for host-local: %w", err)
	}
	now, err := u.Plan(ctx)
	if err != nil {
		return 0, err
	}
	if !slices.Equal(now.Steps, p.Steps) || !slices.Equal(now.Kept, p.Kept) {
		return 0, errChanged
	}
	a := ipam.New(u.Store, nil, u.Now)
	var errs []error
	for _, s := range p.Steps {
		if err := u.apply(ctx, a, s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Do, err))
			continue
		}
		done++
	}
	if len(p.Kept) == 0 && len(errs) == 0 {
		errs = append(errs, tidy(u.Folder))
	}
	return done, errors.Join(errs...)
}

func (u *Upgrade) apply(ctx context.Context, a *ipam.Allocator, s Step) error {
	if s.claim.IsValid() {
		return a.ClaimBlock(ctx, ipam.Host(u.Node), s.claim)
	}
	if s.assign {
		// Without pod and namespace an address counts as valid until its container is detached.
		attrs := map[string]string{"node": u.Node, "timestamp": u.Now().UTC().String()}
		if s.pod != "" {
			attrs["pod"], attrs["namespace"] = s.pod, s.namespace
		}
		if err := a.AssignIP(ctx, ipam.AddressRequest{Address: s.file.Address, Host: u.Node,
			Handle: u.Network + "." + s.file.ContainerID, Attrs: attrs}); err != nil {
			return err
		}
	}
	return remove(u.Folder, s.file) // a later run would assign it again after its release
}
