package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Conflict is a setting that the node cannot follow, or that leaves pools without their overlay.
type Conflict struct{ Setting, Text string }

// Conflicts returns those of a node, in the order of the list of overlays.
func Conflicts(f *model.FelixConfigurationSpec, pools ippool.Table) (list []Conflict) {
	for _, o := range all {
		s := o.Settings(f)
		if s.On == nil || *s.On {
			continue
		}
		var names []string
		for _, p := range pools {
			if o.serves(p) {
				names = append(names, p.Name)
			}
		}
		if slices.Sort(names); len(names) > 0 {
			list = append(list, Conflict{s.Enabled, fmt.Sprintf("it is false, while pools need %s (%s): the routes "+
				"to other nodes that need it are blocked", o.Name, strings.Join(names, ", "))})
		}
	}
	return slices.Concat(list, vxlanConflicts(f), mtuConflicts(f, pools), externalConflicts(f),
		wireguardConflicts(f))
}

// mtuConflicts are MTUs with which an overlay would carry no packets.
func mtuConflicts(f *model.FelixConfigurationSpec, pools ippool.Table) (list []Conflict) {
	for _, o := range all {
		s := o.Settings(f)
		if s.MTU == nil || *s.MTU == 0 || !o.Used(f, pools) {
			continue
		}
		if least := leastMTU(o.Family); *s.MTU < least {
			list = append(list, Conflict{s.MTUName, fmt.Sprintf("%d is less than %d, which each host of IPv%d must "+
				"take: the MTU is computed from the host's instead. Set it to 0, or to %[2]d at least",
				*s.MTU, least, o.Family)})
		}
	}
	return list
}

// externalConflicts are texts that let no program outside the cluster through.
func externalConflicts(f *model.FelixConfigurationSpec) (list []Conflict) {
	if f.ExternalNodesCIDRList == nil {
		return nil
	}
	for _, text := range *f.ExternalNodesCIDRList {
		_, noAddress := netip.ParseAddr(text)
		if _, err := netip.ParsePrefix(text); err != nil && noAddress != nil {
			list = append(list, Conflict{"externalNodesList",
				fmt.Sprintf("%q is neither an address nor a CIDR: it is not used", text)})
		}
	}
	return list
}

// vxlanConflicts are values that other programs let into the datastore.
func vxlanConflicts(f *model.FelixConfigurationSpec) (list []Conflict) {
	for _, x := range []struct {
		setting string
		value   *int
		used    int
	}{
		{"vxlanPort", f.VXLANPort, int(vxlanPackets(f).Port)}, {"vxlanVNI", f.VXLANVNI, int(vni(f))},
	} {
		if x.value != nil && *x.value != x.used {
			list = append(list, Conflict{x.setting, fmt.Sprintf("%d is out of range: %d is used", *x.value, x.used)})
		}
	}
	return list
}
