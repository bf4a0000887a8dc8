package model

import "reflect"

// FelixOverlay merges the settings that hold for a node: field by field, what FelixConfigurations visits last wins. A
// field that is nil or empty says nothing. Two fields are their own: floatingIPs (see MergeFloatingIPs), and
// nodeSelector, which is no setting and left empty.
//
// Values are shared with the objects: never change what a pointer in them points to. The merge takes a few
// microseconds, whatever is set, beside the search for a configuration whose nodeSelector matches.
func FelixOverlay(r Reader, node string) FelixConfigurationSpec {
	var merged FelixConfigurationSpec
	for _, f := range FelixConfigurations(r, node) {
		floating := MergeFloatingIPs(merged.FloatingIPs, f.Spec.FloatingIPs)
		overlay(reflect.ValueOf(&merged).Elem(), reflect.ValueOf(&f.Spec).Elem())
		merged.FloatingIPs = floating
	}
	merged.NodeSelector = ""
	return merged
}

// overlay copies the fields of top that say something.
func overlay(bottom, top reflect.Value) {
	for i := range top.NumField() {
		switch f := top.Field(i); {
		case f.Kind() == reflect.Struct: // the embedded type
			overlay(bottom.Field(i), f)
		case says(f):
			bottom.Field(i).Set(f)
		}
	}
}

func says(f reflect.Value) bool {
	if k := f.Kind(); k == reflect.Slice || k == reflect.Map {
		return f.Len() > 0
	}
	return !f.IsZero()
}
