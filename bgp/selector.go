package bgp

import (
	"fmt"

	"github.com/manxnet/manx/datastore/selector"
)

// nodesMatching reads a selector over the labels of nodes.
func nodesMatching(field, text string) (func(*node) bool, error) {
	s, err := selector.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s = %q is no selector: %w", field, text, err)
	}
	return func(n *node) bool { return s.Matches(n.labels) }, nil
}
