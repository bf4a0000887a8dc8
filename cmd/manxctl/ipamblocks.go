package main

import (
	"context"
	"fmt"
	"math/big"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
	"github.com/manxnet/manx/ipam"
)

// blockUse is a pool or a block in "ipam show --show-blocks".
type blockUse struct {
	Grouping string `json:"grouping"` // IP Pool, Block
	CIDR     string `json:"cidr"`
	Total    string `json:"total"`
	InUse    string `json:"inUse"`
	Reserved string `json:"reserved"`
	Free     string `json:"free"`
	Owner    string `json:"owner,omitempty"` // of a block
}

// showBlocks prints calicoctl's table of blocks, with the owner of each besides.
func (c *cli) showBlocks(ctx context.Context, store datastore.Store, format table.Format, heading bool) error {
	usage, err := ipam.New(store, nil, nil).Utilization(ctx)
	if err != nil {
		return err
	}
	list := []blockUse{}
	g := &table.Grid{Heading: []string{"GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE",
		"OWNER"}}
	add := func(u blockUse, total *big.Int, used int, free *big.Int) {
		u.Total, u.InUse, u.Free = total.String(), itoa(used), free.String()
		list = append(list, u)
		g.Add(u.Grouping, u.CIDR, u.Total, u.InUse+share(big.NewInt(int64(used)), total), u.Reserved,
			u.Free+share(free, total), dash(u.Owner))
	}
	for _, u := range usage {
		add(blockUse{Grouping: "IP Pool", CIDR: u.CIDR.String(), Reserved: u.Reserved.String()}, u.Capacity, u.InUse,
			u.Free())
		for _, b := range u.Blocks {
			add(blockUse{Grouping: "Block", CIDR: b.CIDR.String(), Reserved: itoa(b.Reserved), Owner: b.Owner},
				big.NewInt(int64(b.Capacity)), b.InUse, big.NewInt(int64(b.Capacity-b.InUse-b.Reserved)))
		}
	}
	if format != table.Table {
		return table.Value(c.out, format, list)
	}
	return g.Write(c.out, heading)
}

// share is a part in percent, " (25%)".
func share(part, whole *big.Int) string {
	if whole.Sign() == 0 {
		return ""
	}
	n := new(big.Int).Mul(part, big.NewInt(100))
	n.Add(n, new(big.Int).Rsh(whole, 1)) // rounds
	return fmt.Sprintf(" (%s%%)", n.Div(n, whole))
}

// borrowedAddress is a row of "ipam show --show-borrowed".
type borrowedAddress struct {
	IP          string `json:"ip"`
	Node        string `json:"borrowingNode"`
	Block       string `json:"block"`
	BlockOwner  string `json:"blockOwner,omitempty"` // empty for a block without owner
	Type        string `json:"type"`
	AllocatedTo string `json:"allocatedTo"`
}

// showBorrowed prints the addresses that nodes have in blocks of others.
func (c *cli) showBorrowed(ctx context.Context, store datastore.Store, format table.Format, heading bool) error {
	list := []borrowedAddress{}
	g := &table.Grid{Heading: []string{"IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO"}}
	err := eachOf(ctx, store, model.KindIPAMBlock, func(_ model.Key, b *model.Block) {
		owner, owned := ipam.OwnerOf(b)
		for a := range ipam.Allocations(b) {
			node := a.Attrs["node"]
			if node == "" || owned && (owner.Name == node || owner.Type != model.AffinityHost) {
				continue
			}
			x := borrowedAddress{IP: a.Address.String(), Node: node, Block: b.CIDR.String(), BlockOwner: owner.Name,
				Type: "pod", AllocatedTo: ownerText(a)}
			if a.Attrs["pod"] == "" {
				x.Type = dash(a.Attrs["type"])
			}
			list = append(list, x)
			g.Add(x.IP, x.Node, x.Block, dash(x.BlockOwner), x.Type, x.AllocatedTo)
		}
	})
	switch {
	case err != nil:
		return err
	case format != table.Table:
		return table.Value(c.out, format, list)
	case len(list) == 0:
		c.complain([]string{"No borrowed addresses found."})
		return nil
	}
	return g.Write(c.out, heading)
}

// showConfiguration prints the settings that the allocator uses.
func (c *cli) showConfiguration(ctx context.Context, store datastore.Store, format table.Format, heading bool) error {
	config, err := ipam.New(store, nil, nil).Config(ctx)
	if err != nil {
		return err
	}
	if format != table.Table {
		return table.Value(c.out, format, config)
	}
	g := &table.Grid{Heading: []string{"PROPERTY", "VALUE"}}
	g.Add("StrictAffinity", fmt.Sprint(config.StrictAffinity))
	g.Add("AutoAllocateBlocks", fmt.Sprint(config.AutoAllocateBlocks))
	g.Add("MaxBlocksPerHost", itoa(config.MaxBlocksPerHost))
	if p := config.KubeVirtVMAddressPersistence; p != nil {
		g.Add("KubeVirtVMAddressPersistence", *p)
	}
	if s := config.IPCooldownSeconds; s != nil {
		g.Add("IPCooldownSeconds", itoa(*s))
	}
	return g.Write(c.out, heading)
}
