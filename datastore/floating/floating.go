// Package floating decides which floating addresses of workloads are used. It is pure.
package floating

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// most is the number of floating addresses that one workload can have.
const most = 32

// Annotation marks an IP pool whose addresses the authors of workloads may choose as floating ones, with "true".
const Annotation = "manx.io/floating"

// Rules are the rules of one state of the datastore.
type Rules struct {
	pools  ippool.Table
	marked map[string]bool
}

// Read returns the rules that follow from the IP pools.
func Read(r model.Reader) Rules {
	rules := Rules{pools: ippool.Read(r), marked: map[string]bool{}}
	for k, v := range model.All[model.IPPool](r, model.KindIPPool) {
		rules.marked[k.Name] = v.Annotations[Annotation] == "true" && v.Spec.Disabled
	}
	return rules
}

// Used returns those floating addresses of a workload that are used, and why the others are not, one sentence each. The
// author of a pod writes them, so an address is used only from an IP pool that an administrator has marked for that,
// and disabled, so that IPAM assigns none of it. A pool may also be disabled because it is being emptied, or because it
// names networks that need no translation: then its addresses are those of others.
func (r Rules) Used(w *model.WorkloadEndpointSpec) (used []model.IPNAT, refusals []string) {
	for i, n := range w.IPNATs {
		if why := r.refuse(n); why != "" {
			refusals = append(refusals, fmt.Sprintf("the floating address %s is not used: %s", n.ExternalIP, why))
			continue
		}
		if len(used) == most {
			return used, append(refusals, fmt.Sprintf("%d of its floating addresses are not used: a workload can have "+
				"%d", len(w.IPNATs)-i, most))
		}
		used = append(used, n)
	}
	return used, refusals
}

func (r Rules) refuse(n model.IPNAT) string {
	text, _, _ := strings.Cut(n.ExternalIP, "/")
	external, err := netip.ParseAddr(text)
	p := r.pools.OfAddress(external)
	switch {
	case err != nil:
		return "it is not an address"
	case p == nil:
		return "it is in no IP pool"
	case !r.marked[p.Name]:
		return fmt.Sprintf("IP pool %s is not one for floating addresses: disabled, with the annotation %s: \"true\"",
			p.Name, Annotation)
	}
	return ""
}
