package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// vxlan is a cluster of three nodes, by default without BGP, and with pools of VXLAN: n1 and n2 share a subnet, n3 is
// in another one. The routers know no pod.
type vxlan struct {
	*lab.Lab
	n1, n2, n3 *lab.Node
	pods       map[*lab.Node]*lab.Pod
}

var noBGP = append(slices.Clone(world.PairFlags), "--networking=vxlan")

func newVXLAN(t *testing.T, name, mode string, flags ...string) *vxlan {
	if len(flags) == 0 {
		flags = noBGP
	}
	l := world.NewLab(t, lab.Spec{Name: world.LabName(name), IPv6: true, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}, {Name: "n3", Rack: 1}}})
	v := &vxlan{Lab: l, n1: l.Nodes[0], n2: l.Nodes[1], n3: l.Nodes[2], pods: map[*lab.Node]*lab.Pod{}}
	must(t, v.n1.StartManxd(append(v.n1.EmbedDatastore(), flags...)...))
	must(t, v.n1.Ready(limit))
	v.setMode(t, mode)
	for _, n := range []*lab.Node{v.n2, v.n3} {
		must(t, n.StartManxd(append(lab.UseDatastore(v.n1), flags...)...))
		must(t, n.Ready(limit))
	}
	for _, n := range v.Nodes {
		p, err := n.AddPod(n.Name+"-pod", lab.DualStack)
		must(t, err)
		v.pods[n] = p
	}
	return v
}

func (v *vxlan) setMode(t *testing.T, mode string) {
	t.Helper()
	four, six := "vxlanMode: "+mode, ", vxlanMode: "+mode
	if mode == "IPIP" { // which is for IPv4 alone
		four, six = "ipipMode: Always", ""
	}
	must(t, v.n1.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: four}
spec: {cidr: 10.244.0.0/16, %s}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: six}
spec: {cidr: fd10:244::/48, blockSize: 122%s}
`, four, six)))
}

// device waits until packets of a node to an address leave through a device.
func (v *vxlan) device(t *testing.T, from *lab.Node, to netip.Addr, device string) {
	t.Helper()
	eventually(t, func() error {
		out, err := from.Run("ip", "route", "get", to.String())
		if err == nil && !strings.Contains(out, " dev "+device+" ") {
			err = fmt.Errorf("the way from %s to %s is %s, want device %s", from.Name, to, out, device)
		}
		return err
	})
}

// reaches waits until all pods reach each other, by both families.
func (v *vxlan) reaches(t *testing.T) {
	t.Helper()
	for _, from := range v.Nodes {
		for _, to := range v.Nodes {
			for _, a := range []netip.Addr{v.pods[to].IP4(), v.pods[to].IP6()} {
				if from != to {
					eventually(t, func() error { return lab.Ping(v.pods[from].Namespace, a) })
				}
			}
		}
	}
}

// TestVXLAN has pods of three nodes reach each other through VXLAN, as long as their nodes are in different subnets or
// the mode is Always, while manxd is killed, entries and the device are deleted, and modes change under traffic.
func TestVXLAN(t *testing.T) {
	v := newVXLAN(t, "v", "CrossSubnet")
	v.reaches(t)
	near, far := v.pods[v.n2], v.pods[v.n3]
	for a, device := range map[netip.Addr]string{near.IP4(): "eth0", near.IP6(): "eth0", far.IP4(): "vxlan.calico",
		far.IP6(): "vxlan-v6.calico"} {
		v.device(t, v.n1, a, device)
	}
	t.Run("entries are put back", v.testEntries)
	t.Run("the daemon is killed", v.testKilled)
	t.Run("the device is deleted", v.testDeviceGone)
	t.Run("addresses go", v.testAddressesGo)
	t.Run("a borrowed address", v.testBorrowed)
	t.Run("modes change under traffic", v.testModes)
	t.Run("a node goes", v.testNodeGone)
}

// testEntries deletes the entries of another node, one by one.
func (v *vxlan) testEntries(t *testing.T) {
	for _, words := range []string{"bridge fdb show dev vxlan.calico", "ip neigh show dev vxlan.calico",
		"bridge fdb show dev vxlan-v6.calico", "ip -6 neigh show dev vxlan-v6.calico nud permanent"} {
		f := strings.Fields(words)
		list := func() string {
			out, err := v.n1.Run(f[0], f[1:]...)
			must(t, err)
			return out
		}
		before := list()
		if n := strings.Count(before, "PERMANENT") + strings.Count(before, "permanent"); n != 2 {
			t.Errorf("%s: %d entries, want those of two nodes:\n%s", words, n, before)
		}
		line := strings.Fields(world.LineWith(before, strings.ReplaceAll(strings.Fields(before)[0], "[", "")))
		del := []string{"fdb", "del", line[0], "dev", f[4]}
		program := "bridge"
		if f[0] == "ip" {
			program, del = "ip", []string{"neigh", "del", line[0], "dev", f[len(f)-1]}
			if f[1] == "-6" {
				del = []string{"-6", "neigh", "del", line[0], "dev", "vxlan-v6.calico"}
			}
		}
		_, err := v.n1.Run(program, del...)
		must(t, err)
		eventually(t, func() error {
			if now := list(); now != before && len(strings.Fields(now)) != len(strings.Fields(before)) {
				return fmt.Errorf("%s: there is\n%s, want\n%s", words, now, before)
			}
			return nil
		})
	}
	v.reaches(t)
}

// testKilled kills the daemon under traffic and starts it again.
func (v *vxlan) testKilled(t *testing.T) {
	flow, err := v.StartFlow(v.pods[v.n2].Namespace, v.pods[v.n3].IP4())
	must(t, err)
	args := append(lab.UseDatastore(v.n1), noBGP...)
	v.n2.Manxd().Kill()
	time.Sleep(time.Second) // without a daemon
	must(t, v.n2.StartManxd(args...))
	must(t, v.n2.Ready(limit))
	v.lostNone(t, flow)
}

func (v *vxlan) lostNone(t *testing.T, flow *lab.Flow) {
	t.Helper()
	sent, lost, err := flow.Stop()
	must(t, err)
	if lost > 0 || sent < 10 {
		t.Errorf("%d of %d packets are lost", lost, sent)
	}
}

// testDeviceGone deletes a device by hand.
func (v *vxlan) testDeviceGone(t *testing.T) {
	for _, device := range []string{"vxlan.calico", "vxlan-v6.calico"} {
		_, err := v.n1.Run("ip", "link", "del", device)
		must(t, err)
	}
	v.reaches(t)
}

// testAddressesGo removes all addresses of the device, and then of the uplink, and puts the latter back at once, as a
// DHCP client does: the kernel removes all IPv4 routes of these interfaces without an event.
func (v *vxlan) testAddressesGo(t *testing.T) {
	_, err := v.n1.Run("ip", "address", "flush", "dev", "vxlan.calico")
	must(t, err)
	v.device(t, v.n1, v.pods[v.n3].IP4(), "vxlan.calico")
	own := v.n1.IP4.String() + "/24"
	_, err = v.n1.Run("sh", "-ec", "ip address del "+own+" dev eth0; ip address add "+own+" dev eth0; "+
		"ip route add default via "+v.n1.Gateway())
	must(t, err)
	v.reaches(t)
}

// testBorrowed has a node use an address of another's block: a pool has fewer blocks than the cluster nodes.
func (v *vxlan) testBorrowed(t *testing.T) {
	must(t, v.n1.Apply(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: small}
spec: {cidr: 10.245.0.0/28, blockSize: 29, vxlanMode: Always, nodeSelector: "!all()"}
`))
	small := func(conf map[string]any) {
		conf["ipam"].(map[string]any)["ipv4_pools"] = []string{"small"}
	}
	pods := map[*lab.Node]*lab.Pod{}
	for _, n := range v.Nodes {
		p, err := n.AddPod(n.Name+"-small", small)
		must(t, err)
		pods[n] = p
	}
	out, err := v.n1.Manxctl("ipam", "show", "--show-borrowed")
	must(t, err)
	world.Contains(t, "ipam show", out, pods[v.n3].IP4().String())
	for _, from := range v.Nodes {
		for _, to := range v.Nodes {
			if from != to {
				eventually(t, func() error { return lab.Ping(pods[from].Namespace, pods[to].IP4()) })
			}
		}
	}
	for _, p := range pods {
		must(t, p.Delete())
	}
}

