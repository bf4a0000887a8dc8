package policy

import (
	"net/netip"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// hostTunnel is the encryption of packets between the nodes themselves, of one family.
type hostTunnel struct {
	overlay.Encryption
	own netip.Addr // this node's, invalid if it has none
}

// Chains of packets that the routes to other nodes through a tunnel do not concern: they get its mark.
const (
	arrivedPlain = "prerouting-not-encrypted"
	sentPlain    = "output-not-encrypted"
)

const (
	// afterDNAT is after destinations are translated, at -100: a packet for a pod elsewhere is none for this host.
	afterDNAT = -90
	// beforeOutputPolicy is after connections are tracked, at -200.
	beforeOutputPolicy = -150
)

// hostTunnelsOf returns those in use by a node.
func hostTunnelsOf(f *model.FelixConfigurationSpec, own *model.Node) (list []hostTunnel) {
	for _, e := range overlay.Encryptions(f) {
		if e.Hosts {
			list = append(list, hostTunnel{e, own.HostAddress(e.Family)})
		}
	}
	return list
}

// writeHostTunnels writes the chains about packets between nodes themselves.
func (c *Calculator) writeHostTunnels() {
	for _, x := range []struct {
		name  string
		base  *ruleset.Base
		rules []ruleset.Rule
	}{
		{arrivedPlain, base(ruleset.Prerouting, afterDNAT), c.settings.arrived()},
		{sentPlain, &ruleset.Base{Hook: ruleset.Output, Type: ruleset.Route, Priority: beforeOutputPolicy},
			c.settings.sentByOthers()},
	} {
		if len(x.rules) == 0 {
			c.table.DeleteChain(x.name)
			continue
		}
		c.table.SetChain(&ruleset.Chain{Name: x.name, Base: x.base, Rules: x.rules})
	}
}

// arrived marks packets to this host itself that come in from other nodes by another way than the tunnel, and the
// tunnel's own: strict rp_filter would drop them, since the way back to their source is the tunnel. Forwarded packets
// get no mark, which would keep them out of the tunnel.
func (s *settings) arrived() (rules []ruleset.Rule) {
	for _, t := range s.hostTunnels {
		family := uint32(t.Family)
		in := []ruleset.Match{{Field: ruleset.InInterface, Not: true, Name: t.Device}}
		for _, p := range s.prefixes {
			in = append(in, ruleset.Match{Field: ruleset.InInterface, Not: true, Name: p + "*"})
		}
		mark := func(comment string, m ...ruleset.Match) {
			rules = append(rules, ruleset.Rule{Matches: append(append([]ruleset.Match{ofFamily(family)}, in...),
				append(m, ruleset.Match{Field: ruleset.DestinationLocal})...),
				Mark: ruleset.Mark{Value: t.Mark, Mask: t.Mark}, Comment: comment})
		}
		mark("packets of "+t.Name, ruleset.Match{Field: ruleset.Protocol, Low: protoUDP},
			ruleset.Match{Field: ruleset.DestinationPort, Low: uint32(t.Port)})
		mark("unencrypted from another node", ofSet(family, ruleset.Source, hostsSet)...)
	}
	return rules
}

// notTheNodes leaves the node's own address as it is in a tunnel to the nodes themselves: the device has it, too, but
// the kernel's answer whether it does is about one of the interfaces that have it.
func (s *settings) notTheNodes(device string) (list []ruleset.Match) {
	for _, t := range s.hostTunnels {
		if t.Device == device && t.own.IsValid() {
			list = append(list, ofFamily(uint32(t.Family)),
				ruleset.Match{Field: ruleset.Source, Not: true, Prefix: hostPrefix(t.own)})
		}
	}
	return list
}

// sentByOthers marks packets that this host sends to other nodes from an address that they do not know as the node's,
// such as one of another interface, or of a service: they would drop them in the tunnel.
func (s *settings) sentByOthers() (rules []ruleset.Rule) {
	for _, t := range s.hostTunnels {
		if !t.own.IsValid() {
			continue
		}
		family := uint32(t.Family)
		rules = append(rules, ruleset.Rule{
			Matches: append(ofSet(family, ruleset.Destination, hostsSet),
				ruleset.Match{Field: ruleset.Source, Not: true, Prefix: hostPrefix(t.own)},
				ruleset.Match{Field: ruleset.SourceLocal}),
			Mark:    ruleset.Mark{Value: t.Mark, Mask: t.Mark},
			Comment: "from an address that is not the node's"})
	}
	return rules
}
