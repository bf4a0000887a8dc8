package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestModes changes the mode of two pools under traffic of both families and directions, one packet every 5 ms, between
// two nodes of one subnet with BGP, then the networking of the nodes. No packet may be lost.
func TestModes(t *testing.T) {
	v := newBGPPair(t, "m", "Never", 0)
	v.testModesWithBGP(t, 5*time.Millisecond, "Never", "Always", "Never", "CrossSubnet", "Always", "CrossSubnet",
		"Never")
	t.Run("Never to IPIP", v.testIPIPOrNone)
	v.setMode(t, "Always")
	v.used(t, "Always")
	for _, networking := range []string{"vxlan", "bird"} {
		t.Run("networking "+networking, func(t *testing.T) {
			v.underTraffic(t, 5*time.Millisecond, func() {
				must(t, v.n2.Manxd().Stop(limit))
				must(t, v.n2.StartManxd(slices.Concat(lab.UseDatastore(v.n1), world.PairFlags,
					[]string{"--networking=" + networking})...))
				must(t, v.n2.Ready(limit))
			})
		})
	}
}

// TestModesAcrossSubnets does so between two nodes of different subnets, whose routers learn the blocks by BGP: a
// change to CrossSubnet takes the packets from the routers into the tunnel, and one to Never brings them back.
func TestModesAcrossSubnets(t *testing.T) {
	v := newBGPPair(t, "ma", "Never", 1)
	v.testModesWithBGP(t, 5*time.Millisecond, "Never", "CrossSubnet", "Never")
}

// testIPIPOrNone changes to IPIP: on a kernel without it the direct way stays, with the reason.
func (v *vxlan) testIPIPOrNone(t *testing.T) {
	v.underTraffic(t, 5*time.Millisecond, func() {
		v.setMode(t, "IPIP")
		for from, to := range map[*lab.Node]*lab.Node{v.n1: v.n2, v.n2: v.n1} {
			eventually(t, func() error {
				out, err := from.Manxctl("routes", "--source", "bgp")
				const kept = "the route by BGP stays for now: this kernel has no IPIP"
				if err == nil && !strings.Contains(out, " tunl0 ") && !strings.Contains(out, kept) {
					err = fmt.Errorf("the route to %s is neither by IPIP nor kept: %s", to.Name, out)
				}
				return err
			})
		}
	})
	v.setMode(t, "Never")
	v.used(t, "Never")
}

// TestVMModes changes a pool from IPIP to VXLAN and back under traffic, and to no tunnel and back.
func TestVMModes(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs a kernel with IPIP; `make test-vm` runs it on one that has")
	}
	v := newBGPPair(t, "mv", "IPIP", 0)
	v.testModesWithBGP(t, 20*time.Millisecond, "IPIP", "Always", "IPIP", "Never", "IPIP")
}

// newBGPPair makes two nodes with BGP, pods and pools of a mode: n1 in rack 0, and n2 in a rack. In two racks the
// router between them is a peer of both nodes.
func newBGPPair(t *testing.T, name, mode string, rack int) *vxlan {
	l := world.NewLab(t, lab.Spec{Name: world.LabName(name), IPv6: true, PlainRouters: rack == 0,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2", Rack: rack}}})
	v := &vxlan{Lab: l, n1: l.Nodes[0], n2: l.Nodes[1], pods: map[*lab.Node]*lab.Pod{}}
	must(t, v.n1.StartManxd(append(v.n1.EmbedDatastore(), world.PairFlags...)...))
	must(t, v.n1.Ready(limit))
	v.setMode(t, mode)
	for _, n := range v.Nodes {
		if rack != 0 {
			must(t, v.n1.Apply(world.TorPeer(n, "tor-"+n.Name, l.ToRs[0].Address(n), "")+"---"+
				world.TorPeer(n, "tor6-"+n.Name, l.ToRs[0].Address6(n), "")))
		}
	}
	must(t, v.n2.StartManxd(append(lab.UseDatastore(v.n1), world.PairFlags...)...))
	must(t, v.n2.Ready(limit))
	for _, n := range v.Nodes {
		p, err := n.AddPod(n.Name+"-pod", lab.DualStack)
		must(t, err)
		v.pods[n] = p
	}
	v.reaches(t)
	return v
}

// testModesWithBGP goes from mode to mode, with a packet of each flow every so often.
func (v *vxlan) testModesWithBGP(t *testing.T, interval time.Duration, modes ...string) {
	v.used(t, modes[0])
	for i, mode := range modes[1:] {
		t.Run(modes[i]+" to "+mode, func(t *testing.T) {
			v.underTraffic(t, interval, func() {
				v.setMode(t, mode)
				v.used(t, mode)
			})
		})
	}
}

// used waits until both nodes send packets to each other's pods as a mode wants it.
func (v *vxlan) used(t *testing.T, mode string) {
	t.Helper()
	protocol, four, six := "bird", "eth0", "eth0"
	switch mode {
	case "Always":
		protocol, four, six = "80", model4, model6
	case "CrossSubnet":
		protocol = "80"
		if v.Spec.Nodes[0].Rack != v.Spec.Nodes[1].Rack {
			four, six = model4, model6
		}
	case "IPIP":
		four = "tunl0"
	}
	for from, to := range map[*lab.Node]*lab.Node{v.n1: v.n2, v.n2: v.n1} {
		for a, device := range map[netip.Addr]string{v.pods[to].IP4(): four, v.pods[to].IP6(): six} {
			eventually(t, func() error {
				family, protocol := map[bool]string{true: "-4", false: "-6"}[a.Is4()], protocol
				if device == "tunl0" {
					protocol = "80"
				}
				out, err := from.Run("ip", family, "-o", "route", "show", "match", a.String(), "proto", protocol, "dev",
					device)
				if err == nil && len(out) == 0 {
					err = fmt.Errorf("%s has no route of protocol %s to %s by %s", from.Name, protocol, a, device)
				}
				return err
			})
		}
	}
}

const model4, model6 = "vxlan.calico", "vxlan-v6.calico"

// underTraffic runs a change while packets pass, and counts those that are lost.
func (v *vxlan) underTraffic(t *testing.T, interval time.Duration, change func()) {
	t.Helper()
	flows := map[string]*lab.Flow{}
	for from, to := range map[*lab.Node]*lab.Node{v.n1: v.n2, v.n2: v.n1} {
		for _, a := range []netip.Addr{v.pods[to].IP4(), v.pods[to].IP6()} {
			flow, err := v.StartFlowEvery(v.pods[from].Namespace, a, interval)
			must(t, err)
			flows[from.Name+" to "+a.String()] = flow
		}
	}
	for _, flow := range flows {
		eventually(t, func() error {
			if flow.Answered() < 20 {
				return fmt.Errorf("%d answers", flow.Answered())
			}
			return nil
		})
	}
	change()
	time.Sleep(time.Second) // traffic by the new way
	for name, flow := range flows {
		sent, lost, err := flow.Stop()
		must(t, err)
		t.Logf("%s: %d of %d packets are lost", name, lost, sent)
		if lost > 0 {
			t.Errorf("%s: %d of %d packets are lost", name, lost, sent)
		}
	}
}
