package model

import (
	"errors"
	"iter"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RemoteEndpoint is the Value of a WorkloadEndpoint of another node in tables that keep no more of it than policy and
// routes need: in a large cluster such endpoints are most of what a node knows. Workload makes a WorkloadEndpoint of
// it.
type RemoteEndpoint struct {
	common *WorkloadEndpoint // what it shares with others of its kind
	node   string
	// pod, interface and networks, a line each: one piece of memory instead of many small ones
	own  string
	rest *WorkloadEndpointSpec // of what few have; nil if there is nothing
}

// Remote reduces a WorkloadEndpoint to what other nodes need. What is left out: annotations and other metadata but
// labels, a pod's container, MAC address, gateways, and all fields that its type does not know. text and common may
// return an equal value that they have already, so that it is kept once. scratch is what common is given, which must
// not keep it.
func (o *Object) Remote(
	scratch *WorkloadEndpoint, text func(string) string, common func(*WorkloadEndpoint) *WorkloadEndpoint,
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
		endpoint RemoteEndpoint
	}{endpoint: RemoteEndpoint{node: text(s.Node), own: own}}
	e := &reduced.endpoint
	*scratch = WorkloadEndpoint{
		TypeMeta:   metav1.TypeMeta{Kind: string(KindWorkloadEndpoint), APIVersion: APIVersion},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Labels: w.Labels},
		Spec: WorkloadEndpointSpec{Orchestrator: s.Orchestrator, Endpoint: s.Endpoint,
			ServiceAccountName: s.ServiceAccountName,
			Profiles:           s.Profiles, Ports: s.Ports},
	}
	e.common = common(scratch)
	rest := WorkloadEndpointSpec{Workload: s.Workload, IPNATs: s.IPNATs,
		AllowSpoofedSourcePrefixes: s.AllowSpoofedSourcePrefixes, QoSControls: s.QoSControls}
	if s.Orchestrator != "k8s" {
		rest.ContainerID = s.ContainerID // it may be what people know the workload by
	}
	if !reflect.ValueOf(rest).IsZero() {
		e.rest = &rest
	}
	key := Key{Kind: o.Key.Kind, Namespace: e.common.Namespace, Name: o.Key.Name}
	reduced.Object = Object{Key: key, Revision: o.Revision, Value: e}
	return &reduced.Object
}

// SameRemote tells whether two objects are versions of one reduced endpoint that differ in nothing but their revisions.
// It may miss that they do.
func SameRemote(a, b *Object) bool {
	if a == nil || b == nil || a.Err != nil || b.Err != nil {
		return false
	}
	x, _ := a.Value.(*RemoteEndpoint)
	y, _ := b.Value.(*RemoteEndpoint)
	return x != nil && y != nil && a.Key == b.Key && x.node == y.node && x.own == y.own && x.common == y.common &&
		x.rest == nil && y.rest == nil
}

// Workload returns the WorkloadEndpoint that an object is, be it kept whole or reduced, or nil. It must not be changed,
// and a reduced one cannot be stored.
func (o *Object) Workload() *WorkloadEndpoint {
	if o == nil {
		return nil
	}
	e, ok := o.Value.(*RemoteEndpoint)
	if !ok {
		w, _ := o.Value.(*WorkloadEndpoint)
		return w
	}
	w := *e.common
	w.Name = o.Key.Name
	s := &w.Spec
	own := strings.Split(e.own, "\n")
	s.Node, s.Pod, s.InterfaceName = e.node, own[0], own[1]
	if len(own) > 2 {
		s.IPNetworks = own[2:]
	}
	if e.rest != nil {
		s.Workload, s.ContainerID = e.rest.Workload, e.rest.ContainerID
		s.IPNATs, s.AllowSpoofedSourcePrefixes, s.QoSControls = e.rest.IPNATs, e.rest.AllowSpoofedSourcePrefixes,
			e.rest.QoSControls
	}
	return &w
}

// MarshalJSON fails: nobody may store a part in the place of the whole.
func (*RemoteEndpoint) MarshalJSON() ([]byte, error) {
	return nil, errors.New("only a part of the endpoint is here: it must be read from the datastore before it " +
		"can be changed")
}

// AllWorkloads visits the WorkloadEndpoints of all nodes in key order. All gives those that are kept whole: this
// node's.
func AllWorkloads(r Reader) iter.Seq2[Key, *WorkloadEndpoint] {
	return func(yield func(Key, *WorkloadEndpoint) bool) {
		for o := range r.All(KindWorkloadEndpoint) {
			if w := o.Workload(); w != nil && !yield(o.Key, w) {
				return
			}
		}
	}
}
