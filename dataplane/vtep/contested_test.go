package vtep

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// Whatever nodes come, change and go, and whichever of their addresses they share, no two of them have the same one,
// and the oldest of those that claim it is not refused because of a younger one.
func TestNoAddressHasTwoNodes(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		table, nodes := NewTable(model.IPv4), map[string]*model.Node{}
		for step := range 200 {
			name := fmt.Sprintf("n%d", r.IntN(8))
			n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
				CreationTimestamp: metav1.NewTime(time.Unix(int64(r.IntN(5)), 0))}}
			n.Spec.BGP = &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("10.0.0.%d/24", r.IntN(30))}
			n.Spec.IPv4VXLANTunnelAddr = fmt.Sprintf("10.1.0.%d", r.IntN(30))
			if r.IntN(3) == 0 {
				n.Spec.VXLANTunnelMACAddr = fmt.Sprintf("66:00:00:00:00:%02x", r.IntN(10))
			}
			if nodes[name] = n; r.IntN(3) == 0 {
				n = nil
				delete(nodes, name)
			}
			table.Set(name, n)
			users, refused := map[any]string{}, table.Refused()
			for v := range table.All() {
				for _, k := range []any{v.Address, v.Tunnel, v.MAC} {
					if other := users[k]; other != "" {
						t.Fatalf("seed %d, step %d: %s and %s both have %v", seed, step, other, v.Node, k)
					}
					users[k] = v.Node
				}
			}
			for name, n := range nodes {
				own, err := Of(name, n, model.IPv4)
				if err != nil {
					continue
				}
				first := true
				for other, m := range nodes {
					v, err := Of(other, m, model.IPv4)
					age := n.CreationTimestamp.Compare(m.CreationTimestamp.Time)
					if err == nil && other != name && (age > 0 || age == 0 && name > other) &&
						(v.Address == own.Address || v.Tunnel == own.Tunnel || v.MAC == own.MAC) {
						first = false
					}
				}
				if refused[name] == nil != first {
					t.Fatalf("seed %d, step %d: %s is first: %t, refused: %v", seed, step, name, first, refused[name])
				}
			}
		}
		for name := range nodes {
			table.Set(name, nil)
		}
		if table.contested != 0 || len(table.owners) != 0 {
			t.Fatalf("seed %d: without a node there are %d contested ones of %v", seed, table.contested, table.owners)
		}
	}
}
