package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// nodeDescription is an element of "describe node -o json".
type nodeDescription struct {
	Node            string           `json:"node"`
	Created         string           `json:"created,omitempty"`
	ASNumber        uint32           `json:"asNumber,omitempty"` // of its own
	ClusterID       string           `json:"routeReflectorClusterID,omitempty"`
	Addresses       []string         `json:"addresses"`
	TunnelAddresses []string         `json:"tunnelAddresses"`
	Drain           string           `json:"drain,omitempty"`
	State           nodeSummary      `json:"state"`
	Endpoints       int              `json:"endpoints"`
	WithoutAddress  int              `json:"endpointsWithoutAddress"`
	Borrowed        int              `json:"borrowedAddresses"` // in blocks of others
	Pools           []poolChoice     `json:"pools"`
	NoFurtherBlock  string           `json:"noFurtherBlock,omitempty"`
	Blocks          []describedBlock `json:"blocks"`
	BlockLimit      int              `json:"blockLimit"` // of each family
	StrictAffinity  bool             `json:"strictAffinity"`
}

// node describes a node: its configuration, its state, its blocks and the pools that serve it.
func (d *describer) node(ctx context.Context, name string) (*nodeDescription, error) {
	o := d.objects[model.ResourceKey(model.KindNode, name)]
	if o == nil {
		return nil, d.noSuch(model.KindNode, name)
	}
	n := o.Value.(*model.Node)
	x := &nodeDescription{Node: name, Created: sinceText(o), Addresses: []string{}, TunnelAddresses: []string{},
		Drain: string(n.DrainPhase())}
	if b := n.Spec.BGP; b != nil {
		for _, family := range []model.Family{model.IPv4, model.IPv6} {
			if a := b.Address(family); a.IsValid() {
				x.Addresses = append(x.Addresses, a.String())
			}
		}
		if b.ASNumber != nil {
			x.ASNumber = uint32(*b.ASNumber)
		}
		x.ClusterID = b.RouteReflectorClusterID
	}
	for _, t := range n.TunnelAddresses() {
		x.TunnelAddresses = append(x.TunnelAddresses, fmt.Sprint(t.Address))
	}
	x.State = summaryOf(d.states.status(ctx, name), time.Now())
	d.silent = d.silent || !x.State.Answered
	for _, w := range model.AllWorkloads(d.objects) {
		if w.Node == name {
			x.Endpoints++
			if len(w.Networks) == 0 {
				x.WithoutAddress++
			}
		}
	}
	x.Borrowed = d.borrowed(name)
	x.Pools, x.NoFurtherBlock = d.poolChoices(ipam.Asker{Node: name, Use: v3.IPPoolAllowedUseWorkload,
		NodeLabels: n.Labels, AnyNamespace: true})
	var blocks []ipam.BlockUsage
	for _, u := range d.usage {
		blocks = append(blocks, ownBlocks(u, ipam.Host(name))...)
	}
	x.Blocks = fullestFirst(blocks)
	x.BlockLimit, x.StrictAffinity = ipam.BlockLimit(0, d.config.MaxBlocksPerHost), d.config.StrictAffinity
	return x, nil
}

func (x *nodeDescription) write(s *sections) error {
	s.heading("Node " + x.Node)
	s.line("Created", "%s", x.Created)
	if x.ASNumber != 0 {
		s.line("AS number", "%d", x.ASNumber)
	}
	s.line("Route reflector", "%s", x.ClusterID)
	s.line("Addresses", "%s", orNone(strings.Join(x.Addresses, ", ")))
	s.line("Tunnel addresses", "%s", strings.Join(x.TunnelAddresses, ", "))
	s.line("Drain", "%s", x.Drain)
	s.heading("State")
	x.State.writeTo(s)
	s.heading("Addresses")
	s.line("Endpoints", "%d%s", x.Endpoints, when(x.WithoutAddress > 0,
		fmt.Sprintf(", %d without an address: they start, or ended", x.WithoutAddress)))
	if x.Borrowed > 0 {
		s.line("Borrowed", "%d in blocks of others", x.Borrowed)
	}
	for _, p := range x.Pools {
		s.line("Pool "+p.Pool, "%s", dashOr(p.Reason, p.use))
	}
	s.line("No further block", "%s", x.NoFurtherBlock)
	s.line("Blocks", "%d; of each family at most %d%s", len(x.Blocks), x.BlockLimit, when(x.StrictAffinity,
		"; strict affinity: it borrows no address"))
	return writeBlocks(s, x.Blocks, false)
}

// writeTo prints what manxd of the node knows.
func (x *nodeSummary) writeTo(s *sections) {
	if !x.Answered {
		s.line("Ready", "unknown: %s", strings.Join(x.Troubles, "; "))
		return
	}
	s.line("Ready", "%s", yesNo(x.Ready))
	s.line("Version", "%s", x.Version)
	if x.BGPOff != "" {
		s.line("BGP", "%s", x.BGPOff)
	} else {
		s.line("BGP", "%s sessions up", x.sessions())
	}
	s.line("Routes", "%s", phasesText(x.Routes))
	s.line("Policy", "%s", x.Policy)
	for _, t := range x.Troubles {
		s.line("Trouble", "%s", t)
	}
}

// borrowed counts the addresses that the node has in blocks of others.
func (d *describer) borrowed(name string) (count int) {
	for _, b := range model.All[model.Block](d.objects, model.KindIPAMBlock) {
		if owner, ok := ipam.OwnerOf(b); ok && owner == ipam.Host(name) {
			continue
		}
		for a := range ipam.Allocations(b) {
			if a.Attrs["node"] == name {
				count++
			}
		}
	}
	return count
}
