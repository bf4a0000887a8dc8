package kernel

import (
	"fmt"
	"os"
	"testing"
)

// In a network namespace in which no address was ever set there is not even the main table: it has no routes.
func TestBareNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	name := fmt.Sprintf("manx-bare-%d", os.Getpid())
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "ip", "netns", "del", name) })
	c, err := Open("/run/netns/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // everything has been answered
	for range 2 {
		if routes, err := c.ListRoutes(); err != nil || len(routes) > 0 {
			t.Errorf("routes %v, %v", routes, err)
		}
		run(t, "ip", "-n", name, "link", "set", "lo", "up")
		run(t, "ip", "-n", name, "link", "set", "lo", "down")
	}
}
