package bgp

import (
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

func TestDrainFollowsTheNodesAnnotations(t *testing.T) {
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        Drain
	}{
		{"in service", nil, DrainNone},
		{"ordered", map[string]string{model.AnnotationDrain: "x"}, DrainDraining},
		{"ordered and withdrawn", map[string]string{model.AnnotationDrain: "x", model.AnnotationDrained: "y"},
			DrainWithdrawn},
		{"called back", map[string]string{model.AnnotationDrained: "y"}, DrainDraining},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &model.Node{}
			n.Annotations = tc.annotations
			c := &cluster{me: &node{object: n}}
			if got := c.drain(); got != tc.want {
				t.Errorf("drain() = %q, want %q", got, tc.want)
			}
		})
	}
}
