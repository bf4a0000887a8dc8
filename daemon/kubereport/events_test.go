package kubereport

import (
	"testing"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// The leading node records the Events about the cluster, also while the first node by name is away. Without an election
// the first node by name records them.
func TestOneNodeRecordsClusterEvents(t *testing.T) {
	tables := datastore.NewTables(zap.NewNop(), "n2")
	for _, name := range []string{"n1", "n2"} { // n1 is away
		n := model.NewObject(model.ResourceKey(model.KindNode, name),
			&model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		tables.Apply(datastore.Event{Type: datastore.EventUpdate, Key: n.Key, Object: n})
	}
	tables.Apply(datastore.Event{Type: datastore.EventInSync})
	leading := false
	e := &Events{Deps: deps.Deps{Node: deps.Node{Name: "n2"}, Tables: tables},
		from: Sources{Leads: func() bool { return leading }}}
	if e.reportsCluster() {
		t.Error("a node that does not lead records them")
	}
	if leading = true; !e.reportsCluster() {
		t.Error("the leader does not record them: another node comes first by name")
	}
	if e.from.Leads = nil; e.reportsCluster() {
		t.Error("n2 records them without an election")
	}
	if e.Node.Name = "n1"; !e.reportsCluster() {
		t.Error("n1 does not record them without an election")
	}
}
