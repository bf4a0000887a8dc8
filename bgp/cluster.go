package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
)

// Calico's defaults for fields that BGPConfiguration does not set.
const (
	DefaultAS   = 64512
	DefaultPort = 179
)

const bindNodeIP v3.BindMode = "NodeIP"

// ipv4 and ipv6 index arrays with one element per address family.
const (
	ipv4 = iota
	ipv6
	families
)

var (
	familyNames   = [families]string{"IPv4", "IPv6"}
	familyNumbers = [families]model.Family{model.IPv4, model.IPv6}
)

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// node has the BGP properties of a Calico node, with all fallbacks applied.
type node struct {
	name      string
	addrs     [families]netip.Addr
	subnets   [families]netip.Prefix // of addrs
	as        uint32
	port      uint16
	portIsSet bool // by the node's own BGPConfiguration
	clusterID string
	labels    map[string]string
	object    *model.Node
}

// cluster is the part of the datastore that this package uses.
type cluster struct {
	me     *node
	nodes  []*node // by name
	byAddr map[netip.Addr]*node

	interfaces felixconfig.InterfacePrefixes         // of workloads
	felix      model.FelixConfigurationSpec          // the settings in force for this node
	host       *felixconfig.Local                    // those of them that this host itself has; nil: none
	config     model.BGPConfigurationSpec            // "default"
	perNode    map[string]model.BGPConfigurationSpec // "node.<name>"
	meshBFD    bfdSetting
	priorities [families]uint32 // metric of ordinary routes

	clusterIPs string         // the setting CALICO_ADVERTISE_CLUSTER_IPS
	connected  []netip.Prefix // see Input
	kernel     []KernelRoute  // see Input
	filters    map[string]compiled
	moves      map[model.Key]livemigration.Phase

	notices []Notice
}

func newCluster(r model.Reader, me string) *cluster {
	c := &cluster{
		perNode:    map[string]model.BGPConfigurationSpec{},
		priorities: [families]uint32{NormalPriority, NormalPriority},
	}
	for k, v := range model.All[model.BGPConfiguration](r, model.KindBGPConfiguration) {
		c.addConfig(k.Name, v)
		if k.Name == "default" || k.Name == "node."+me {
			c.noteUnknownAnnotations("BGPConfiguration/"+k.Name, model.KindBGPConfiguration, v.Annotations)
		}
	}
	type named struct {
		name string
		node *model.Node
	}
	var nodes []named
	for k, v := range model.All[model.Node](r, model.KindNode) {
		nodes = append(nodes, named{k.Name, v})
	}
	slices.SortFunc(nodes, func(a, b named) int { return strings.Compare(a.name, b.name) })
	c.nodes, c.byAddr = make([]*node, 0, len(nodes)), make(map[netip.Addr]*node, len(nodes))
	all := make([]node, len(nodes))
	for i, n := range nodes { // of two with one address the first counts
		all[i] = node{name: n.name, labels: n.node.Labels, object: n.node, as: c.defaultAS(), port: c.defaultPort()}
		c.addNode(&all[i], me)
	}
	return c
}

func (c *cluster) addConfig(name string, v *model.BGPConfiguration) {
	object := "BGPConfiguration/" + name
	if node, ok := strings.CutPrefix(name, "node."); ok {
		c.perNode[node] = v.Spec
		return
	}
	if name != "default" {
		c.note(object, "is ignored: a BGPConfiguration is named \"default\" or \"node.NAME\"")
		return
	}
	c.config = v.Spec
	c.meshBFD = c.bfd(object, v.Annotations)
	c.normalPriority(object, ipv4, "ipv4NormalRoutePriority", v.Spec.IPv4NormalRoutePriority)
	c.normalPriority(object, ipv6, "ipv6NormalRoutePriority", v.Spec.IPv6NormalRoutePriority)
}

// normalPriority reads the metric that ordinary routes of a family have.
func (c *cluster) normalPriority(object string, family int, field string, value *int) {
	switch {
	case value == nil:
	case *value < 1 || *value >= MaxPriority:
		c.note(object, fmt.Sprintf("spec.%s = %d is ignored: want 1 to %d", field, *value, MaxPriority-1))
	default:
		c.priorities[family] = uint32(*value)
	}
}

func (c *cluster) addNode(n *node, me string) {
	if own := c.perNode[n.name].ListenPort; own != 0 {
		n.port, n.portIsSet = own, true
	}
	if b := n.object.Spec.BGP; b != nil {
		if b.ASNumber != nil && *b.ASNumber != 0 {
			n.as = uint32(*b.ASNumber)
		}
		n.clusterID = b.RouteReflectorClusterID
		n.addrs[ipv4] = c.nodeAddr(n, ipv4, "ipv4Address", b.IPv4Address)
		n.addrs[ipv6] = c.nodeAddr(n, ipv6, "ipv6Address", b.IPv6Address)
	}
	c.nodes = append(c.nodes, n)
	if n.name != me {
		return
	}
	c.me = n
	if n.clusterID != "" && !n.reflects().IsValid() {
		c.note("Node/"+me, fmt.Sprintf("spec.bgp.routeReflectorClusterID = %q: want an IPv4 address; until then the "+
			"node is in no mesh and reflects nothing", n.clusterID))
	}
}

// reflects returns the cluster ID of a route reflector (RFC 4456), an invalid address for any other node.
func (n *node) reflects() netip.Addr {
	if n.clusterID == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(n.clusterID)
	if err != nil || !a.Is4() {
		return netip.Addr{}
	}
	return a
}

// nodeAddr returns the address of a node; text is how its field has it.
func (c *cluster) nodeAddr(n *node, family int, field, text string) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	p := n.object.Spec.BGP.Address(familyNumbers[family])
	a := p.Addr()
	n.subnets[family] = p.Masked()
	if !a.IsValid() {
		c.note("Node/"+n.name, fmt.Sprintf("spec.bgp.%s = %q is ignored: want an %s address with prefix length",
			field, text, familyNames[family]))
		return netip.Addr{}
	}
	if other := c.byAddr[a]; other != nil {
		c.note("Node/"+n.name, fmt.Sprintf("spec.bgp.%s %s is also the address of node %s: give each node its own, "+
			"or delete the one that is no more", field, a, other.name))
		return a
	}
	c.byAddr[a] = n
	return a
}

func (c *cluster) defaultAS() uint32 {
	if as := c.config.ASNumber; as != nil && *as != 0 {
		return uint32(*as)
	}
	return DefaultAS
}

func (c *cluster) defaultPort() uint16 {
	if c.config.ListenPort != 0 {
		return c.config.ListenPort
	}
	return DefaultPort
}

// listensOn reports whether a BGPPeer with this port refers to the node, because the node listens on it. If no port is
// configured, any port matches, as in calico/node; the node then listens on 179, and the reverse connects (chooseSide).
func (c *cluster) listensOn(n *node, port uint16) bool {
	return port == 0 || port == n.port || !n.portIsSet && c.config.ListenPort == 0
}
