package hoststate

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/floating"
	"github.com/manxnet/manx/datastore/model"
)

// Endpoint is a WorkloadEndpoint of this host with its addresses, which are parsed once.
type Endpoint struct {
	*model.WorkloadEndpoint
	// Networks are those of the spec, without malformed ones.
	Networks []netip.Prefix
}

func newEndpoint(w *model.WorkloadEndpoint) *Endpoint {
	return &Endpoint{WorkloadEndpoint: w, Networks: parse(w.Spec.IPNetworks)}
}

func parse(texts []string) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		if p := Address(text); p.IsValid() {
			list = append(list, p)
		}
	}
	return list
}

// Address parses "10.0.0.5/24"; without a length it is a subnet of its own.
func Address(text string) netip.Prefix {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen())
	}
	return netip.Prefix{}
}

// Addresses returns the addresses routed to a workload: its own and, if they are in use, its floating ones. refusals
// has a sentence for each floating one that is not.
func (h *Host) Addresses(e *Endpoint) (list []netip.Prefix, refusals []string) {
	if len(e.Spec.IPNATs) == 0 || !h.Felix.UsesFloatingIPs() {
		return e.Networks, nil
	}
	used, refusals := floating.Read(h.Reader).Used(&e.Spec)
	var more []string
	for _, n := range used {
		more = append(more, n.ExternalIP)
	}
	return slices.Concat(e.Networks, parse(more)), refusals
}
