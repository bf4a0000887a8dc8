package bgp

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
		{Name: "pods reach each other and the routers over IPv4 and IPv6", Run: (*cluster).testDualStack},
		{Name: "a released block is withdrawn", Run: (*cluster).testReleasedBlock},
		{Name: "two uplinks make two next hops", Run: (*cluster).testUplinks},
		{Name: "BIRD's clients are answered", Run: (*cluster).testBIRDSocket},
		{Name: "a drained node leaves the network and comes back", Run: (*cluster).testDrain},
		{Name: "services are announced and not installed", Run: (*cluster).testServices},
		{Name: "a plan from files is what the daemons do", Run: (*cluster).testPlan},
		{Name: "wrong peers show the reason", Run: (*cluster).testWrongPeers},
	})
}
