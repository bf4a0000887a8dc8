package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// errNoPool is wrapped by errors that explain why no pool can serve a request.
var errNoPool = errors.New("no IP pool can be used")

// maxBlockBits bounds the size of a block; Calico's largest has 12 bits.
const maxBlockBits = 16

// pool is an IP pool with a valid CIDR and block size.
type pool struct {
	name      string
	cidr      netip.Prefix
	blockBits int
	object    *model.IPPool
}

func (p pool) String() string { return fmt.Sprintf("pool %s (%s)", p.name, p.cidr) }

// parsePool parses a pool and sets Calico's defaults for the fields that older writers left out.
func parsePool(name string, o *model.IPPool) (pool, error) {
	o = o.WithDefaults()
	cidr, err := netip.ParsePrefix(o.Spec.CIDR)
	if err != nil {
		return pool{}, fmt.Errorf("pool %s: spec.cidr = %q: want ADDRESS/LENGTH", name, o.Spec.CIDR)
	}
	bits, max := o.Spec.BlockSize, cidr.Addr().BitLen()
	if bits < cidr.Bits() || bits > max || max-bits > maxBlockBits {
		return pool{}, fmt.Errorf("pool %s: spec.blockSize = %d: want %d to %d for %s", name, bits, max-maxBlockBits,
			max, cidr)
	}
	return pool{name: name, cidr: cidr.Masked(), blockBits: bits, object: o}, nil
}

// allows reports whether a pool allows a purpose.
func allows(o *model.IPPool, use v3.IPPoolAllowedUse) bool {
	return slices.Contains(o.Spec.AllowedUses, use)
}

// Usable reports whether a node with these labels may take addresses for a purpose from a pool: the pool is enabled,
// allows the purpose and selects the node. The error is about a malformed node selector.
func Usable(o *model.IPPool, use v3.IPPoolAllowedUse, nodeLabels map[string]string) (bool, error) {
	o = o.WithDefaults()
	if whyShut(o) != "" || !allows(o, use) {
		return false, nil
	}
	return selects(o.Spec.NodeSelector, nodeLabels)
}

// readPools lists all pools in name order. It logs and skips unusable pools.
func (a *Allocator) readPools(ctx context.Context) ([]pool, error) {
	objects, _, err := a.store.List(ctx, model.KindIPPool, "")
	if err != nil {
		return nil, fmt.Errorf("read IP pools: %w", err)
	}
	var pools []pool
	for _, o := range objects {
		value, ok := o.Value.(*model.IPPool)
		if !ok || o.Err != nil {
			a.log.Warn("IP pool is left out", zap.Stringer("key", o.Key), zap.Error(o.Err))
			continue
		}
		p, err := parsePool(o.Key.Name, value)
		if err != nil {
			a.log.Warn("IP pool is left out", zap.Stringer("key", o.Key), zap.Error(err))
			continue
		}
		pools = append(pools, p)
	}
	return pools, nil
}

// poolOf returns the pool that contains an address, nil if none does.
func poolOf(pools []pool, addr netip.Addr) *pool {
	for i, p := range pools {
		if p.cidr.Contains(addr) {
			return &pools[i]
		}
	}
	return nil
}

// choosePools returns the pools of a family that serve a request, in order. Requested pools are used whatever their
// selectors; otherwise node and namespace must match.
func choosePools(all []pool, r *Request, family Family, nodeLabels map[string]string) ([]pool, error) {
	var candidates []pool
	for _, p := range all {
		if family.has(p.cidr.Addr()) {
			candidates = append(candidates, p)
		}
	}
	if len(candidates) == 0 {
		return nil, fmt.Errorf("%w: there is no %s pool; create one", errNoPool, family)
	}
	if requested := r.pools(family); len(requested) > 0 {
		return pickRequested(candidates, requested, r.Use)
	}
	return pickMatching(candidates, family, Asker{Node: r.Host, Use: r.Use, NodeLabels: nodeLabels,
		NamespaceLabels: r.NamespaceLabels})
}

// pickRequested returns those of the pools that a request names that are for its use, in its order.
func pickRequested(candidates []pool, requested []netip.Prefix, use v3.IPPoolAllowedUse) ([]pool, error) {
	var chosen []pool
	var reasons []string
	for _, want := range requested {
		is := func(p pool) bool { return p.cidr == want.Masked() }
		i := slices.IndexFunc(candidates, func(p pool) bool { return is(p) && whyShut(p.object) == "" })
		if i < 0 {
			i = slices.IndexFunc(candidates, is)
		}
		if i < 0 {
			return nil, fmt.Errorf("%w: pool %s was requested, but it does not exist; there are %s", errNoPool, want,
				poolNames(candidates))
		}
		p := candidates[i]
		if why := whyShut(p.object); why != "" {
			return nil, fmt.Errorf("%w: %s was requested: %s", errNoPool, p, why)
		}
		if why := whyUnused(p.object, use); why != "" {
			reasons = append(reasons, fmt.Sprintf("%s: %s", p, why))
		} else {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: of those that were requested: %s", errNoPool, strings.Join(reasons, "; "))
	}
	return chosen, nil
}

// pickMatching returns the pools whose rules let an asker have an address.
func pickMatching(candidates []pool, family Family, a Asker) ([]pool, error) {
	var chosen []pool
	var reasons []string
	for _, p := range candidates {
		why, err := whyNot(p.object, a)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", p, err)
		case why != "":
			reasons = append(reasons, fmt.Sprintf("%s: %s", p, why))
		default:
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: of the %s pools none is for node %s: %s", errNoPool, family, a.Node,
			strings.Join(reasons, "; "))
	}
	return chosen, nil
}

func poolNames(pools []pool) string {
	names := make([]string, len(pools))
	for i, p := range pools {
		names[i] = p.String()
	}
	return strings.Join(names, ", ")
}
