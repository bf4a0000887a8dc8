package model

import (
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"reflect"
	"slices"
)

// Workload is a WorkloadEndpoint as a node's parts read it: its addresses are parsed. Tables keep the endpoints of
// other nodes in this form alone: in a large cluster they are most of a node's objects. It must not be changed.
type Workload struct {
	*CommonEndpoint
	*RareEndpoint
	Node, Pod, Interface string
	// Networks are the addresses of the endpoint's own, without malformed ones.
	Networks []netip.Prefix
	owner    uint64 // see Owner
}

// CommonEndpoint has the fields of a WorkloadEndpoint that are equal for many endpoints, such as those of a Deployment.
type CommonEndpoint struct {
	Namespace                                  string
	Labels                                     map[string]string
	Orchestrator, Endpoint, ServiceAccountName string
	Profiles                                   []string
	Ports                                      []EndpointPort
}

// RareEndpoint has the fields of a WorkloadEndpoint that few endpoints of other nodes have.
type RareEndpoint struct {
	Workload, ContainerID, MAC string
	IPNATs                     []IPNAT
	AllowSpoofedSourcePrefixes []string
	QoSControls                *QoSControls
	Claim                      *Claim
}

var nothingRare = &RareEndpoint{}

// Remote reduces a WorkloadEndpoint to the fields that other nodes need: its Workload without a pod's container and MAC
// address. It drops other metadata, gateways, and all unknown fields. text and common may return an equal value that is
// already stored, so that it is kept once. scratch is the argument of common, which must not keep it.
func (o *Object) Remote(
	scratch *CommonEndpoint, text func(string) string, common func(*CommonEndpoint) *CommonEndpoint,
) *Object {
	whole, ok := o.Value.(*WorkloadEndpoint)
	if !ok {
		return o
	}
	reduced := &struct { // one piece of memory
		Object
		workload Workload
	}{workload: o.workload(whole)}
	w := &reduced.workload
	w.Node = text(w.Node)
	*scratch = whole.common()
	w.CommonEndpoint = common(scratch)
	rare := whole.Spec.rare()
	if rare.MAC = ""; w.Orchestrator == "k8s" {
		rare.ContainerID = "" // other orchestrators' may identify the workload for people
	}
	w.RareEndpoint = nothingRare
	if !reflect.ValueOf(rare).IsZero() {
		w.RareEndpoint = &rare
	}
	key := Key{Kind: o.Key.Kind, Namespace: w.Namespace, Name: o.Key.Name}
	reduced.Object = Object{Key: key, Revision: o.Revision, Value: w}
	return &reduced.Object
}

// workload returns the fields that each endpoint has for itself.
func (o *Object) workload(w *WorkloadEndpoint) Workload {
	return Workload{Node: w.Spec.Node, Pod: w.Spec.Pod, Interface: w.Spec.InterfaceName,
		Networks: Networks(w.Spec.IPNetworks), owner: o.Owner()}
}

func (w *WorkloadEndpoint) common() CommonEndpoint {
	s := &w.Spec
	return CommonEndpoint{Namespace: w.Namespace, Labels: w.Labels, Orchestrator: s.Orchestrator, Endpoint: s.Endpoint,
		ServiceAccountName: s.ServiceAccountName, Profiles: s.Profiles, Ports: s.Ports}
}

func (s *WorkloadEndpointSpec) rare() RareEndpoint {
	return RareEndpoint{Workload: s.Workload, ContainerID: s.ContainerID, MAC: s.MAC, IPNATs: s.IPNATs,
		AllowSpoofedSourcePrefixes: s.AllowSpoofedSourcePrefixes, QoSControls: s.QoSControls, Claim: s.Claim}
}

// SameRemote reports whether two objects are versions of one reduced endpoint that differ only in their revisions. It
// may return false for such objects.
func SameRemote(a, b *Object) bool {
	if a == nil || b == nil || a.Err != nil || b.Err != nil {
		return false
	}
	x, _ := a.Value.(*Workload)
	y, _ := b.Value.(*Workload)
	return x != nil && y != nil && a.Key == b.Key && x.Node == y.Node && x.owner == y.owner && x.Pod == y.Pod &&
		x.Interface == y.Interface && slices.Equal(x.Networks, y.Networks) && x.CommonEndpoint == y.CommonEndpoint &&
		x.RareEndpoint == nothingRare && y.RareEndpoint == nothingRare
}

// Owner identifies the workload of a WorkloadEndpoint, whole or reduced: another pod of the same name has another UID.
// It is the same in each process, and 0 for other objects.
func (o *Object) Owner() uint64 {
	switch w := o.Value.(type) {
	case *Workload:
		return w.owner
	case *WorkloadEndpoint:
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\n%s\n%s", o.Key.Namespace, o.Key.Name, w.UID)
		return h.Sum64()
	}
	return 0
}

// Workload returns the Workload of a WorkloadEndpoint, whole or reduced, or nil. It makes that of a whole one, so a
// reader that needs it again keeps it. To make it once, when the object enters the tables, would need more code: an
// engine of CNI reads the endpoint of a pod whole to write it again, so tables would hold both forms of some 30.
// o may be nil.
func (o *Object) Workload() *Workload {
	if o == nil {
		return nil
	}
	switch v := o.Value.(type) {
	case *Workload:
		return v
	case *WorkloadEndpoint:
		w, common, rare := o.workload(v), v.common(), v.Spec.rare()
		w.CommonEndpoint, w.RareEndpoint = &common, &rare
		return &w
	}
	return nil
}

// Has reports whether an address is the workload's own.
func (w *Workload) Has(a netip.Addr) bool {
	return slices.ContainsFunc(w.Networks, func(p netip.Prefix) bool { return p.Addr() == a })
}

// Confirmed returns the workload with the addresses of its claim as its own. w is not changed.
func (w *Workload) Confirmed() *Workload {
	if w.Claim == nil {
		return w
	}
	confirmed, rare := *w, *w.RareEndpoint
	confirmed.Networks, rare.IPNATs, rare.Claim = Networks(w.Claim.IPNetworks), w.Claim.IPNATs, nil
	confirmed.RareEndpoint = &rare
	return &confirmed
}

// MarshalJSON fails: a Workload must not be stored.
func (*Workload) MarshalJSON() ([]byte, error) {
	return nil, errors.New("only a part of the endpoint is here: it must be read from the datastore before it " +
		"can be changed")
}

// AllWorkloads visits the WorkloadEndpoints of all nodes in key order. All visits only the whole ones: this node's.
func AllWorkloads(r Reader) iter.Seq2[Key, *Workload] {
	return func(yield func(Key, *Workload) bool) {
		for o := range r.All(KindWorkloadEndpoint) {
			if w := o.Workload(); w != nil && !yield(o.Key, w) {
				return
			}
		}
	}
}
