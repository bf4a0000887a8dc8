package policy

import (
	"fmt"

	"github.com/manxnet/manx/integration/e2e/world"
)

// cluster is a world.Cluster, with the actions of this folder's tests.
type cluster struct{ *world.Cluster }

const limit = world.Limit

// atLeast returns nil once a count has reached n.
func atLeast(what string, have, want int64) error {
	if have < want {
		return fmt.Errorf("%d %s, want %d", have, what, want)
	}
	return nil
}

var must, eventually = world.Must, world.Eventually
