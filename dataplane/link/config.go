package link

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
)

// TunnelDevice is the one IPIP device of a node.
const TunnelDevice = "tunl0"

const (
	ipipOverhead = 20   // an IPv4 header
	fallbackMTU  = 1460 // when no interface looks like an uplink
)

// DefaultMTUPattern matches the names of interfaces whose MTU counts, as FelixConfiguration's mtuIfacePattern.
const DefaultMTUPattern = `^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)`

// Endpoint is a workload's interface on this node.
type Endpoint struct {
	Interface string
	V4, V6    bool
	// Spoof lets the workload send from addresses that are not its own.
	Spoof bool
}

// Config is what the datastore says about interfaces.
type Config struct {
	// IPIP says whether any pool uses IPIP.
	IPIP bool
	// TunnelAddress is tunl0's, invalid while none is assigned.
	TunnelAddress netip.Addr
	// IPIPMTU is that of tunl0; 0 takes that of the host less the tunnel's header.
	IPIPMTU int
	// MTUPattern matches the interfaces whose MTU counts; nil is DefaultMTUPattern.
	MTUPattern *regexp.Regexp
	// NoForwarding leaves the sysctls that make the host a router alone.
	NoForwarding bool
	Endpoints    []Endpoint
}

// Peering is the address of this node towards a workload that speaks BGP with it; it is put on the workload's interface.
type Peering = hoststate.Peering

var defaultPattern = regexp.MustCompile(DefaultMTUPattern)

// hostMTU is the smallest MTU of the interfaces that lead to other hosts.
func hostMTU(links map[string]kernel.Link, pattern *regexp.Regexp) int {
	if pattern == nil {
		pattern = defaultPattern
	}
	mtu := 0
	for _, l := range links {
		if l.Up && pattern.MatchString(l.Name) && (mtu == 0 || l.MTU < mtu) {
			mtu = l.MTU
		}
	}
	if mtu == 0 {
		return fallbackMTU
	}
	return mtu
}

func (c Config) tunnelMTU(host int) int {
	if c.IPIPMTU > 0 {
		return c.IPIPMTU
	}
	return host - ipipOverhead
}

// podMTU is what the CNI plugin gives to workloads.
func (c Config) podMTU(host int) int {
	if c.IPIP {
		return min(host, c.tunnelMTU(host))
	}
	return host
}

// Key names one setting.
type Key struct {
	Kind Kind
	Name string // sysctl or address; for PeeringAddress "INTERFACE ADDRESS"
}

func (k Key) String() string { return strings.TrimSpace(string(k.Kind) + " " + k.Name) }

// Kind says what a Key sets.
type Kind string

// The kinds of settings, in the order in which they are applied.
const (
	Device         Kind = "device"  // tunl0 exists; value: its kind
	MTU            Kind = "mtu"     // of tunl0
	Address        Kind = "address" // of tunl0
	Up             Kind = "up"      // tunl0 is up
	PeeringAddress Kind = "peering" // the address on a workload's interface that the workload has its BGP session with
	Sysctl         Kind = "sysctl"
	File           Kind = "file" // the MTU file
)

var kindOrder = []Kind{Device, MTU, Address, Up, Sysctl, PeeringAddress, File}

// Setting is one desired value, and the interface that it belongs to, if any.
type Setting struct {
	Key
	Value string
	Link  string
}

// desired lists all settings that should hold with these interfaces. Settings of interfaces that do not exist are
// left out: they become due when the interface appears.
func desired(c Config, links map[string]kernel.Link, ipv6 bool, mtuFile string) []Setting {
	host := hostMTU(links, c.MTUPattern)
	list := c.tunnelSettings(links, host)
	if !c.NoForwarding {
		list = append(list, Setting{Key: Key{Sysctl, "net/ipv4/ip_forward"}, Value: "1"})
		if ipv6 {
			list = append(list, Setting{Key: Key{Sysctl, "net/ipv6/conf/all/forwarding"}, Value: "1"})
		}
	}
	for _, e := range c.Endpoints {
		if _, exists := links[e.Interface]; exists {
			list = append(list, e.sysctls(ipv6)...)
		}
	}
	if mtuFile != "" {
		list = append(list, Setting{Key: Key{File, mtuFile}, Value: strconv.Itoa(c.podMTU(host))})
	}
	return list
}

func (c Config) tunnelSettings(links map[string]kernel.Link, host int) []Setting {
	if !c.IPIP {
		return nil
	}
	var list []Setting
	add := func(kind Kind, name, value string) {
		list = append(list, Setting{Key{kind, name}, value, TunnelDevice})
	}
	add(Device, TunnelDevice, "ipip")
	if _, exists := links[TunnelDevice]; !exists {
		return list
	}
	add(MTU, TunnelDevice, strconv.Itoa(c.tunnelMTU(host)))
	if c.TunnelAddress.IsValid() {
		add(Address, netip.PrefixFrom(c.TunnelAddress, c.TunnelAddress.BitLen()).String(), "")
	}
	add(Up, TunnelDevice, "up")
	// Loose: with CrossSubnet a packet may come by the tunnel from a source that is reached without it.
	add(Sysctl, "net/ipv4/conf/"+TunnelDevice+"/rp_filter", "2")
	return list
}

// peeringSettings are those of the interfaces that exist.
func peeringSettings(peerings []Peering, links map[string]kernel.Link, ipv6 bool) []Setting {
	var list []Setting
	for _, p := range peerings {
		if _, exists := links[p.Interface]; exists && (ipv6 || p.Address.Is4()) {
			list = append(list, Setting{peeringKey(p.Interface, netip.PrefixFrom(p.Address, p.Address.BitLen())), "", p.Interface})
		}
	}
	return list
}

func peeringKey(link string, p netip.Prefix) Key { return Key{PeeringAddress, link + " " + p.String()} }

// sysctls make the host end of a workload's interface a router that answers for the workload's gateway.
func (e Endpoint) sysctls(ipv6 bool) []Setting {
	var list []Setting
	add := func(path, variable, value string) {
		list = append(list, Setting{Key{Sysctl, "net/" + path + "/" + e.Interface + "/" + variable}, value, e.Interface})
	}
	if e.V4 {
		filter := "1"
		if e.Spoof {
			filter = "0"
		}
		add("ipv4/conf", "route_localnet", "1")
		add("ipv4/neigh", "proxy_delay", "0")
		add("ipv4/conf", "proxy_arp", "1")
		add("ipv4/conf", "forwarding", "1")
		add("ipv4/conf", "rp_filter", filter)
	}
	if ipv6 {
		add("ipv6/conf", "accept_ra", "0")
		if e.V6 {
			add("ipv6/conf", "disable_ipv6", "0")
			add("ipv6/conf", "proxy_ndp", "1")
			add("ipv6/conf", "forwarding", "1")
		}
	}
	return list
}
