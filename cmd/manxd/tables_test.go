package main

import (
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// A datastore is locked while datastoreReady is false, and not if nothing says so.
func TestNoticeOfALockedDatastore(t *testing.T) {
	yes, no := true, false
	for _, ready := range []*bool{nil, &yes, &no} {
		info := &v3.ClusterInformation{Spec: v3.ClusterInformationSpec{DatastoreReady: ready}}
		list := locked(model.NewSet(model.NewObject(model.ResourceKey(model.KindClusterInformation, "default"), info)))
		if want := ready == &no; want != (len(list) == 1 && strings.Contains(list[0].Text, "the datastore is locked")) {
			t.Errorf("datastoreReady %v: %v", ready, list)
		}
	}
	if list := locked(model.NewSet()); len(list) > 0 {
		t.Errorf("a new cluster: %v", list)
	}
}
