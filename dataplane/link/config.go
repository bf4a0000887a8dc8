package link

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
)

// TunnelDevice is the one IPIP device of a node.
const TunnelDevice = model.DeviceIPIP

// OwnDevices are the names of the devices that Manx makes on a host. Every address on them is its own to remove.
func OwnDevices() []string { return []string{TunnelDevice} }

const (
	kindIPIP     = "ipip"
	ipipOverhead = 20   // an IPv4 header
	fallbackMTU  = 1460 // when no interface looks like an uplink
)

// OwnDevice is a device that this node makes and keeps. It is one of OwnDevices as long as the process runs.
type OwnDevice struct {
	kernel.Device
	// MTU 0 is that of the host less Overhead, the size of the tunnel's headers.
	MTU, Overhead int
	// Addresses are all that the device shall have, with the length of their subnets.
	Addresses []netip.Prefix
	Up        bool
}

// IPIP is the device for pools with IPIP, up. address is the node's tunnel address, invalid while none is assigned; mtu
// is 0 for that of the host less the tunnel's header.
func IPIP(address netip.Addr, mtu int) OwnDevice {
	d := OwnDevice{Device: kernel.Device{Name: TunnelDevice, Kind: kindIPIP}, MTU: mtu, Overhead: ipipOverhead,
		Up: true}
	if address.IsValid() {
		d.Addresses = []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
	}
	return d
}

func (d OwnDevice) mtu(host int) int {
	if d.MTU > 0 {
		return d.MTU
	}
	return host - d.Overhead
}

// defaultMTUPattern matches the names of interfaces whose MTU counts, as FelixConfiguration's mtuIfacePattern.
const defaultMTUPattern = `^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)`

// Endpoint is a workload's interface on this node.
type Endpoint struct {
	Interface string
	V4, V6    bool
	// Spoof lets the workload send from addresses that are not its own.
	Spoof bool
}

// Config has the datastore's settings of interfaces.
type Config struct {
	// Devices are those that this node needs of its own, such as tunl0 for pools with IPIP.
	Devices []OwnDevice
	// MTUPattern matches the interfaces whose MTU counts; nil is defaultMTUPattern.
	MTUPattern *regexp.Regexp
	// NoForwarding leaves the sysctls that make the host a router alone.
	NoForwarding bool
	// IPv6: this node uses it, and so has to forward it.
	IPv6 bool
	// WireGuard: the traffic between nodes should be encrypted, which Manx does not support.
	WireGuard bool
	Endpoints []Endpoint
}

// Peering is the address of this node towards a workload that speaks BGP with it; it is put on the workload's
// interface.
type Peering = hoststate.Peering

var defaultPattern = regexp.MustCompile(defaultMTUPattern)

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

// podMTU is the MTU that the CNI plugin gives to workloads: packets of any size fit every tunnel.
func (c Config) podMTU(host int) int {
	mtu := host
	for _, d := range c.Devices {
		mtu = min(mtu, d.mtu(host))
	}
	return mtu
}

// Key names one setting.
type Key struct {
	Kind Kind
	// Device is the interface that the setting belongs to, empty if it is the host's.
	Device string
	// Address is set for the kinds Address and PeeringAddress.
	Address netip.Prefix
	// Name is the name of a sysctl or a file.
	Name string
}

// String is for people: the kind, and the setting's name among those of its kind.
func (k Key) String() string {
	switch k.Kind {
	case Address:
		return fmt.Sprintf("%s %s", k.Kind, k.Address)
	case PeeringAddress:
		return fmt.Sprintf("%s %s %s", k.Kind, k.Device, k.Address)
	case Sysctl, File:
		return fmt.Sprintf("%s %s", k.Kind, k.Name)
	}
	return fmt.Sprintf("%s %s", k.Kind, k.Device)
}

// Kind is the kind of a setting.
type Kind string

// The kinds of settings, in the order in which they are applied.
const (
	Device         Kind = "device"  // a device of our own exists; value: its kind
	MTU            Kind = "mtu"     // of a device of our own
	Address        Kind = "address" // of a device of our own
	Up             Kind = "up"      // a device of our own is up
	PeeringAddress Kind = "peering" // the address on a workload's interface that the workload has its BGP session with
	Sysctl         Kind = "sysctl"
	File           Kind = "file" // the MTU file
)

var kindOrder = []Kind{Device, MTU, Address, Up, Sysctl, PeeringAddress, File}

// setting is one desired value.
type setting struct {
	Key
	Value string
}

// The sysctls that make the host a router.
const (
	forwarding4 = "net/ipv4/ip_forward"
	forwarding6 = "net/ipv6/conf/all/forwarding"
)

// Forwarding reports whether the setting makes the host a router of a family.
func (k Key) Forwarding() bool {
	return k.Kind == Sysctl && (k.Name == forwarding4 || k.Name == forwarding6)
}

// desired lists all settings that should hold with these interfaces. Settings of interfaces that do not exist are
// left out: they become due when the interface appears.
func desired(c Config, links map[string]kernel.Link, ipv6 bool, mtuFile string) []setting {
	host := hostMTU(links, c.MTUPattern)
	var list []setting
	for _, d := range c.Devices {
		_, exists := links[d.Name]
		list = append(list, d.settings(exists, host)...)
	}
	if !c.NoForwarding {
		list = append(list, setting{sysctl("", forwarding4), "1"})
		if ipv6 && c.IPv6 {
			list = append(list, setting{sysctl("", forwarding6), "1"})
		}
	}
	for _, e := range c.Endpoints {
		if _, exists := links[e.Interface]; exists {
			list = append(list, e.sysctls(ipv6)...)
		}
	}
	if mtuFile != "" {
		list = append(list, setting{Key{Kind: File, Name: mtuFile}, strconv.Itoa(c.podMTU(host))})
	}
	return list
}

// settings are those of the device; until it exists, that it shall.
func (d OwnDevice) settings(exists bool, host int) []setting {
	list := []setting{{Key{Kind: Device, Device: d.Name}, d.Kind}}
	if !exists {
		return list
	}
	list = append(list, setting{Key{Kind: MTU, Device: d.Name}, strconv.Itoa(d.mtu(host))})
	for _, a := range d.Addresses {
		list = append(list, setting{Key{Kind: Address, Device: d.Name, Address: a}, ""})
	}
	if d.Up {
		list = append(list, setting{Key{Kind: Up, Device: d.Name}, "up"})
	}
	// Loose: with CrossSubnet a packet may come by the tunnel from a source that is reached without it.
	return append(list, setting{sysctl(d.Name, "net/ipv4/conf/"+d.Name+"/rp_filter"), "2"})
}

func sysctl(device, name string) Key { return Key{Kind: Sysctl, Device: device, Name: name} }

// peeringSettings are those of the interfaces that exist.
func peeringSettings(peerings []Peering, links map[string]kernel.Link, ipv6 bool) []setting {
	var list []setting
	for _, p := range peerings {
		if _, exists := links[p.Interface]; exists && (ipv6 || p.Address.Is4()) {
			list = append(list, setting{peeringKey(p.Interface, netip.PrefixFrom(p.Address, p.Address.BitLen())), ""})
		}
	}
	return list
}

func peeringKey(device string, p netip.Prefix) Key {
	return Key{Kind: PeeringAddress, Device: device, Address: p}
}

// sysctls make the host end of a workload's interface a router that answers for the workload's gateway.
func (e Endpoint) sysctls(ipv6 bool) []setting {
	var list []setting
	add := func(path, variable, value string) {
		list = append(list, setting{sysctl(e.Interface, "net/"+path+"/"+e.Interface+"/"+variable), value})
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
