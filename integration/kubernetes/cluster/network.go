package cluster

import (
	"fmt"
	"os/exec"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	netns "github.com/manxnet/manx/integration/namespace"
)

// mode is the way of packets between pods of different nodes.
type mode string

// The modes of a cluster. With VXLAN the nodes have no BGP, and packets within a rack need no tunnel (CrossSubnet).
// With WireGuard two nodes of a rack encrypt; they have BGP as well.
const (
	BGP       mode = "bgp"
	VXLAN     mode = "vxlan"
	WireGuard mode = "wireguard"
)

// Network is what an installation of Manx gives pods: a way to each other, and addresses of these families.
type Network struct {
	Mode     mode
	Families lab.Families
}

// ParseNetwork returns the network of these names, by default BGP and IPv4.
func ParseNetwork(name, families string) (n Network, err error) {
	switch n.Mode = mode(name); n.Mode {
	case "":
		n.Mode = BGP
	case BGP, VXLAN, WireGuard:
	default:
		return n, fmt.Errorf("mode %q: want %s, %s or %s", name, BGP, VXLAN, WireGuard)
	}
	n.Families, err = lab.ParseFamilies(families)
	return n, err
}

// Missing returns the reason why the kernel here cannot run the network, if there is one.
func (n Network) Missing() error {
	if n.Mode != WireGuard {
		return nil
	}

	const name = "manx-wg-probe"
	if err := netns.Add(name); err != nil {
		return err
	}
	defer func() { _ = netns.Remove(name) }()
	out, err := exec.Command("ip", "-n", name, "link", "add", "wg0", "type", "wireguard").CombinedOutput()
	if err := withOutput(out, err); err != nil {
		return fmt.Errorf("mode %s: the kernel here has no WireGuard (%w)", WireGuard, err)
	}
	return nil
}

// setting is a value of the chart, and the variables of manxd in the manifests that are the same.
type setting struct{ value, variables string }

// settings are those that differ from the defaults.
func (n Network) settings() (all []setting) {
	add := func(value string, variables string) { all = append(all, setting{value, variables}) }
	if n.Families.Has4() {
		add("pools.ipv4.cidr="+lab.PodCIDR, "") // the manifests have it from kubeadm
	} else {
		add("pools.ipv4.cidr=none", "CALICO_IPV4POOL_CIDR=none")
		add("node.ip=none", "IP=none")
	}
	if n.Families.Has6() {
		add("pools.ipv6.cidr="+lab.PodCIDR6, "")
		add("node.ip6=autodetect", "IP6=autodetect IP6_AUTODETECTION_METHOD=kubernetes-internal-ip")
	}
	if n.Mode != VXLAN {
		return all
	}
	add("networking=vxlan", "CALICO_NETWORKING_BACKEND=vxlan")
	if n.Families.Has4() {
		add("pools.ipv4.vxlanMode=CrossSubnet", "CALICO_IPV4POOL_VXLAN=CrossSubnet")
	}
	if n.Families.Has6() {
		add("pools.ipv6.vxlanMode=CrossSubnet", "CALICO_IPV6POOL_VXLAN=CrossSubnet")
		// Hosts outside have no routes to pods.
		add("pools.ipv6.natOutgoing=true", "CALICO_IPV6POOL_NAT_OUTGOING=true")
	}
	return all
}

// String names the network for people.
func (n Network) String() string {
	by := map[mode]string{BGP: "BGP", VXLAN: "VXLANCrossSubnet without BGP", WireGuard: "WireGuard"}
	families := map[lab.Families]string{lab.IPv4: "IPv4", lab.Dual: "dual stack", lab.IPv6: "IPv6 alone"}
	return by[n.Mode] + ", " + families[n.Families]
}

func (w *World) hasBGP() bool { return w.install.Network().Mode != VXLAN }

// hasDNS is false where steps leave names of Services out.
func (w *World) hasDNS() bool { return w.install.Network().Mode != WireGuard }
