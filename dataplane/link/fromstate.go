package link

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Name is the target's in logs.
func (t *Target) Name() string { return "link" }

// Health returns the health of the settings of interfaces.
func (t *Target) Health() reconcile.Health {
	return reconcile.Health{Part: "interfaces", Failures: t.Failures(), Problem: t.problem()}
}

// Notices returns the missing encryption, and the variables that this process can never set, which have one cause.
// Every other setting has a row of its own.
func (t *Target) Notices() []reconcile.Notice {
	list := t.readOnlyNotice()
	if t.config.WireGuard {
		list = append(list, reconcile.Notice{Subject: "WireGuard", Since: t.unencrypted,
			Text: "FelixConfiguration sets wireguardEnabled or wireguardEnabledV6, which Manx does not support: the " +
				"traffic between this node and others is not encrypted"})
	}
	return list
}

// readOnlyNotice returns one notice about all variables that this process can never set, none if it can set them.
func (t *Target) readOnlyNotice() []reconcile.Notice {
	var refused *Status
	count := 0
	for _, s := range t.Statuses() {
		if s.ReadOnly {
			if count++; refused == nil || s.Forwarding() && !refused.Forwarding() {
				refused = &s
			}
		}
	}
	if refused == nil {
		return nil
	}
	return []reconcile.Notice{{Subject: "sysctls", Since: refused.Since, Text: fmt.Sprintf(
		"%d settings of the kernel are not made, for instance %s=%s: %v", count, refused.Name, refused.Desired,
		t.readOnly)}}
}

// SetState sets the wanted settings of this host's interfaces from a state.
func (t *Target) SetState(h *hoststate.Host) {
	t.setPeering(h.Peering)
	if h.Concerned {
		t.Configure(fromState(h))
	}
}

// fromState returns the interface settings that the datastore configures for this host.
func fromState(h *hoststate.Host) Config {
	c := Config{NoForwarding: h.Felix.IPForwarding == "Disabled", IPv6: usesIPv6(h)}
	ipip, mtu := h.PoolTable().Use(ippool.IPIP), 0
	for _, enabled := range []*bool{h.Felix.WireguardEnabled, h.Felix.WireguardEnabledV6} {
		c.WireGuard = c.WireGuard || enabled != nil && *enabled
	}
	if h.Felix.IPIPEnabled != nil {
		ipip = *h.Felix.IPIPEnabled
	}
	if h.Felix.IPIPMTU != nil {
		mtu = *h.Felix.IPIPMTU
	}
	if ipip {
		c.Devices = append(c.Devices, IPIP(h.Own.TunnelAddress(model.DeviceIPIP), mtu))
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
		c.IPv6 = c.IPv6 || end.V6
		c.Endpoints = append(c.Endpoints, end)
	}
	slices.SortFunc(c.Endpoints, func(a, b Endpoint) int { return strings.Compare(a.Interface, b.Interface) })
	return c
}

// usesIPv6 reports whether this node has an IPv6 address or an IPv6 block. A pool alone is no use: a default one is
// made wherever the kernel has IPv6.
func usesIPv6(h *hoststate.Host) bool {
	if h.BGPSpec().Address(model.IPv6).IsValid() {
		return true
	}
	for block := range h.Blocks {
		if block.Addr().Is6() {
			return true
		}
	}
	return false
}
