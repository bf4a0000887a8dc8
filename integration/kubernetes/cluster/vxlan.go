package cluster

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	netns "github.com/manxnet/manx/integration/namespace"
)

// onTheWire counts, on the router between the racks, the packets of VXLAN, and those of pods that have no tunnel around
// them.
const onTheWire = `table inet lab {
	counter tunnelled { }
	counter plain { }
	chain forward {
		type filter hook forward priority 0
		iifname { "rack1", "rack2" } udp dport 4789 counter name tunnelled
		iifname "rack1" oifname "rack2" ip daddr ` + lab.PodCIDR + ` counter name plain
		iifname "rack1" oifname "rack2" ip6 daddr ` + lab.PodCIDR6 + ` counter name plain
	}
}
`

var counter = regexp.MustCompile(`counter (\w+) \{\s*packets (\d+)`)

// tunnels sends from pod client on node1 to a pod of each other node, in each family. The pod of node3, in another
// rack, is reached by VXLAN alone, the pod of node2 without it.
func (w *World) tunnels() error {
	router := w.ToRs[0].Namespace
	cmd := netns.Command(router, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(onTheWire)
	if err := withOutput(cmd.CombinedOutput()); err != nil {
		return err
	}
	pods, err := w.pods()
	if err != nil {
		return err
	}
	for _, p := range pods {
		port := servedBy(p.name)
		if port == "" || p.node == "node1" {
			continue
		}
		for _, ip := range p.ips {
			if err := w.wayTo(p, ip); err != nil {
				return err
			}
			target := net.JoinHostPort(ip, port)
			if err := eventually(func() error { return connect(w.from("client", target)) }); err != nil {
				return err
			}
		}
	}
	out, err := netns.Command(router, "nft", "list", "counters", "table", "inet", "lab").CombinedOutput()
	if err := withOutput(out, err); err != nil {
		return err
	}
	packets := map[string]int{}
	for _, m := range counter.FindAllStringSubmatch(string(out), -1) {
		packets[m[1]], _ = strconv.Atoi(m[2])
	}
	if packets["tunnelled"] == 0 || packets["plain"] > 0 {
		return fmt.Errorf("between the racks: %d packets of VXLAN, %d of pods without it", packets["tunnelled"],
			packets["plain"])
	}
	w.show("on the wire between the racks", fmt.Sprintf("%d packets to UDP port 4789, none from pod to pod without a "+
		"tunnel", packets["tunnelled"]))
	return w.showDevices()
}

// wayTo checks the route of node1 to a pod.
func (w *World) wayTo(p pod, ip string) error {
	n := w.Worker("node1")
	device := "eth0"
	if p.node == "node3" {
		device = vxlanDevice(ip)
	}
	return eventually(func() error {
		out, err := n.RunIn("ip", "route", "get", ip)
		if err == nil && !strings.Contains(out, " dev "+device+" ") {
			err = fmt.Errorf("node1 sends to %s on %s by %s, want the device %s", p.name, p.node, out, device)
		}
		return err
	})
}

func vxlanDevice(ip string) string {
	if strings.Contains(ip, ":") {
		return "vxlan-v6.calico"
	}
	return "vxlan.calico"
}

// showDevices prints the devices of node1, which know both other nodes.
func (w *World) showDevices() error {
	n := w.Worker("node1")
	for _, ip := range n.Addresses() {
		device := vxlanDevice(ip)
		for _, command := range []string{"ip -d link show dev ", "bridge fdb show dev ", "ip route show dev "} {
			if strings.HasSuffix(device, "-v6.calico") {
				command = strings.Replace(command, "ip route", "ip -6 route", 1)
			}
			out, err := n.RunIn("sh", "-c", command+device)
			if err == nil && strings.TrimSpace(out) == "" {
				err = errors.New("nothing")
			}
			if err != nil {
				return fmt.Errorf("%s%s: %w", command, device, err)
			}
			w.show("on node1: "+command+device, out)
		}
	}
	return nil
}
