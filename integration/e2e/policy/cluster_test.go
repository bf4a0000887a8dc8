package policy

import (
	"fmt"

	"github.com/manxnet/manx/integration/e2e/world"
)

// cluster is a world.Cluster, with what the tests of this folder do to it.
type cluster struct{ *world.Cluster }

const limit = world.Limit

// atLeast is nil once a count has got that far.
func atLeast(what string, have, want int64) error {
	if have < want {
		return fmt.Errorf("%d %s, want %d", have, what, want)
	}
	return nil
}

var must, eventually = world.Must, world.Eventually
