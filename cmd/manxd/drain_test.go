package main

import (
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// The drain counts the packets of the interfaces that are workloads' by the settings in force.
func TestDrainCountsWorkloadInterfaces(t *testing.T) {
	for _, c := range []struct {
		name, felix, flag string
		want              []string
	}{
		{"default", "", "", []string{"cali"}},
		{"FelixConfiguration", "tap,veth", "", []string{"tap", "veth"}},
		{"the flag comes first", "tap", "gke", []string{"gke"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tables := datastore.NewTables(zap.NewNop(), "")
			f := &model.FelixConfiguration{}
			f.Name, f.Spec.InterfacePrefix = "default", c.felix
			key := model.ResourceKey(model.KindFelixConfiguration, "default")
			tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: key,
				Object: &model.Object{Key: key, Value: f}}, datastore.Event{Type: datastore.EventInSync})
			local := &felixconfig.Local{}
			local.Spec.InterfacePrefix = c.flag
			got := workloadInterfaces(tables.Snapshot(), deps.Node{Name: "n", Felix: local})
			if !slices.Equal(got, c.want) {
				t.Errorf("have %v, want %v", got, c.want)
			}
		})
	}
}
