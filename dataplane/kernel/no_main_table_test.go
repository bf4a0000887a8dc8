package kernel

import (
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// A network namespace without any address so far has no main table: it has no routes.
func TestBareNamespace(t *testing.T) {
	name := nettest.Bare(t)
	c, err := Open(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // everything has been answered
	for range 2 {
		if routes, err := c.ListRoutes(); err != nil || len(routes) > 0 {
			t.Errorf("routes %v, %v", routes, err)
		}
		nettest.Run(t, "ip", "-n", name, "link", "set", "lo", "up")
		nettest.Run(t, "ip", "-n", name, "link", "set", "lo", "down")
	}
}
