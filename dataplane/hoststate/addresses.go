package hoststate

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/floating"
	"github.com/manxnet/manx/datastore/model"
)

// Addresses returns the addresses routed to a workload: its own and, if they are in use, its floating ones. refusals
// has a sentence for each floating one that is not.
func (h *Host) Addresses(w *model.Workload) (list []netip.Prefix, refusals []string) {
	if len(w.IPNATs) == 0 || !h.Felix.UsesFloatingIPs() {
		return w.Networks, nil
	}
	used, refusals := floating.Read(h.Reader).Used(w.IPNATs)
	list = slices.Clone(w.Networks)
	for _, t := range used {
		list = append(list, netip.PrefixFrom(t.External, t.External.BitLen()))
	}
	return list, refusals
}
