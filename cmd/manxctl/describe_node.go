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

// node describes a node: its configuration, its state, its blocks and the pools that serve it.
func (d *describer) node(ctx context.Context, name string) (string, error) {
	o := d.objects[model.ResourceKey(model.KindNode, name)]
	if o == nil {
		return "", d.noSuch(model.KindNode, name)
	}
	n := o.Value.(*model.Node)
	var s sections
	s.heading("Node " + name)
	s.line("Created", "%s", sinceText(o))
	var addresses []string
	if b := n.Spec.BGP; b != nil {
		for _, family := range []model.Family{model.IPv4, model.IPv6} {
			if a := b.Address(family); a.IsValid() {
				addresses = append(addresses, a.String())
			}
		}
		if b.ASNumber != nil {
			s.line("AS number", "%d", uint32(*b.ASNumber))
		}
		s.line("Route reflector", "%s", b.RouteReflectorClusterID)
	}
	s.line("Addresses", "%s", orNone(strings.Join(addresses, ", ")))
	var tunnels []string
	for _, t := range n.TunnelAddresses() {
		tunnels = append(tunnels, fmt.Sprint(t.Address))
	}
	s.line("Tunnel addresses", "%s", strings.Join(tunnels, ", "))
	s.line("Drain", "%s", string(n.DrainPhase()))
	d.nodeState(ctx, &s, name)
	err := d.nodeAddresses(&s, name, n)
	return s.String(), err
}

// nodeState prints what manxd of the node knows.
func (d *describer) nodeState(ctx context.Context, s *sections, name string) {
	s.heading("State")
	x := summaryOf(d.states.status(ctx, name), time.Now())
	if !x.Answered {
		d.silent = true
		s.line("Ready", "unknown: %s", strings.Join(x.Troubles, "; "))
		return
	}
	s.line("Ready", "%s", yesNo(x.Ready))
	s.line("Version", "%s", x.Version)
	s.line("BGP", "%s sessions up", sessionsText(x.Peers))
	s.line("Routes", "%s", phasesText(x.Routes))
	s.line("Policy", "%s", x.Policy)
	for _, t := range x.Troubles {
		s.line("Trouble", "%s", t)
	}
}

// nodeAddresses prints the endpoints of a node, its blocks, and the pools that it takes addresses from.
func (d *describer) nodeAddresses(s *sections, name string, n *model.Node) error {
	s.heading("Addresses")
	endpoints, without := 0, 0
	for _, w := range model.AllWorkloads(d.objects) {
		if w.Spec.Node == name {
			endpoints++
			if len(w.Spec.IPNetworks) == 0 {
				without++
			}
		}
	}
	s.line("Endpoints", "%d%s", endpoints, when(without > 0,
		fmt.Sprintf(", %d without an address: they start, or ended", without)))
	s.line("Borrowed", "%s", d.borrowed(name))
	limit := ipam.BlockLimit(0, d.config.MaxBlocksPerHost)
	v := serving{asker: ipam.Asker{Node: name, Use: v3.IPPoolAllowedUseWorkload, NodeLabels: n.Labels,
		AnyNamespace: true}}
	var blocks []ipam.BlockUsage
	for _, u := range d.usage {
		blocks = append(blocks, ownBlocks(u, ipam.Host(name))...)
		if pool := model.Get[model.IPPool](d.objects, model.ResourceKey(model.KindIPPool, u.Name)); pool != nil {
			s.line("Pool "+u.Name, "%s", dashOr(v.whyNot(pool, u, d.config.StrictAffinity), u.Text()))
		}
	}
	s.line("No further block", "%s", v.whyNoBlock(d.config))
	s.line("Blocks", "%d; of each family at most %d%s", len(blocks), limit, when(d.config.StrictAffinity,
		"; strict affinity: it borrows no address"))
	return writeBlocks(s, blocks, false)
}

// borrowed counts the addresses that the node has in blocks of others.
func (d *describer) borrowed(name string) string {
	count := 0
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
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("%d in blocks of others", count)
}
