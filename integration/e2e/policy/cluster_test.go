package policy

import "github.com/manxnet/manx/integration/e2e/world"

// cluster is a world.Cluster, with what the tests of this folder do to it.
type cluster struct{ *world.Cluster }

const limit = world.Limit

var must, eventually = world.Must, world.Eventually
