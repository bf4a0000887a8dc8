package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// dscps are the DSCPs that packets of this node's endpoints get when they leave the cluster. Each one that is in use
// has rules, and sets of the source addresses.
type dscps struct {
	table   *ruleset.Table
	of      map[model.Key]ruleset.DSCP
	sources map[ruleset.DSCP]nodeNets // by the name of the endpoint
}

const (
	dscpChain = "postrouting-dscp"
	dscpSet   = "dscp-%d-ipv"
	// dscpAnnotation of a HostEndpoint.
	dscpAnnotation = "qos.projectcalico.org/dscp"
)

// parseDSCP reads a number or a name, such as EF; false if it is neither.
func parseDSCP(text string) (ruleset.DSCP, bool) {
	if text == "" {
		return ruleset.DSCP{}, false
	}
	d := numorstring.DSCPFromString(text)
	if d.Validate() != nil {
		return ruleset.DSCP{}, false
	}
	return ruleset.DSCP{Set: true, Value: d.ToUint8()}, true
}

// set replaces the DSCP of an endpoint: none without addresses.
func (s *dscps) set(k model.Key, d ruleset.DSCP, addresses []netip.Prefix) {
	if len(addresses) == 0 {
		d = ruleset.DSCP{}
	}
	before := s.of[k]
	if !d.Set && !before.Set {
		return
	}
	if d.Set {
		sources, used := s.sources[d]
		if !used {
			sources = newAddressNets(s.table, fmt.Sprintf(dscpSet, d.Value),
				fmt.Sprintf("sources of packets with DSCP %d", d.Value), false, EndpointSet)
			s.sources[d] = sources
		}
		s.of[k] = d
		sources.set(k.String(), addresses)
		if !used {
			s.write()
		}
	}
	if before.Set && before != d {
		sources := s.sources[before]
		if sources.set(k.String(), nil); len(sources.of) == 0 {
			delete(s.sources, before)
			s.write()
			for _, family := range families {
				s.table.DeleteSet(fmt.Sprintf(dscpSet, before.Value) + fmt.Sprint(family))
			}
		}
	}
	if !d.Set {
		delete(s.of, k)
	}
}

// write writes the rules, before the translation of sources (priority 100).
func (s *dscps) write() {
	if len(s.sources) == 0 {
		s.table.DeleteChain(dscpChain)
		return
	}
	chain := &ruleset.Chain{Name: dscpChain, Base: base(ruleset.Postrouting, -150)}
	for _, d := range slices.SortedFunc(maps.Keys(s.sources), func(a, b ruleset.DSCP) int {
		return int(a.Value) - int(b.Value)
	}) {
		for _, family := range families {
			chain.Rules = append(chain.Rules, ruleset.Rule{Matches: append(ofSet(family, ruleset.Source,
				fmt.Sprintf(dscpSet, d.Value)),
				ruleset.Match{Field: ruleset.Destination, Not: true, Set: poolsSet + fmt.Sprint(family)},
				ruleset.Match{Field: ruleset.DestinationLocal, Not: true}), DSCP: d,
				Comment: "DSCP of packets that leave the cluster"})
		}
	}
	s.table.SetChain(chain)
}

// dscpOfHost returns the DSCP of the packets from a host endpoint's expectedIPs, by its annotation. problem is why the
// annotation has no effect.
func dscpOfHost(h *v3.HostEndpoint) (d ruleset.DSCP, addresses []netip.Prefix, problem string) {
	text, ok := h.Annotations[dscpAnnotation]
	if !ok {
		return d, nil, ""
	}
	d, ok = parseDSCP(text)
	if !ok {
		return d, nil, fmt.Sprintf("the annotation %s = %q must be a number from 0 to 63 or a name like EF, AF11 or "+
			"CS1: it is left out", dscpAnnotation, text)
	}
	for _, ip := range h.Spec.ExpectedIPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			addresses = append(addresses, hostPrefix(a.Unmap()))
		}
	}
	if len(addresses) == 0 {
		problem = "the annotation " + dscpAnnotation + " is about packets from expectedIPs, which it does not have"
	}
	return d, addresses, problem
}
