package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/ipam"
)

// crowd are nodes that exist in the datastore alone: their Nodes, tunnel addresses and blocks are those that a daemon
// would have written.
type crowd struct {
	*vxlan
	store  datastore.Store
	alloc  *ipam.Allocator
	blocks map[string][]string // by the name of a simulated node, of both families
	tunnel map[string][]string // likewise
}

// crowdSize is the number of nodes of the cluster, with the three real ones.
func crowdSize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("MANX_VXLAN_NODES")
	if text == "" {
		return 200
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// TestVXLANTwoHundredNodes: nodes come to a cluster of VXLAN without BGP and go, while pods of real nodes talk. Each
// real node has the entries and routes of all others, and of no node that is gone; no packet gets lost. One node that
// comes changes nothing of the others'.
func TestVXLANTwoHundredNodes(t *testing.T) {
	size := crowdSize(t)
	x := &crowd{vxlan: newVXLAN(t, "vm", "CrossSubnet"), blocks: map[string][]string{},
		tunnel: map[string][]string{}}
	store, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{x.n1.EtcdSocket()}}, zap.NewNop())
	must(t, err)
	t.Cleanup(func() { store.Close() }) //nolint:errcheck // the test is over
	x.store, x.alloc = store, ipam.New(store, zap.NewNop(), time.Now)
	x.reaches(t)
	var flows []*lab.Flow
	for _, a := range []netip.Addr{x.pods[x.n2].IP4(), x.pods[x.n3].IP4(), x.pods[x.n3].IP6()} {
		flow, err := x.StartFlow(x.pods[x.n1].Namespace, a)
		must(t, err)
		flows = append(flows, flow)
	}

	begin := time.Now()
	for i := range size - len(x.Nodes) {
		x.add(t, i)
	}
	wrote := time.Since(begin)
	x.complete(t)
	t.Logf("%d nodes: the datastore had them after %.1f s, and all entries were there after another %.1f s", size,
		wrote.Seconds(), (time.Since(begin) - wrote).Seconds())
	for _, n := range x.Nodes {
		t.Logf("%s: manxd has %.0f MB", n.Name, world.Memory(t, n.Manxd().PID(), "VmRSS"))
	}

	before := x.kernel(t, x.n1)
	begin = time.Now()
	name := x.add(t, size)
	newcomer := slices.Concat(x.blocks[name], x.tunnel[name], []string{crowdAddress(size), crowdAddress6(size)})
	x.complete(t)
	t.Logf("one more node: %.2f s from the first write", time.Since(begin).Seconds())
	for line := range strings.Lines(x.kernel(t, x.n1)) {
		ofNewcomer := slices.ContainsFunc(strings.Fields(line),
			func(w string) bool { return slices.Contains(newcomer, w) })
		if !ofNewcomer && !strings.Contains(before, line) {
			t.Errorf("the node that came changed %s", line)
		}
	}

	begin = time.Now()
	for i := range (size - len(x.Nodes)) / 2 {
		x.remove(t, i)
	}
	x.complete(t)
	t.Logf("%d nodes are gone after %.1f s", (size-len(x.Nodes))/2, time.Since(begin).Seconds())
	for _, flow := range flows {
		x.lostNone(t, flow)
	}
	x.reaches(t)
}

func crowdName(i int) string { return fmt.Sprintf("s%03d", i) }

// crowdAddress is the address of a simulated node, in a subnet of its own.
func crowdAddress(i int) string  { return fmt.Sprintf("10.201.%d.%d", i/200, 1+i%200) }
func crowdAddress6(i int) string { return fmt.Sprintf("fd00:201::%x", 1+i) }

// add writes the objects of a node, in the order of a daemon, and returns its name.
func (x *crowd) add(t *testing.T, i int) string {
	t.Helper()
	name := crowdName(i)
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.BGP = &model.NodeBGPSpec{IPv4Address: crowdAddress(i) + "/32", IPv6Address: crowdAddress6(i) + "/128"}
	made, err := x.store.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindNode, name), n))
	must(t, err)
	for _, r := range []ipam.Request{
		{Num4: 1, Handle: "vxlan-tunnel-addr-" + name, Attrs: map[string]string{"type": "vxlanTunnelAddress"}},
		{Num6: 1, Handle: "vxlan-v6-tunnel-addr-" + name, Attrs: map[string]string{"type": "vxlanV6TunnelAddress"}},
	} {
		r.Host, r.Use, r.Attrs["node"] = name, v3.IPPoolAllowedUseTunnel, name
		got, err := x.alloc.AutoAssign(t.Context(), r)
		must(t, err)
		for _, p := range append(got.V4.Addresses, got.V6.Addresses...) {
			x.tunnel[name] = append(x.tunnel[name], p.Addr().String())
			bits := 26
			if p.Addr().Is6() {
				bits = 122
			}
			block, err := p.Addr().Prefix(bits)
			must(t, err)
			x.blocks[name] = append(x.blocks[name], block.String())
		}
	}
	n = made.Value.(*model.Node)
	n.Spec.IPv4VXLANTunnelAddr, n.Spec.IPv6VXLANTunnelAddr = x.tunnel[name][0], x.tunnel[name][1]
	_, err = x.store.Update(t.Context(), made)
	must(t, err)
	return name
}

// remove deletes a node as an administrator does, with its addresses and blocks.
func (x *crowd) remove(t *testing.T, i int) {
	t.Helper()
	name := crowdName(i)
	for _, handle := range []string{"vxlan-tunnel-addr-", "vxlan-v6-tunnel-addr-"} {
		_, err := x.alloc.ReleaseByHandle(t.Context(), handle+name)
		must(t, err)
	}
	must(t, x.alloc.ReleaseHostAffinities(t.Context(), ipam.Owner{Type: "host", Name: name}, true))
	_, err := x.store.Delete(t.Context(), model.ResourceKey(model.KindNode, name), 0)
	must(t, err)
	delete(x.blocks, name)
}

// kernel lists the entries and routes of a node's devices.
func (x *crowd) kernel(t *testing.T, n *lab.Node) string {
	t.Helper()
	out, err := n.Run("sh", "-c", "for d in vxlan.calico vxlan-v6.calico; do bridge fdb show dev $d; "+
		"ip neigh show dev $d nud permanent; ip route show dev $d; ip -6 route show dev $d; done")
	must(t, err)
	return out
}

// complete waits until n1 and n3 have routes to the blocks of all simulated nodes, and to those alone, with an entry of
// the forwarding database and a neighbour for each node and family.
func (x *crowd) complete(t *testing.T) {
	t.Helper()
	for _, n := range []*lab.Node{x.n1, x.n3} {
		eventually(t, func() error {
			got := x.kernel(t, n)
			var missing []string
			for name, blocks := range x.blocks {
				for _, b := range blocks {
					if !strings.Contains(got, "\n"+b+" via ") {
						missing = append(missing, b+" of "+name)
					}
				}
			}
			if len(missing) > 0 {
				return fmt.Errorf("%s has no route to %d blocks, such as %s", n.Name, len(missing), missing[0])
			}
			lab := strings.Count(got, " dst 10.200.") + strings.Count(got, " dst fd00:200:")
			simulated := strings.Count(got, " dst 10.201.") + strings.Count(got, " dst fd00:201:")
			neighbours := strings.Count(got, " PERMANENT")
			if want := 2 * len(x.blocks); simulated != want || neighbours != want+lab {
				return fmt.Errorf("%s has entries of %d simulated and %d real nodes, and %d neighbours, want %d and %d",
					n.Name, simulated, lab, neighbours, want, want+lab)
			}
			return nil
		})
	}
}
