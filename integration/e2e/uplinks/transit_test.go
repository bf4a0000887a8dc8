package uplinks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestTransit: without the filter a host passes on the routes of one router to the other; with it, it does not.
func TestTransit(t *testing.T) {
	if _, err := lab.Require("ip", "bird", "birdc"); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	f := newFabric(t, "wt", "on", without(t, ", filters: [no-transit]", ""))
	through := func(want bool) {
		t.Helper()
		world.Eventually(t, func() error {
			seen := ""
			for i, tor := range f.tors { // one of both: a host sends its best path alone, and not back to its sender
				out, err := tor.birdc("show", "route", "all")
				if err != nil {
					return err
				}
				path := fmt.Sprintf("BGP.as_path: %d %d %d", hostAS, torAS(1-i), hostAS)
				if strings.Contains(out, path) {
					seen += tor.name + " has a route with " + path + "\n"
				}
			}
			if (seen != "") != want {
				return fmt.Errorf("a router has routes of the other one through a host: want %t\n%s", want, seen)
			}
			return nil
		})
	}
	through(true)
	world.Must(t, f.hosts[0].Apply(documented(t)))
	through(false)
	f.settled(t)
}
