package failure

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
		{Name: "what was changed by hand is repaired", Run: (*cluster).testDrift},
		{Name: "an interface without carrier ends its session with the router", Run: (*cluster).testCarrier},
		{Name: "garbage in the datastore concerns nothing else", Run: (*cluster).testGarbage},
		{Name: "an endpoint that claims the host's correspondents gets no route", Run: (*cluster).testClaims},
		{Name: "the datastore goes away and comes back", Run: (*cluster).testOutage},
		{Name: "an embedded datastore that cannot start takes no sessions with it", Run: (*cluster).testEmbeddedBroken},
		{Name: "a restart adopts the routes and prunes leftovers once in sync", Run: (*cluster).testRestart},
	})
}
