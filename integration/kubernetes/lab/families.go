package lab

import (
	"fmt"
	"net/netip"
	"strings"
)

// Families are the families of IP in which a cluster has addresses: of nodes, pods and Services.
type Families string

// The families of a cluster. In a dual cluster IPv4 is the first family: that of Services that do not name one.
const (
	IPv4 Families = "ipv4"
	Dual Families = "dual"
	IPv6 Families = "ipv6"
)

// Has4 reports whether the cluster has IPv4.
func (f Families) Has4() bool { return f != IPv6 }

// Has6 reports whether the cluster has IPv6.
func (f Families) Has6() bool { return f == Dual || f == IPv6 }

// of returns the texts of the families that the cluster has.
func (f Families) of(text4, text6 string) (texts []string) {
	if f.Has4() {
		texts = append(texts, text4)
	}
	if f.Has6() {
		texts = append(texts, text6)
	}
	return texts
}

// ServiceCIDRs are the addresses of Services, separated by a comma in a dual cluster.
func (f Families) ServiceCIDRs() string { return strings.Join(f.of(ServiceCIDR, serviceCIDR6), ",") }

// PodCIDRs are the addresses of pods, if Manx's pools are to be configured.
func (f Families) PodCIDRs() string { return strings.Join(f.of(PodCIDR, PodCIDR6), ",") }

// apiService and clusterDNS are addresses of Services in the first family.
func (f Families) apiService() string { return f.of(apiService, apiService6)[0] }
func (f Families) clusterDNS() string { return f.of(clusterDNS, clusterDNS6)[0] }

// everyAddress is the address on which a server is reached in all families of the cluster.
func (f Families) everyAddress() string { return f.of("0.0.0.0", "::")[0] }

// ParseFamilies returns the families of that name, by default IPv4.
func ParseFamilies(name string) (Families, error) {
	switch f := Families(name); f {
	case "":
		return IPv4, nil
	case IPv4, Dual, IPv6:
		return f, nil
	}
	return "", fmt.Errorf("families %q: want %s, %s or %s", name, IPv4, Dual, IPv6)
}

// address of a machine in the first family of the cluster.
func (c *Cluster) address(ip4, ip6 netip.Addr) string {
	return c.Spec.Families.of(ip4.String(), ip6.String())[0]
}

// Addresses of a node, the first family's first.
func (n *Node) Addresses() []string {
	return n.cluster.Spec.Families.of(n.IP4.String(), n.IP6.String())
}

// defaultRoutes are the commands that give a machine a way out of its rack, in all families.
func (f Families) defaultRoutes(gateway4, gateway6 string) string {
	return strings.Join(f.of("ip route add default via "+gateway4, "ip -6 route add default via "+gateway6), "\n")
}
