package bgp

import (
	"fmt"
	"maps"

	"github.com/manxnet/manx/datastore/model"
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

// workloadsMatching reads a selector over the labels of WorkloadEndpoints; the namespace counts as a label, too.
func workloadsMatching(field, text string) (func(model.Key, *model.Workload) bool, error) {
	s, err := selector.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s = %q is no selector: %w", field, text, err)
	}
	return func(k model.Key, w *model.Workload) bool {
		labels := map[string]string{"projectcalico.org/namespace": k.Namespace,
			"projectcalico.org/orchestrator": w.Orchestrator}
		maps.Copy(labels, w.OwnLabels())
		return s.Matches(labels)
	}, nil
}
