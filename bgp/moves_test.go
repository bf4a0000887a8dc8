package bgp

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/floating"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// The address of a virtual machine that moves here is announced when it runs here, and then before ordinary routes.
func TestMovesAreAnnounced(t *testing.T) {
	objects := world(t, v4node("a", "10.0.0.1"), `pool p {"cidr":"10.1.0.0/16"}`, "block a 10.1.0.0/26 confirmed",
		`felix default {"ipv4ElevatedRoutePriority":300,"floatingIPs":"Enabled"}`,
		`wep vm {"node":"a","interfaceName":"cali1","ipNetworks":["10.1.2.3/32","10.1.0.3/32"],`+
			`"ipNATs":[{"internalIP":"10.1.2.3","externalIP":"10.9.0.3"}]}@{"kubevirt.io/migrationJobUID":"u",`+
			`"vmi.kubevirt.io/id":"db"}`)
	const hidden = "10.1.0.3/32"
	m := &model.VirtualMachineInstanceMigration{}
	if err := json.Unmarshal([]byte(`{"metadata":{"uid":"u","namespace":"default"},"spec":{"vmiName":"db"},
		"status":{"phase":"Running"}}`), m); err != nil {
		t.Fatal(err)
	}
	pool := object(t, model.KindIPPool, "floating", `{"cidr":"10.9.0.0/16","disabled":true}`)
	pool.Value.(*model.IPPool).Annotations = map[string]string{floating.Annotation: "true"}
	objects = append([]*model.Object{pool}, objects...)
	vm := objects[len(objects)-1]
	vm.Value.(*model.WorkloadEndpoint).Namespace = "default"
	phase := func(p livemigration.Phase) map[model.Key]livemigration.Phase {
		return map[model.Key]livemigration.Phase{vm.Key: p}
	}
	move := model.NewObject(model.Key{Kind: model.KindMigration, Namespace: "default", Name: "m"}, m)
	for name, c := range map[string]struct {
		phases map[model.Key]livemigration.Phase
		moves  bool
		want   uint32 // the metric that the route has at other nodes; 0: it is not announced
	}{
		"it does not move":                     {nil, false, NormalPriority},
		"the dataplane has not seen it yet":    {nil, true, 0},
		"it is to arrive":                      {phase(livemigration.Arriving), true, 0},
		"it runs here":                         {phase(livemigration.Arrived), true, 300},
		"it runs here, and the move has ended": {phase(livemigration.Arrived), false, 300},
		"it leaves":                            {phase(livemigration.Leaving), true, NormalPriority},
	} {
		all := objects
		if c.moves {
			all = append(slices.Clone(objects), move)
		}
		d := Compute(Input{Reader: model.NewSet(all...), Node: "a", Moves: c.phases})
		for _, prefix := range []string{"10.1.2.3/32", "10.9.0.3/32", hidden} { // own, floating, inside an own block
			got := uint32(0)
			for _, o := range d.Originated {
				if o.Prefix.String() != prefix {
					continue
				}
				got = MaxPriority - o.LocalPref
				if accept, rule := d.exportable(o.Candidate()); !accept {
					t.Errorf("%s: %s is not exported: %s", name, prefix, rule)
				}
			}
			want := c.want
			if prefix == hidden && want == NormalPriority { // the block is announced
				want = 0
			}
			if got != want {
				t.Errorf("%s: priority of %s %d, want %d", name, prefix, got, want)
			}
		}
	}
	if d := (Desired{}); !d.DependsOn("a", nil, move) {
		t.Error("a move does not matter")
	}
}
