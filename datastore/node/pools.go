package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// PoolConfig configures the pool that is created for a family if the cluster has none of it. Texts are those of the
// environment variables CALICO_IPV4POOL_* and CALICO_IPV6POOL_*.
type PoolConfig struct {
	CIDR             string // "none": make none; "": choose one
	BlockSize        int    // 0: 26 and 122
	IPIP, VXLAN      string // "", off, Never, Always, CrossSubnet
	NATOutgoing      string // "": true for IPv4
	DisableBGPExport string
	NodeSelector     string
}

// ensurePools creates a default pool for each family without a pool. inUse returns the prefixes to avoid, from all
// Nodes of the cluster.
func ensurePools(
	ctx context.Context, store datastore.Store, c *Config, inUse func(context.Context) ([]netip.Prefix, error),
) (warnings []string, err error) {
	if c.NoDefaultPools {
		return nil, noPoolsWanted(c)
	}
	pools, _, err := store.List(ctx, model.KindIPPool, "")
	if err != nil {
		return nil, err
	}
	for _, f := range bothFamilies {
		exists, warning := poolOf(pools, f)
		if warning != "" {
			warnings = append(warnings, warning)
		}
		p, err := defaultPool(c, f, nil)
		if err == nil && (p == nil || exists) {
			continue
		}
		if err == nil {
			var avoid []netip.Prefix
			if avoid, err = inUse(ctx); err != nil {
				return warnings, err
			}
			p, err = defaultPool(c, f, avoid)
		}
		if err != nil {
			return warnings, fmt.Errorf("default %s pool: %w", f, err)
		}
		_, err = store.Create(ctx,
			model.NewObject(model.ResourceKey(model.KindIPPool, fmt.Sprintf("default-ipv%d-ippool", int(f))), p))
		if err != nil && !errors.Is(err, datastore.ErrExists) { // another node was faster
			return warnings, err
		}
	}
	return warnings, nil
}

func noPoolsWanted(c *Config) error {
	for _, p := range []PoolConfig{c.Pool4, c.Pool6} {
		if p.CIDR != "" && p.CIDR != noAddress {
			return fmt.Errorf("NO_DEFAULT_POOLS is set, and so is the CIDR of a default pool (%s): unset one of them",
				p.CIDR)
		}
	}
	return nil
}

// poolOf reports whether there is a pool of the family. An unreadable one counts for every family.
func poolOf(pools []*model.Object, f Family) (exists bool, warning string) {
	for _, o := range pools {
		p, _ := o.Value.(*model.IPPool)
		if p != nil {
			if cidr, err := netip.ParsePrefix(p.Spec.CIDR); err == nil {
				exists = exists || f.has(cidr.Addr())
				continue
			}
		}
		exists = true
		warning = fmt.Sprintf("no default %s pool is made, because %s may be one but cannot be read: %v", f, o.Key,
			o.Err)
	}
	return exists, warning
}

// defaultPool returns the pool to create for a family, nil for none.
func defaultPool(c *Config, f Family, inUse []netip.Prefix) (*model.IPPool, error) {
	want, blockSize, shortest, longest := c.Pool4, 26, 20, 32
	if f == IPv6 {
		want, blockSize, shortest, longest = c.Pool6, 122, 116, 128
	}
	if want.CIDR == noAddress || f == IPv6 && c.NoIPv6 {
		return nil, nil
	}
	if want.BlockSize != 0 {
		blockSize = want.BlockSize
	}
	if blockSize < shortest || blockSize > longest {
		return nil, fmt.Errorf("block size %d: want %d to %d", blockSize, shortest, longest)
	}
	if _, err := selector.Parse(want.NodeSelector); err != nil {
		return nil, fmt.Errorf("node selector %q: %w", want.NodeSelector, err)
	}
	cidr, err := poolCIDR(want.CIDR, f, inUse)
	if err != nil {
		return nil, err
	}
	if cidr.Bits() > blockSize {
		return nil, fmt.Errorf("%s is smaller than one block (/%d)", cidr, blockSize)
	}
	p := &model.IPPool{Spec: model.IPPoolSpec{CIDR: cidr.String(), BlockSize: blockSize,
		NodeSelector: want.NodeSelector,
		NATOutgoing:  truth(want.NATOutgoing, f == IPv4), DisableBGPExport: truth(want.DisableBGPExport, false)}}
	if p.Spec.NodeSelector == "" {
		p.Spec.NodeSelector = "all()"
	}
	ipip, err := encapMode("IPIP", want.IPIP)
	if err != nil {
		return nil, err
	}
	if f == IPv6 && ipip != "Never" {
		return nil, fmt.Errorf("IPIP mode %q: there is no IPIP for IPv6", want.IPIP)
	}
	vxlan, err := encapMode("VXLAN", want.VXLAN)
	if err != nil {
		return nil, err
	}
	p.Spec.IPIPMode, p.Spec.VXLANMode = v3.IPIPMode(ipip), v3.VXLANMode(vxlan)
	return p, nil
}

func poolCIDR(text string, f Family, inUse []netip.Prefix) (netip.Prefix, error) {
	switch {
	case text != "":
		p, err := netip.ParsePrefix(text)
		if err != nil || !f.has(p.Addr()) {
			return netip.Prefix{}, fmt.Errorf("CIDR %q: want an %s ADDRESS/LENGTH, or none", text, f)
		}
		return p.Masked(), nil
	case f == IPv4:
		return freeIPv4(inUse)
	}
	return uniqueLocal(), nil
}

// freeIPv4 selects 192.168.0.0/16, or the first of 172.16.0.0/16 to 172.31.0.0/16 if that is in use: preferably one
// that overlaps no subnet of a node, else one without a node's address.
func freeIPv4(inUse []netip.Prefix) (netip.Prefix, error) {
	choices := []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
	for i := range byte(16) {
		choices = append(choices, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + i}), 16))
	}
	for _, overlaps := range []func(pool, used netip.Prefix) bool{
		netip.Prefix.Overlaps,
		func(pool, used netip.Prefix) bool { return pool.Contains(used.Addr()) },
	} {
		for _, pool := range choices {
			if !slices.ContainsFunc(inUse, func(used netip.Prefix) bool { return overlaps(pool, used) }) {
				return pool, nil
			}
		}
	}
	return netip.Prefix{}, errors.New("192.168.0.0/16 and 172.16.0.0/12 are in use by the nodes themselves: set " +
		"CALICO_IPV4POOL_CIDR")
}

// uniqueLocal returns a /48 with a random global ID (RFC 4193 section 3.2.2).
func uniqueLocal() netip.Prefix {
	a := [16]byte{0xfd}
	rand.Read(a[1:6]) // never fails
	return netip.PrefixFrom(netip.AddrFrom16(a), 48)
}

func encapMode(what, text string) (string, error) {
	switch strings.ToLower(text) {
	case "", "off", "never":
		return "Never", nil
	case "always":
		return "Always", nil
	case "crosssubnet", "cross-subnet":
		return "CrossSubnet", nil
	}
	return "", fmt.Errorf("%s mode %q: want Never, Always or CrossSubnet", what, text)
}

// truth parses a switch as calico/node does: all but a few words are true.
func truth(text string, otherwise bool) bool {
	switch strings.ToLower(text) {
	case "":
		return otherwise
	case "false", "0", "no", "n", "f":
		return false
	}
	return true
}
