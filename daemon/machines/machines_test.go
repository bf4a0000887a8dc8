package machines

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// IPAM learns once that a machine runs here, not before, however often that fails, and also when the move has ended or
// this process was away meanwhile.
func TestRecord(t *testing.T) {
	k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "n1-k8s-db-eth0"}
	pod := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1", Pod: "db", Orchestrator: "k8s",
		Endpoint: "eth0"}}
	pod.Namespace, pod.Name = k.Namespace, k.Name
	pod.Labels = map[string]string{model.LabelMigrationJob: "u", "vmi.kubevirt.io/id": "web", labelMachine: "web"}
	move := func(phase string) *model.VirtualMachineInstanceMigration {
		m := &model.VirtualMachineInstanceMigration{}
		m.Namespace, m.Name, m.UID, m.Spec.VMIName, m.Status.Phase = "shop", "m", "u", "web", phase
		return m
	}
	at := model.Key{Kind: model.KindMigration, Namespace: "shop", Name: "m"}
	type step struct {
		phase    livemigration.Phase // as the dataplane has it
		move     string              // the phase of the migration; empty: it is gone
		fails    bool
		promotes int // how often so far
		ok       bool
	}
	for name, steps := range map[string][]step{
		"it arrives": {{livemigration.Arriving, "Running", false, 0, true},
			{livemigration.Arrived, "Running", false, 1, true}, {livemigration.Arrived, "Succeeded", false, 1, true},
			{livemigration.None, "Succeeded", false, 1, true}},
		"IPAM fails for long": {{livemigration.Arriving, "Running", false, 0, true},
			{livemigration.Arrived, "Running", true, 1, false}, {livemigration.None, "", true, 2, false},
			{livemigration.None, "", false, 3, true}, {livemigration.None, "", false, 3, true}},
		"this process starts later": {{livemigration.None, "Succeeded", false, 1, true},
			{livemigration.None, "", false, 1, true}},
		"it starts when all is over": {{livemigration.None, "", false, 1, true}},
		"it starts during the move": {{livemigration.None, "Running", false, 0, true},
			{livemigration.Arrived, "Running", false, 1, true}},
		"it starts after a failed move": {{livemigration.None, "Failed", false, 0, true},
			{livemigration.Arriving, "Failed", false, 0, true}},
		"it leaves": {{livemigration.Leaving, "", false, 0, true}},
	} {
		t.Run(name, func(t *testing.T) {
			tables := datastore.NewTables(zap.NewNop(), "n1")
			var calls []string
			phases, failure := map[model.Key]livemigration.Phase{}, error(nil)
			p := &Part{node: "n1", tables: tables, log: zap.NewNop(), pending: map[model.Key]string{},
				done:  map[model.Key]bool{},
				moves: func() map[model.Key]livemigration.Phase { return phases },
				promote: func(_ context.Context, handle, namespace, pod string) error {
					calls = append(calls, handle+" "+namespace+"/"+pod)
					return failure
				}}
			tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: k, Object: model.NewObject(k, pod),
				Revision: 1})
			for i, s := range steps {
				revision := int64(i + 2)
				e := datastore.Event{Type: datastore.EventDelete, Key: at, Revision: revision}
				if s.move != "" {
					e.Type, e.Object = datastore.EventUpdate, model.NewObject(at, move(s.move))
				}
				tables.Apply(e, datastore.Event{Type: datastore.EventInSync, Revision: revision})
				clear(phases)
				if s.phase != livemigration.None {
					phases[k] = s.phase
				}
				if failure = nil; s.fails {
					failure = errors.New("away")
				}
				if ok := p.record(t.Context()); ok != s.ok || len(calls) != s.promotes {
					t.Fatalf("step %d: ok %v, calls %q; want %+v", i, ok, calls, s)
				}
			}
			for _, c := range calls {
				if c != "k8s-pod-network.vmi.shop.web shop/db" {
					t.Error(c)
				}
			}
		})
	}
}
