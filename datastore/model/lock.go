package model

import v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

// Locks reports whether an object, which may be nil, is a ClusterInformation that locks the datastore: then only the
// program that has locked it writes.
func Locks(o *Object) bool {
	if o == nil {
		return false
	}
	info, ok := o.Value.(*v3.ClusterInformation)
	return ok && info.Spec.DatastoreReady != nil && !*info.Spec.DatastoreReady
}

// Locked reports whether the datastore is locked. A cluster in which no node has started yet is not.
func Locked(r Reader) bool { return Locks(r.Get(ResourceKey(KindClusterInformation, "default"))) }
