// Package nobgp reports what the datastore wants of a node without BGP that only BGP could do, and notes in the Node
// that there is none.
package nobgp

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
	"github.com/manxnet/manx/proto/server"
)

// Part is a part of the daemon.
type Part struct {
	deps.Deps
	off        string
	policyOnly bool
}

// New returns the part. off is why there is no BGP; with policyOnly another program makes the routes to other nodes.
func New(d deps.Deps, off string, policyOnly bool) *Part { return &Part{d, off, policyOnly} }

// Name implements part.Part.
func (p *Part) Name() string { return "no-bgp" }

// Needs implements part.Watcher.
func (p *Part) Needs() part.Needs {
	return append(part.OwnOf(model.KindNode), part.AllOf(model.KindBGPPeer, model.KindBGPConfiguration,
		model.KindIPPool)...)
}

// Run implements part.Part.
func (p *Part) Run(ctx context.Context) error {
	p.Log.Info(p.off)
	<-ctx.Done()
	return nil
}

// Notices implements server.Noticer.
func (p *Part) Notices() []server.Notice {
	return notices(p.Tables.Snapshot(), p.Node.Name, p.off, p.policyOnly)
}

// notices lists the objects for a node that have no effect without BGP, and the pools without routes to other nodes.
func notices(r model.Reader, name, off string, policyOnly bool) (list []server.Notice) {
	own := model.Get[model.Node](r, model.ResourceKey(model.KindNode, name))
	add := func(topic, subject, format string, args ...any) {
		list = append(list, server.Notice{Topic: topic, Subject: subject, Text: fmt.Sprintf(format, args...)})
	}
	for key, peer := range model.All[model.BGPPeer](r, model.KindBGPPeer) {
		if selects(&peer.Spec, name, own) {
			add("bgp", "BGPPeer/"+key.Name, "%s: this node has no session with this peer", off)
		}
	}
	for _, of := range []string{"default", "node." + name} {
		c := model.Get[model.BGPConfiguration](r, model.ResourceKey(model.KindBGPConfiguration, of))
		if c != nil && len(c.Spec.ServiceClusterIPs)+len(c.Spec.ServiceExternalIPs)+
			len(c.Spec.ServiceLoadBalancerIPs) > 0 {
			add("bgp", "BGPConfiguration/"+of, "%s: this node does not announce the addresses of Services", off)
		}
	}
	if own != nil && own.DrainPhase() != model.InService {
		add("node", name, "%s: the drain of this node has no effect; manxctl node undrain %s withdraws the request",
			off, name)
	}
	if policyOnly {
		return list
	}
	for _, pool := range ippool.ReadForWorkloads(r) {
		if pool.VXLAN == ippool.Never && hasFamily(own, pool.CIDR.Addr()) {
			add("dataplane", "IPPool/"+pool.Name, "no route to other nodes without BGP: pool %s (%s) has no vxlanMode",
				pool.Name, pool.CIDR)
		}
	}
	return list
}

// hasFamily reports whether a node has an address of the family of a. Pods of a node without one have none either.
func hasFamily(n *model.Node, a netip.Addr) bool {
	f := model.IPv4
	if a.Is6() {
		f = model.IPv6
	}
	return n == nil || n.Spec.BGP.Address(f).IsValid()
}

// selects reports whether a BGPPeer is for a node. One that cannot be used is for none.
func selects(p *model.BGPPeerSpec, name string, own *model.Node) bool {
	switch {
	case p.Node != "":
		return p.Node == name && p.NodeSelector == ""
	case p.NodeSelector == "":
		return true
	case own == nil:
		return false
	}
	s, err := selector.Parse(p.NodeSelector)
	return err == nil && s.Matches(own.Labels)
}
