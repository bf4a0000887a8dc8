package bgp

import (
	"iter"
	"net/netip"
	"reflect"
	"slices"

	"github.com/manxnet/manx/datastore/floating"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// DependsOn reports whether the change of an object can change d, which Compute decided for a node from objects with
// before among them. before or after is nil if it does not exist. Other settings of Input are the same.
//
// If it returns false, Compute decides the same. Sessions are thus spared most changes in a cluster: pods that come and
// go inside blocks that the node advertises, and blocks, pods and labels of other nodes.
func (d Desired) DependsOn(node string, before, after *model.Object) bool {
	o := after
	if o == nil {
		o = before
	}
	switch o.Key.Kind {
	case model.KindNode:
		return o.Key.Name == node || nodesDiffer(valueOf[model.Node](before), valueOf[model.Node](after))
	case model.KindBlockAffinity:
		was, _ := ownership.BlockOf(o.Key, valueOf[model.BlockAffinity](before))
		is, _ := ownership.BlockOf(o.Key, valueOf[model.BlockAffinity](after))
		return was != is && (was.Node == node || is.Node == node || d.refusesByBlocks())
	case model.KindWorkloadEndpoint:
		return d.dependsOnWorkload(workloadOn(node, before), workloadOn(node, after))
	case model.KindService, model.KindEndpointSlice:
		return d.servicesMatter(before, after)
	}
	return slices.Contains(Kinds(), o.Key.Kind)
}

// nodesDiffer compares the fields of another node that Compute reads.
func nodesDiffer(a, b *model.Node) bool {
	return a == nil || b == nil || !reflect.DeepEqual(a.Labels, b.Labels) || !reflect.DeepEqual(a.Spec.BGP, b.Spec.BGP)
}

// workloadOn is the workload of an object if it is on this node, otherwise nil.
func workloadOn(node string, o *model.Object) *model.Workload {
	if w := o.Workload(); w != nil && w.Node == node {
		return w
	}
	return nil
}

// dependsOnWorkload compares two workloads of this node; nil: none.
func (d Desired) dependsOnWorkload(was, is *model.Workload) bool {
	if was == nil && is == nil {
		return false
	}
	if d.WorkloadPeers {
		return true
	}
	if was != nil && is != nil && was.Interface == is.Interface &&
		slices.Equal(was.Networks, is.Networks) && slices.Equal(was.IPNATs, is.IPNATs) {
		return false
	}
	shown := func(a netip.Addr) bool { return a.IsValid() && !d.hides(hostPrefix(a)) }
	for _, w := range []*model.Workload{was, is} {
		if w != nil && (slices.ContainsFunc(w.Networks, func(p netip.Prefix) bool { return shown(p.Addr()) }) ||
			slices.ContainsFunc(w.IPNATs, func(n model.IPNAT) bool { return shown(floating.External(n)) })) {
			return true
		}
	}
	return false
}

// hides reports whether the address of a workload is not originated, whichever interface it is on. An ordinary route
// inside one of NoExportPrefixes is never exported by default, and services leave these prefixes alone: see limit.
func (d Desired) hides(address netip.Prefix) bool {
	if !insideAny(d.NoExportPrefixes, address) {
		return false
	}
	for s := range d.filterViews(address.Addr().Is6()) {
		if d.mayLetOut(s, address) {
			return false
		}
	}
	return true
}

// mayLetOut reports whether the export filters of a session accept an own route, if its interface and priority suit
// them.
func (d Desired) mayLetOut(s *Session, p netip.Prefix) bool {
	for r := range d.rules(s, true) {
		sure := r.Interface == "" && r.Priority == 0
		r.Interface, r.Priority = "", 0
		switch {
		case !r.matches(*s, Candidate{Prefix: p, Source: SourceOwn}, true):
		case r.Accept:
			return true
		case sure:
			return false
		}
	}
	return false
}

// filterViews yields one session of each kind that export filters distinguish, for those that have filters.
func (d Desired) filterViews(six bool) iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		var seen []*Session
		for i := range d.Sessions {
			s := &d.Sessions[i]
			if len(s.Filters) == 0 || s.Address.Is6() != six || slices.ContainsFunc(seen, func(o *Session) bool {
				return (o.PeerAS == o.LocalAS) == (s.PeerAS == s.LocalAS) && slices.Equal(o.Filters, s.Filters)
			}) {
				continue
			}
			seen = append(seen, s)
			if !yield(s) {
				return
			}
		}
	}
}
