package model

import (
	"fmt"
	"iter"
	"reflect"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Object is one entry of the datastore: its key, its revision and its decoded value.
//
// Objects in tables, lists and snapshots are shared: never change Value in place, take a Clone first.
type Object struct {
	Key Key
	// Revision is the datastore's revision of the last write, 0 for an object that was never stored. It is comparable
	// only within a kind.
	Revision int64
	// Value points to the kind's type (*Node, *BGPPeer, *v3.Profile, *Block, ...), or is a *Workload (of
	// another node). Nil when Err is set and nothing could be decoded.
	Value any
	// Err is the reason why the stored entry cannot be used. Such an object is quarantined: shown, but never used.
	Err error

	// Raw is the object as it is stored, nil for an object that was not read. It has also the fields that the type does
	// not have. It must not be changed.
	Raw []byte
}

// Reader gives read access to a consistent set of objects. Snapshots and Sets implement it. It does not return
// quarantined objects.
type Reader interface {
	// Get returns nil if there is no such object.
	Get(Key) *Object
	// All visits the objects of a kind in key order.
	All(Kind) iter.Seq[*Object]
}

// Type lists the types of Value, so that a wrong one (the API module's type of the same name, for instance) does not
// compile.
type Type interface {
	Node | IPPool | v3.IPReservation | BGPConfiguration | BGPFilter | BGPPeer | v3.ClusterInformation |
		FelixConfiguration | IPAMConfiguration | KubeControllersConfiguration | v3.Profile | Tier | WorkloadEndpoint |
		v3.CalicoNodeStatus | Block | BlockAffinity | Handle | IPAMConfig |
		v3.NetworkPolicy | v3.GlobalNetworkPolicy | v3.StagedNetworkPolicy | v3.StagedGlobalNetworkPolicy |
		v3.StagedKubernetesNetworkPolicy | v3.NetworkSet | v3.GlobalNetworkSet | v3.HostEndpoint |
		Service | EndpointSlice | networkingv1.NetworkPolicy | ClusterNetworkPolicy | Namespace | ServiceAccount | Pod |
		VirtualMachineInstanceMigration
}

// Get returns the typed value of an object, or nil if it is absent.
func Get[T Type](r Reader, k Key) *T {
	if o := r.Get(k); o != nil {
		if v, ok := o.Value.(*T); ok {
			return v
		}
	}
	return nil
}

// All visits the typed values of a kind in key order.
func All[T Type](r Reader, kind Kind) iter.Seq2[Key, *T] {
	return func(yield func(Key, *T) bool) {
		for o := range r.All(kind) {
			if v, ok := o.Value.(*T); ok && !yield(o.Key, v) {
				return
			}
		}
	}
}

// NewObject wraps a value for storing under key. A value of another type than the kind's is a programming error and
// panics.
func NewObject(key Key, value any) *Object {
	if info, ok := Lookup(key.Kind); !ok || reflect.TypeOf(info.New()) != reflect.TypeOf(value) {
		panic(fmt.Sprintf("model: the value of %s cannot be a %T", key, value))
	}
	return &Object{Key: key, Value: value}
}

// Metadata returns the metadata of a v3 resource, nil for an IPAM object.
func (o *Object) Metadata() metav1.Object {
	m, _ := o.Value.(metav1.Object)
	return m
}

// Replaces sets the object that o is to replace. Encoding then keeps the fields of stored that this version does not
// know, and o gets the uid and creation time of stored unless it has its own.
func (o *Object) Replaces(stored *Object) {
	o.Raw = stored.Raw
	m, was := o.Metadata(), stored.Metadata()
	if m == nil || was == nil {
		return
	}
	if m.GetUID() == "" {
		m.SetUID(was.GetUID())
	}
	if created := m.GetCreationTimestamp(); created.IsZero() {
		m.SetCreationTimestamp(was.GetCreationTimestamp())
	}
}
