package main

import (
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/ipam"
)

func (c *cli) ipamShowCommand() *cobra.Command {
	var output, address string
	var noHeaders, blocks, borrowed, configuration bool
	cmd := &cobra.Command{
		Use:   "show [--ip ADDRESS | --show-blocks | --show-borrowed | --show-configuration]",
		Short: "Show how full the pools are, or who has an address",
		Long: `Show for each pool its addresses, those that are assigned or cooling down, those that IPReservations exclude, and the
blocks that no node has yet. With --ip show who has an address, and since when. The datastore has all of that: no manxd
is needed.

A node that has no block takes a free one; without a free one it borrows addresses from blocks of others, unless strict
affinity is set. "no pool" are blocks of pools that were deleted.

Exit codes: 0 shown, also for a free address; 1 error, also for an address in no pool and no block; 2 usage.`,
		Example: "  manxctl ipam show\n  manxctl ipam show --ip 10.244.3.17\n  manxctl ipam show -o json\n" +
			"  manxctl ipam show --show-blocks\n  manxctl ipam show --show-borrowed\n" +
			"  manxctl ipam show --show-configuration",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output, table.Table, table.JSON, table.YAML)
			if err != nil {
				return usagef("%v", err)
			}
			if n := countTrue(address != "", blocks, borrowed, configuration); n > 1 {
				return usagef("use one of --ip, --show-blocks, --show-borrowed and --show-configuration")
			}
			var addr netip.Addr
			if address != "" {
				if addr, err = netip.ParseAddr(address); err != nil || addr.Zone() != "" {
					return usagef("--ip %q: want an IPv4 or IPv6 address", address)
				}
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // nothing was written
			switch {
			case blocks:
				return c.showBlocks(cmd.Context(), store, format, !noHeaders)
			case borrowed:
				return c.showBorrowed(cmd.Context(), store, format, !noHeaders)
			case configuration:
				return c.showConfiguration(cmd.Context(), store, format, !noHeaders)
			case addr.IsValid():
				return c.showAddress(cmd.Context(), store, addr.Unmap(), format)
			}
			return c.showPools(cmd.Context(), store, format, !noHeaders)
		},
	}
	cmd.Flags().StringVar(&address, "ip", "", "show who has this address")
	cmd.Flags().BoolVar(&blocks, "show-blocks", false, "show the blocks of each pool")
	cmd.Flags().BoolVar(&borrowed, "show-borrowed", false, "show the addresses that are used on another node than "+
		"that of their block")
	cmd.Flags().BoolVar(&configuration, "show-configuration", false, "show the settings of IPAM")
	outputFlag(cmd, &output, table.Table, table.JSON, table.YAML)
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "table without the heading")
	return cmd
}

func countTrue(values ...bool) (n int) {
	for _, v := range values {
		if v {
			n++
		}
	}
	return n
}

// poolState is a pool in "ipam show -o json". Numbers are text where IPv6 pools exceed what JSON readers keep.
type poolState struct {
	Pool       string `json:"pool"` // empty for blocks in no pool
	CIDR       string `json:"cidr,omitempty"`
	Size       string `json:"size"`
	Used       int    `json:"used"`
	Reserved   string `json:"reserved"`
	Blocks     int    `json:"blocks"`
	FreeBlocks string `json:"freeBlocks"`
	Disabled   bool   `json:"disabled"`

	percent string
}

func (c *cli) showPools(ctx context.Context, store datastore.Store, format table.Format, heading bool) error {
	usage, err := ipam.New(store, nil, nil).Utilization(ctx)
	if err != nil {
		return err
	}
	objects, _, err := store.List(ctx, model.KindIPPool, "")
	if err != nil {
		return err
	}
	pools := model.NewSet(objects...)
	states := make([]poolState, 0, len(usage))
	for _, u := range usage {
		states = append(states, stateOf(u, model.Get[model.IPPool](pools, model.ResourceKey(model.KindIPPool, u.Name))))
	}
	switch {
	case format != table.Table:
		return table.Value(c.out, format, states)
	case len(states) == 0:
		c.complain([]string{"No ippools found."})
		return nil
	}
	g := &table.Grid{Heading: []string{"POOL", "CIDR", "SIZE", "USED", "RESERVED", "BLOCKS", "FREE BLOCKS"}}
	for _, s := range states {
		name, used := s.Pool, itoa(s.Used)
		if s.percent != "" {
			used += " (" + s.percent + ")"
		}
		switch {
		case name == "":
			name = "(no pool)"
		case s.Disabled:
			name += " (disabled)"
		}
		g.Add(name, dash(s.CIDR), s.Size, used, s.Reserved, itoa(s.Blocks), dash(s.FreeBlocks))
	}
	return g.Write(c.out, heading)
}

// stateOf describes a pool; object is nil for the blocks in no pool.
func stateOf(u ipam.PoolUsage, object *model.IPPool) poolState {
	s := poolState{Pool: u.Name, Size: u.Capacity.String(), Used: u.InUse, Reserved: u.Reserved.String(),
		Blocks: len(u.Blocks)}
	if u.Name == "" {
		return s
	}
	s.CIDR = u.CIDR.String()
	s.percent = u.Percent()
	if object == nil {
		return s // deleted between the two reads
	}
	s.Disabled = object.Spec.Disabled
	bits := object.Spec.BlockSize
	if bits < u.CIDR.Bits() || bits > u.CIDR.Addr().BitLen() {
		return s
	}
	free := new(big.Int).Lsh(big.NewInt(1), uint(bits-u.CIDR.Bits()))
	size := new(big.Int).Lsh(big.NewInt(1), uint(u.CIDR.Addr().BitLen()-bits))
	for _, b := range u.Blocks { // those of another size are from before a change of the pool
		n := new(big.Int).Add(big.NewInt(int64(b.Capacity)), new(big.Int).Sub(size, big.NewInt(1)))
		free.Sub(free, n.Div(n, size))
	}
	if free.Sign() < 0 {
		free.SetInt64(0)
	}
	s.FreeBlocks = free.String()
	return s
}

