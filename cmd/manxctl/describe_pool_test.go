package main

import (
	"math/big"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// TestWhyNotForAsIPAM: describe says of a pool what IPAM decides, also in the cases that a datastore with checks lacks.
func TestWhyNotForAsIPAM(t *testing.T) {
	usage := ipam.PoolUsage{Capacity: big.NewInt(4), Reserved: big.NewInt(2), InUse: 3, ReservedInUse: 2}
	full := usage
	full.ReservedInUse = 1
	for _, x := range []struct {
		usage           ipam.PoolUsage
		node, namespace string // selectors
		want            string // empty: it serves the pod
	}{
		{usage, "", "", ""},
		{full, "", "", "full: "},
		{usage, "", "!has(team)", ""}, // the labels of the namespace are not known
		{usage, "", "team == 'a'", "the labels of the namespace are not known"},
		{usage, "(", "", "IPAM refuses all requests of its family"},
		{usage, "", "(", "IPAM refuses all requests of its family"},
	} {
		pool := &model.IPPool{}
		pool.Spec.CIDR, pool.Spec.NodeSelector, pool.Spec.NamespaceSelector = "10.0.0.0/30", x.node, x.namespace
		got := whyNotFor(pool, x.usage, "n1", nil, nil)
		if x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%q, %q: %q, want %q", x.node, x.namespace, got, x.want)
		}
	}
}
