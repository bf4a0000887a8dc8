package model

import (
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// remoteEndpoint is the Value of another node's WorkloadEndpoint in tables that keep only the fields for policy and
// routes: in a large cluster such endpoints are most of a node's objects. Workload converts it to a WorkloadEndpoint.
type remoteEndpoint struct {
	common *CommonEndpoint // fields shared with similar endpoints
	node   string
	owner  uint64 // see Owner
	// pod, interface and networks, a line each: one piece of memory instead of many small ones
	own  string
	rest *WorkloadEndpointSpec // rare fields; nil if there are none
}

// CommonEndpoint has the fields of a WorkloadEndpoint that are equal for many endpoints, such as those of a Deployment.
type CommonEndpoint struct {
	Namespace                                  string
	Labels                                     map[string]string
	Orchestrator, Endpoint, ServiceAccountName string
	Profiles                                   []string
	Ports                                      []EndpointPort
}

// Remote reduces a WorkloadEndpoint to the fields that other nodes need. It drops annotations and other metadata except
// labels, a pod's container, MAC address, gateways, and all unknown fields. text and common may return an equal value
// that is already stored, so that it is kept once. scratch is the argument of common, which must not keep it.
func (o *Object) Remote(
	scratch *CommonEndpoint, text func(string) string, common func(*CommonEndpoint) *CommonEndpoint,
) *Object {
	w, ok := o.Value.(*WorkloadEndpoint)
	if !ok {
		return o
	}
	s := w.Spec
	own := strings.Join(append([]string{s.Pod, s.InterfaceName}, s.IPNetworks...), "\n")
	if strings.Count(own, "\n") != len(s.IPNetworks)+1 {
		return o // a name of more than one line
	}
	reduced := &struct { // one piece of memory
		Object
		endpoint remoteEndpoint
	}{endpoint: remoteEndpoint{node: text(s.Node), owner: o.Owner(), own: own}}
	e := &reduced.endpoint
	*scratch = CommonEndpoint{Namespace: w.Namespace, Labels: w.Labels, Orchestrator: s.Orchestrator,
		Endpoint: s.Endpoint, ServiceAccountName: s.ServiceAccountName, Profiles: s.Profiles, Ports: s.Ports}
	e.common = common(scratch)
	rest := WorkloadEndpointSpec{Workload: s.Workload, IPNATs: s.IPNATs,
		AllowSpoofedSourcePrefixes: s.AllowSpoofedSourcePrefixes, QoSControls: s.QoSControls, Claim: s.Claim}
	if s.Orchestrator != "k8s" {
		rest.ContainerID = s.ContainerID // it may identify the workload for people
	}
	if !reflect.ValueOf(rest).IsZero() {
		e.rest = &rest
	}
	key := Key{Kind: o.Key.Kind, Namespace: e.common.Namespace, Name: o.Key.Name}
	reduced.Object = Object{Key: key, Revision: o.Revision, Value: e}
	return &reduced.Object
}

// SameRemote reports whether two objects are versions of one reduced endpoint that differ only in their revisions. It
// may return false for such objects.
func SameRemote(a, b *Object) bool {
	if a == nil || b == nil || a.Err != nil || b.Err != nil {
		return false
	}
	x, _ := a.Value.(*remoteEndpoint)
	y, _ := b.Value.(*remoteEndpoint)
	return x != nil && y != nil && a.Key == b.Key && x.node == y.node && x.owner == y.owner && x.own == y.own &&
		x.common == y.common &&
		x.rest == nil && y.rest == nil
}

// Owner identifies the workload of a WorkloadEndpoint, whole or reduced: another pod of the same name has another UID.
// It is the same in each process, and 0 for other objects.
func (o *Object) Owner() uint64 {
	switch w := o.Value.(type) {
	case *remoteEndpoint:
		return w.owner
	case *WorkloadEndpoint:
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\n%s\n%s", o.Key.Namespace, o.Key.Name, w.UID)
		return h.Sum64()
	}
	return 0
}

// Workload returns the WorkloadEndpoint of an object, whole or reduced, or nil. It must not be changed, and a reduced
// one cannot be stored.
func (o *Object) Workload() *WorkloadEndpoint {
	if o == nil {
		return nil
	}
	e, ok := o.Value.(*remoteEndpoint)
	if !ok {
		w, _ := o.Value.(*WorkloadEndpoint)
		return w
	}
	c := e.common
	w := &WorkloadEndpoint{
		TypeMeta:   metav1.TypeMeta{Kind: string(KindWorkloadEndpoint), APIVersion: APIVersion},
		ObjectMeta: metav1.ObjectMeta{Name: o.Key.Name, Namespace: c.Namespace, Labels: c.Labels},
		Spec: WorkloadEndpointSpec{Orchestrator: c.Orchestrator, Endpoint: c.Endpoint,
			ServiceAccountName: c.ServiceAccountName, Profiles: c.Profiles, Ports: c.Ports},
	}
	s := &w.Spec
	own := strings.Split(e.own, "\n")
	s.Node, s.Pod, s.InterfaceName = e.node, own[0], own[1]
	if len(own) > 2 {
		s.IPNetworks = own[2:]
	}
	if e.rest != nil {
		s.Workload, s.ContainerID = e.rest.Workload, e.rest.ContainerID
		s.IPNATs, s.AllowSpoofedSourcePrefixes, s.QoSControls, s.Claim = e.rest.IPNATs,
			e.rest.AllowSpoofedSourcePrefixes, e.rest.QoSControls, e.rest.Claim
	}
	return w
}

// MarshalJSON fails: a reduced endpoint must not be stored.
func (*remoteEndpoint) MarshalJSON() ([]byte, error) {
	return nil, errors.New("only a part of the endpoint is here: it must be read from the datastore before it " +
		"can be changed")
}

// AllWorkloads visits the WorkloadEndpoints of all nodes in key order. All visits only the whole ones: this node's.
func AllWorkloads(r Reader) iter.Seq2[Key, *WorkloadEndpoint] {
	return func(yield func(Key, *WorkloadEndpoint) bool) {
		for o := range r.All(KindWorkloadEndpoint) {
			if w := o.Workload(); w != nil && !yield(o.Key, w) {
				return
			}
		}
	}
}