// addressState is an address in "ipam show --ip -o json".
type addressState struct {
	Address  string `json:"address"`
	State    string `json:"state"` // assigned, cooling or free
	Owner    string `json:"owner,omitempty"`
	Node     string `json:"node,omitempty"`
	Handle   string `json:"handle,omitempty"`
	Since    string `json:"since,omitempty"`    // as the assignment has it
	Released string `json:"released,omitempty"` // RFC 3339, while the address cools down
	Pool     string `json:"pool,omitempty"`
	Block    string `json:"block,omitempty"`
	BlockOf  string `json:"blockOf,omitempty"`
	Endpoint string `json:"endpoint,omitempty"` // the WorkloadEndpoint that has the address
	Note     string `json:"note,omitempty"`
}

func (c *cli) showAddress(ctx context.Context, store datastore.Store, addr netip.Addr, format table.Format) error {
	x, err := findAddress(ctx, store, addr)
	if err != nil {
		return err
	}
	if format != table.Table {
		return table.Value(c.out, format, x)
	}
	var s sections
	s.heading(x.Address)
	x.write(&s)
	_, err = fmt.Fprint(c.out, s.String())
	return err
}

func (x addressState) write(s *sections) {
	s.line("State", "%s", x.State)
	s.line("Owner", "%s", x.Owner)
	s.line("Node", "%s", x.Node)
	s.line("Handle", "%s", x.Handle)
	s.line("Since", "%s", x.Since)
	s.line("Released", "%s", x.Released)
	s.line("Endpoint", "%s", x.Endpoint)
	s.line("Pool", "%s", x.Pool)
	s.line("Block", "%s%s", x.Block, when(x.BlockOf != "", " of "+x.BlockOf))
	s.line("Note", "%s", x.Note)
}

func findAddress(ctx context.Context, store datastore.Store, addr netip.Addr) (addressState, error) {
	var all []*model.Object
	for _, kind := range []model.Kind{model.KindIPPool, model.KindIPAMBlock, model.KindWorkloadEndpoint} {
		list, _, err := store.List(ctx, kind, "")
		if err != nil {
			return addressState{}, err
		}
		all = append(all, list...)
	}
	return addressAmong(model.NewSet(all...), addr)
}

// addressAmong returns what pools, blocks and workload endpoints have about an address.
func addressAmong(objects model.Reader, addr netip.Addr) (addressState, error) {
	x := addressState{Address: addr.String(), State: "free"}
	for k, p := range model.All[model.IPPool](objects, model.KindIPPool) {
		if cidr, err := netip.ParsePrefix(p.Spec.CIDR); err == nil && cidr.Contains(addr) {
			x.Pool = k.Name + " (" + p.Spec.CIDR + ")"
		}
	}
	for k, w := range model.AllWorkloads(objects) {
		if w.Has(addr) {
			x.Endpoint = k.String()
		}
	}
	for _, b := range model.All[model.Block](objects, model.KindIPAMBlock) {
		if b.CIDR.Contains(addr) {
			x.in(b, addr)
		}
	}
	switch {
	case x.Block == "" && x.Pool == "" && x.Endpoint == "":
		return x, fmt.Errorf("%s is in no pool and in no block: IPAM does not assign it", addr)
	case x.State == "assigned" && x.Endpoint == "" && strings.HasPrefix(x.Owner, "pod "):
		x.Note = "no WorkloadEndpoint has the address: the pod is not ready yet, or gone, and the garbage collection " +
			"releases the address after the grace period"
	case x.State != "assigned" && x.Endpoint != "":
		x.Note = "a WorkloadEndpoint has the address, and it is not assigned: another one may get it"
	}
	return x, nil
}

// in sets what the block has about the address.
func (x *addressState) in(b *model.Block, addr netip.Addr) {
	x.Block = b.CIDR.String()
	if owner, ok := ipam.OwnerOf(b); ok {
		x.BlockOf = owner.Name
	}
	a, released, ok := ipam.Find(b, addr)
	switch {
	case ok:
		x.State, x.Handle, x.Node, x.Since = "assigned", a.Handle, a.Attrs["node"], a.Attrs["timestamp"]
		x.Owner = ownerText(a)
	case !released.IsZero():
		x.State, x.Released = "cooling", released.UTC().Format(time.RFC3339)
	}
}

// ownerText names what an address was assigned for.
func ownerText(a ipam.Allocation) string {
	switch {
	case a.Windows:
		return "reserved by Windows"
	case a.Attrs["pod"] != "":
		return "pod " + a.Attrs["namespace"] + "/" + a.Attrs["pod"]
	case a.Attrs["service"] != "":
		return "service " + a.Attrs["namespace"] + "/" + a.Attrs["service"]
	case a.Attrs["type"] != "":
		return a.Attrs["type"] + " of node " + a.Attrs["node"] // such as ipipTunnelAddress
	}
	return "not said"
}
