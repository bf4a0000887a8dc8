package model

import (
	"cmp"
	"encoding/json"
)

// AnnotationKubeLabels is an annotation of Calico's Node: the labels that it has from Kubernetes, as a JSON map.
const AnnotationKubeLabels = "projectcalico.org/kube-labels"

// KeepFilled gives n the fields of an earlier version of the Node that n lacks and that users do not write: its host
// fills in the addresses, the tunnels and the interfaces, Calico's controllers or the Kubernetes API the names in
// orchestrators and the labels from Kubernetes. The AS number and the role in BGP are the user's.
func (n *Node) KeepFilled(was *Node) {
	n.keepLabels(was)
	n.keepBGP(was)
	to, from := &n.Spec, &was.Spec
	for _, f := range []struct {
		to   *string
		from string
	}{
		{&to.IPv4VXLANTunnelAddr, from.IPv4VXLANTunnelAddr}, {&to.VXLANTunnelMACAddr, from.VXLANTunnelMACAddr},
		{&to.IPv6VXLANTunnelAddr, from.IPv6VXLANTunnelAddr}, {&to.VXLANTunnelMACAddrV6, from.VXLANTunnelMACAddrV6},
	} {
		*f.to = cmp.Or(*f.to, f.from)
	}
	if to.Wireguard == nil {
		to.Wireguard = from.Wireguard
	}
	if to.OrchRefs == nil {
		to.OrchRefs = from.OrchRefs
	}
	if to.Interfaces == nil {
		to.Interfaces = from.Interfaces
	}
}

// keepBGP also keeps the list of addresses, which contains those of BGP, unless one of them changes.
func (n *Node) keepBGP(was *Node) {
	var before, bgp NodeBGPSpec
	if was.Spec.BGP != nil {
		before = *was.Spec.BGP
	}
	if n.Spec.BGP != nil {
		bgp = *n.Spec.BGP
	}
	bgp.IPv4Address = cmp.Or(bgp.IPv4Address, before.IPv4Address)
	bgp.IPv6Address = cmp.Or(bgp.IPv6Address, before.IPv6Address)
	bgp.IPv4IPIPTunnelAddr = cmp.Or(bgp.IPv4IPIPTunnelAddr, before.IPv4IPIPTunnelAddr)
	if bgp != (NodeBGPSpec{}) {
		n.Spec.BGP = &bgp
	}
	if n.Spec.Addresses == nil && bgp.IPv4Address == before.IPv4Address && bgp.IPv6Address == before.IPv6Address {
		n.Spec.Addresses = was.Spec.Addresses
	}
}

func (n *Node) keepLabels(was *Node) {
	var kube map[string]string
	if json.Unmarshal([]byte(was.Annotations[AnnotationKubeLabels]), &kube) != nil {
		return // it has none
	}
	for name := range kube {
		label, there := was.Labels[name]
		if _, own := n.Labels[name]; own || !there {
			continue
		}
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[name] = label
	}
}
