package node

import (
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// cluster is a world.Cluster, with the actions of this folder's tests.
type cluster struct{ *world.Cluster }

const limit = world.Limit

var must, eventually = world.Must, world.Eventually

// TestCluster runs the tests that share one cluster. Each of them restores it.
func TestCluster(t *testing.T) {
	c := &cluster{world.NewCluster(t)}
	world.InOrder(t, c, []world.Step[*cluster]{
		{Name: "the status commands show the state of the node", Run: (*cluster).testStatus},
		{Name: "a datastore that does not answer", Run: (*cluster).testSilentDatastore},
		{Name: "CalicoNodeStatus objects are filled in", Run: (*cluster).testNodeStatus},
		{Name: "thirty pods at once", Run: (*cluster).testManyPods},
		{Name: "a restored datastore", Run: (*cluster).testRestoredDatastore},
		{Name: "a daemon that is stopped", Run: (*cluster).testStoppedDaemon},
		{Name: "a read-only disk", Run: (*cluster).testReadOnlyDisk},
		{Name: "a second daemon is refused", Run: (*cluster).testTwin},
	})
}