// testModes changes the pools' mode under traffic.
func (v *vxlan) testModes(t *testing.T) {
	for _, mode := range []string{"Always", "CrossSubnet"} {
		var flows []*lab.Flow
		for _, a := range []netip.Addr{v.pods[v.n2].IP4(), v.pods[v.n2].IP6(), v.pods[v.n3].IP4()} {
			flow, err := v.StartFlow(v.pods[v.n1].Namespace, a)
			must(t, err)
			flows = append(flows, flow)
		}
		v.setMode(t, mode)
		device := [2]string{"eth0", "eth0"}
		if mode == "Always" {
			device = [2]string{"vxlan.calico", "vxlan-v6.calico"}
		}
		v.device(t, v.n1, v.pods[v.n2].IP4(), device[0])
		v.device(t, v.n1, v.pods[v.n2].IP6(), device[1])
		v.device(t, v.n2, v.pods[v.n1].IP4(), device[0])
		time.Sleep(time.Second) // traffic by the new way
		for _, flow := range flows {
			v.lostNone(t, flow)
		}
	}
}

// testNodeGone deletes a node: nothing of it stays at the others.
func (v *vxlan) testNodeGone(t *testing.T) {
	must(t, v.pods[v.n3].Delete())
	must(t, v.n3.Manxd().Stop(limit))
	_, err := v.n1.Manxctl("delete", "node", "n3")
	must(t, err)
	eventually(t, func() error {
		fdb, err := v.n1.Run("bridge", "fdb", "show", "dev", "vxlan.calico")
		must(t, err)
		routes, err := v.n1.Run("ip", "route", "show", "dev", "vxlan.calico")
		must(t, err)
		if strings.Contains(fdb, v.n3.IP4.String()) || strings.TrimSpace(routes) != "" {
			return fmt.Errorf("left:\n%s%s", fdb, routes)
		}
		return nil
	})
}
