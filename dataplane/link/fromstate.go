package link

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Name is the target's in logs.
func (t *Target) Name() string { return "link" }

// Health is how the settings of interfaces are.
func (t *Target) Health() reconcile.Health {
	return reconcile.Health{Part: "interfaces", Failures: t.Failures(), Problem: t.Problem()}
}

// Notices are none: each setting has a row of its own.
func (t *Target) Notices() []reconcile.Notice { return nil }

// SetState takes over what a state wants of this host's interfaces.
func (t *Target) SetState(h *hoststate.Host) {
	t.SetPeering(h.Peering)
	if h.Concerned {
		t.Configure(fromState(h))
	}
}

// fromState is what the datastore wants of this host's interfaces.
func fromState(h *hoststate.Host) Config {
	c := Config{NoForwarding: h.Felix.IPForwarding == "Disabled"}
	for _, p := range h.Pools {
		cidr, err := netip.ParsePrefix(p.Spec.CIDR)
		c.IPIP = c.IPIP || err == nil && hoststate.IPIPMode(p.Spec, cidr) != v3.IPIPModeNever
	}
	if h.Felix.IPIPEnabled != nil {
		c.IPIP = *h.Felix.IPIPEnabled
	}
	if h.Felix.IPIPMTU != nil {
		c.IPIPMTU = *h.Felix.IPIPMTU
	}
	if a, err := netip.ParseAddr(h.BGPSpec().IPv4IPIPTunnelAddr); err == nil {
		c.TunnelAddress = a
	}
	if h.Felix.MTUIfacePattern != "" {
		if re, err := regexp.Compile(h.Felix.MTUIfacePattern); err == nil {
			c.MTUPattern = re
		}
	}
	for _, e := range h.Usable() {
		end := Endpoint{Interface: e.Spec.InterfaceName, Spoof: len(e.Spec.AllowSpoofedSourcePrefixes) > 0}
		for _, text := range e.Spec.IPNetworks {
			if p := hoststate.Address(text); p.IsValid() {
				end.V4, end.V6 = end.V4 || p.Addr().Is4(), end.V6 || p.Addr().Is6()
			}
		}
		c.Endpoints = append(c.Endpoints, end)
	}
	slices.SortFunc(c.Endpoints, func(a, b Endpoint) int { return strings.Compare(a.Interface, b.Interface) })
	return c
}
