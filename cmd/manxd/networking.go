package main

import (
	"fmt"

	"github.com/manxnet/manx/daemon/envflag"
)

const (
	networkingFlag    = "networking"
	networkingBackend = "CALICO_NETWORKING_BACKEND"
)

// The kinds of networking, in Calico's words for its backends.
const (
	networkingBIRD  = "bird"
	networkingVXLAN = "vxlan"
	networkingNone  = "none"
)

// networkingOptions choose what this node does for the network of pods.
type networkingOptions struct{ backend string }

// Flags implements group.
func (o *networkingOptions) Flags(s envflag.Set) {
	s.String(&o.backend, networkingFlag, networkingBIRD, "bird: BGP, here by GoBGP; vxlan: no BGP, so that only pools "+
		"with vxlanMode have routes to other nodes; none: policy alone, beside the CNI plugin of another network",
		"CALICO_NETWORKING", networkingBackend)
}

// Check implements group. It replaces other words for the same: gobgp, and those of CALICO_NETWORKING.
func (o *networkingOptions) Check() error {
	switch o.backend {
	case networkingBIRD, networkingVXLAN, networkingNone:
	case "gobgp", "true":
		o.backend = networkingBIRD
	case "false":
		o.backend = networkingNone
	default:
		return fmt.Errorf("--%s=%s: want %s, %s or %s (%s; CALICO_NETWORKING: true or false)", networkingFlag,
			o.backend, networkingBIRD, networkingVXLAN, networkingNone, networkingBackend)
	}
	return nil
}

// bgp reports whether this node speaks BGP.
func (o *networkingOptions) bgp() bool { return o.backend == networkingBIRD }

// policyOnly reports whether another network connects the pods of this node.
func (o *networkingOptions) policyOnly() bool { return o.backend == networkingNone }

// bgpOff is why this node has no BGP; empty: it has.
func (o *networkingOptions) bgpOff() string {
	if o.bgp() {
		return ""
	}
	return fmt.Sprintf("BGP is off (%s=%s)", networkingBackend, o.backend)
}

// mtuFile is the path of the file with the MTU of pods; empty: another program decides it.
func (o *options) mtuFile() string {
	if o.networking.policyOnly() {
		return ""
	}
	return o.host.mtuFile
}
