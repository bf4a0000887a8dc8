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

// Translation is a floating address that is used, and the own address of the workload that it stands for.
type Translation struct {
	External netip.Addr
	Internal netip.Addr // invalid if it is malformed
}

// Used returns those floating addresses of a workload that are used, and why the others are not, one sentence each. The
// author of a pod writes them, so an address is used only from an IP pool that an administrator has marked for that,
// and disabled, so that IPAM assigns none of it. A pool may also be disabled because it is being emptied, or because it
// names networks that need no translation: then its addresses are those of others.
func (r Rules) Used(nats []model.IPNAT) (used []Translation, refusals []string) {
	for i, n := range nats {
		external := External(n)
		if why := r.refuse(external); why != "" {
			refusals = append(refusals, fmt.Sprintf("the floating address %s is not used: %s", n.ExternalIP, why))
			continue
		}
		if len(used) == most {
			return used, append(refusals, fmt.Sprintf("%d of its floating addresses are not used: a workload can have "+
				"%d", len(nats)-i, most))
		}
		internal, _ := netip.ParseAddr(n.InternalIP)
		used = append(used, Translation{external, internal})
	}
	return used, refusals
}

// External returns the floating address of a translation, invalid if it is malformed.
func External(n model.IPNAT) netip.Addr {
	text, _, _ := strings.Cut(n.ExternalIP, "/")
	external, _ := netip.ParseAddr(text)
	return external
}

func (r Rules) refuse(external netip.Addr) string {
	p := r.pools.OfAddress(external)
	switch {
	case !external.IsValid():
		return "it is not an address"
	case p == nil:
		return "it is in no IP pool"
	case !r.marked[p.Name]:
		return fmt.Sprintf("IP pool %s is not one for floating addresses: disabled, with the annotation %s: \"true\"",
			p.Name, Annotation)
	}
	return ""
}
