package felixconfig

import (
	"iter"
	"reflect"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// Merge merges the settings for a node: for each field, the last value that Applicable visits takes priority, and those
// of the host itself (local, nil for none) come before all objects. A nil or empty field sets nothing. There are two
// exceptions: floatingIPs (see mergeFloatingIPs), and nodeSelector, which is no setting and left empty.
//
// Values are shared with the objects: never change the target of a pointer in them. The merge takes a few microseconds,
// plus the search for a configuration whose nodeSelector matches.
func Merge(r model.Reader, node string, local *Local) model.FelixConfigurationSpec {
	merged := merge(Applicable(r, node))
	local.over(&merged)
	return merged
}

// merge merges configurations, of which later ones take priority.
func merge(list iter.Seq2[string, *model.FelixConfiguration]) (merged model.FelixConfigurationSpec) {
	for _, f := range list {
		floating := mergeFloatingIPs(merged.FloatingIPs, f.Spec.FloatingIPs)
		overlay(reflect.ValueOf(&merged).Elem(), reflect.ValueOf(&f.Spec).Elem())
		merged.FloatingIPs = floating
	}
	merged.NodeSelector = ""
	return merged
}

// overlay copies the non-empty fields of top.
func overlay(bottom, top reflect.Value) {
	for i := range top.NumField() {
		switch f := top.Field(i); {
		case f.Kind() == reflect.Struct: // the embedded type
			overlay(bottom.Field(i), f)
		case isSet(f):
			bottom.Field(i).Set(f)
		}
	}
}

func isSet(f reflect.Value) bool {
	if k := f.Kind(); k == reflect.Slice || k == reflect.Map {
		return f.Len() > 0
	}
	return !f.IsZero()
}

// mergeFloatingIPs merges the setting floatingIPs of the cluster's and of a node's FelixConfiguration: Enabled takes
// priority. Calico's clients write Disabled as a default into each object, also into those of nodes, so that Disabled
// expresses no choice.
func mergeFloatingIPs(a, b *v3.FloatingIPType) *v3.FloatingIPType {
	if a != nil && *a == v3.FloatingIPsEnabled || b == nil {
		return a
	}
	return b
}
