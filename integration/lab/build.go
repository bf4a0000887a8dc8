package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/manxnet/manx/integration/namespace"
)

// uplink is one cable from a node to a top-of-rack router.
type uplink struct {
	device  string // on the node
	subnet  int
	address byte // host part on the node; the router has 1
}

// port is the router's end of the cable.
func (u uplink) port() string { return fmt.Sprintf("p%d", u.address-firstAddress) }

// firstAddress is the host part of the first node.
const firstAddress = 11

// build makes all namespaces and cables.
func (l *Lab) build() error {
	for t := range l.Spec.ToRs {
		tor := &ToR{Name: fmt.Sprintf("tor%d", t+1), lab: l}
		tor.Namespace, tor.dir = l.Spec.Name+"-"+tor.Name, filepath.Join(l.Dir, tor.Name)
		if err := namespaceIn(tor.Namespace, tor.dir); err != nil {
			return err
		}
		l.ToRs = append(l.ToRs, tor)
	}
	for i, spec := range l.Spec.Nodes {
		n := &Node{Name: spec.Name, lab: l}
		n.Namespace, n.Dir = l.Spec.Name+"-"+spec.Name, filepath.Join(l.Dir, spec.Name)
		if err := namespaceIn(n.Namespace, n.Dir); err != nil {
			return err
		}
		l.Nodes = append(l.Nodes, n)
		if err := l.cable(n, i, spec.Rack); err != nil {
			return fmt.Errorf("lab: node %s: %w", n.Name, err)
		}
	}
	for _, tor := range l.ToRs {
		if err := tor.start(); err != nil {
			return fmt.Errorf("lab: %s: %w", tor.Name, err)
		}
	}
	return nil
}

// namespaceIn makes a namespace, and the folder for its programs.
func namespaceIn(name, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return namespace.Add(name)
}

// cable connects node number i, in that rack, to every top-of-rack router.
func (l *Lab) cable(n *Node, i, rack int) error {
	for t, tor := range l.ToRs {
		up := uplink{device: fmt.Sprintf("eth%d", t), address: byte(firstAddress + i)}
		if l.Spec.Routed {
			up.subnet = 1 + t*100 + 10 + i
		} else {
			up.subnet = 1 + t*100 + rack
		}
		if err := n.plug(tor, up); err != nil {
			return err
		}
		tor.neighbors = append(tor.neighbors, neighbor{node: n.Name, subnet: up.subnet, address: up.address})
	}
	return nil
}

// plug makes the cable of an uplink.
func (n *Node) plug(tor *ToR, up uplink) error {
	port := up.port()
	if _, err := command("ip", "link", "add", up.device, "netns", n.Namespace, "type", "veth", "peer", "name", port,
		"netns", tor.Namespace); err != nil {
		return err
	}
	if err := tor.attach(port, up.subnet, n.lab.Spec.Routed); err != nil {
		return err
	}
	return n.attach(up)
}

// attach gives the node's end of a cable its addresses and, on the first, the way to the rest of the underlay.
func (n *Node) attach(up uplink) error {
	sn4, sn6 := subnet4(up.subnet), subnet6(up.subnet)
	lines := append([]string{fmt.Sprintf("link set %s up", up.device)},
		n.lab.addresses(up.device, up.subnet, up.address)...)
	if len(n.uplinks) == 0 {
		// Only this rack's subnet is on the link; the router has routes to the others.
		if !n.lab.Spec.NoIPv4 {
			n.IP4 = host(sn4, up.address)
			lines = append(lines, fmt.Sprintf("route add 10.200.0.0/16 via %s", host(sn4, 1)))
		}
		if n.lab.Spec.IPv6 {
			n.IP6 = host(sn6, up.address)
			lines = append(lines, fmt.Sprintf("route add fd00:200::/32 via %s", host(sn6, 1)))
		}
	}
	n.uplinks = append(n.uplinks, up)
	return namespace.Batch(n.Namespace, lines...)
}

// attach plugs a node's cable into the router: into the switch of its subnet, or as a routed port.
func (t *ToR) attach(port string, subnet int, routed bool) error {
	device := fmt.Sprintf("rack%d", subnet)
	if routed {
		return t.address(port, subnet)
	}
	if !t.hasSwitch(subnet) {
		if err := namespace.Batch(t.Namespace, fmt.Sprintf("link add %s type bridge", device)); err != nil {
			return err
		}
		if err := t.address(device, subnet); err != nil {
			return err
		}
		t.switches = append(t.switches, subnet)
	}
	return namespace.Batch(t.Namespace, fmt.Sprintf("link set %s master %s up", port, device))
}

func (t *ToR) address(device string, subnet int) error {
	lines := append([]string{fmt.Sprintf("link set %s up", device)}, t.lab.addresses(device, subnet, 1)...)
	return namespace.Batch(t.Namespace, lines...)
}

// addresses gives a device its addresses of a subnet, in the lab's families.
func (l *Lab) addresses(device string, subnet int, number byte) (lines []string) {
	if !l.Spec.NoIPv4 {
		lines = append(lines, fmt.Sprintf("addr add %s/24 dev %s", host(subnet4(subnet), number), device))
	}
	if l.Spec.IPv6 {
		lines = append(lines, fmt.Sprintf("addr add %s/64 dev %s nodad", host(subnet6(subnet), number), device))
	}
	return lines
}

// sysctl writes a kernel setting in a namespace.
func sysctl(ns, path, value string) error {
	cmd := namespace.Command(ns, "sh", "-c", fmt.Sprintf("echo %s > /proc/sys/%s", value, path))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("sysctl %s in %s: %w: %s", path, ns, err, out)
	}
	return nil
}

// External is a prefix that every top-of-rack router announces, with an address that answers pings, in place of the
// world outside.
var External = netip.MustParsePrefix("203.0.113.0/24")
