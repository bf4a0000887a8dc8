package server

import (
	"context"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// NodeView shows this node's place in the cluster, and accepts requests about it.
type NodeView struct {
	shown[NodeSource]
	node      string
	datastore *DatastoreView
	bgp       *BGPView
}

// NodeSource is the source of a NodeView.
type NodeSource struct {
	// Addresses are the candidates of the last address detection; nil: there was none yet.
	Addresses func() []AddressCandidate
}

// AddressCandidate is one address that could be the node's.
type AddressCandidate struct {
	Address   netip.Prefix
	Interface string
	Method    string // the detection method that selected or skipped it
	Chosen    bool
	Reason    string // why chosen or skipped
}

func (v *NodeView) status(r *manxv1.GetStatusResponse) {
	snapshot := v.datastore.snapshot()
	if snapshot == nil {
		return
	}
	n := model.Get[model.Node](snapshot, model.ResourceKey(model.KindNode, v.node))
	if n != nil && n.Spec.BGP != nil {
		r.Ipv4, r.Ipv6 = n.Spec.BGP.IPv4Address, n.Spec.BGP.IPv6Address
	}
}

// ListAddresses implements manxv1.ManxServer.
func (v *NodeView) ListAddresses(context.Context, *manxv1.ListAddressesRequest) (*manxv1.ListAddressesResponse, error) {
	r := &manxv1.ListAddressesResponse{}
	addresses := v.now().Addresses
	if addresses == nil {
		return r, nil
	}
	for _, a := range addresses() {
		r.Addresses = append(r.Addresses, &manxv1.AddressCandidate{
			Family: family(a.Address.Addr()), Address: text(a.Address), Interface: a.Interface,
			Chosen: a.Chosen, Reason: a.Reason, Method: a.Method,
		})
	}
	return r, nil
}
