package model

import (
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// Only datastoreReady false locks the datastore.
func TestLocked(t *testing.T) {
	key := ResourceKey(KindClusterInformation, "default")
	info := func(ready *bool) *Object {
		return NewObject(key, &v3.ClusterInformation{Spec: v3.ClusterInformationSpec{DatastoreReady: ready}})
	}
	for name, c := range map[string]struct {
		objects []*Object
		want    bool
	}{
		"none":       {nil, false},
		"unset":      {[]*Object{info(nil)}, false},
		"ready":      {[]*Object{info(new(true))}, false},
		"locked":     {[]*Object{info(new(false))}, true},
		"unreadable": {[]*Object{{Key: key}}, false},
	} {
		if got := Locked(NewSet(c.objects...)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
