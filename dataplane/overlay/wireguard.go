package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

const (
	// kindWireGuard is the kind of WireGuard devices, as ip-link(8) has it.
	kindWireGuard = "wireguard"
	// The outer IP header has 20 or 40 bytes, UDP 8, WireGuard's 16 and its authentication tag 16.
	wireguardOverhead4, wireguardOverhead6 = 60, 80

	portWireGuard4, portWireGuard6 = 51820, 51821

	defaultRulePriority = 99
	mostRulePriority    = 32765
	mostTable           = 252 // the next ones are the kernel's: default, main and local
)

// wireguard encrypts packets between IPv4 addresses, wireguard6 those between IPv6 addresses. No pool decides about
// them: the settings do, and the keys of the two nodes.
var (
	wireguard = Overlay{
		Name: "WireGuard", Encapsulation: noPool, Device: model.DeviceWireguard, Kind: kindWireGuard,
		Family: model.IPv4, Overhead: wireguardOverhead4, Packets: wireguardPackets(model.IPv4),
		Settings: func(f *model.FelixConfigurationSpec) Settings {
			return Settings{Enabled: "wireguardEnabled", On: new(is(f.WireguardEnabled)),
				MTUName: "wireguardMTU", MTU: f.WireguardMTU,
				Shared: []Shared{{"wireguardListeningPort", int(wireguardPackets(model.IPv4)(f).Port)}}}
		},
	}
	wireguard6 = Overlay{
		Name: "WireGuard IPv6", Encapsulation: noPool, Device: model.DeviceWireguardV6, Kind: kindWireGuard,
		Family: model.IPv6, Overhead: wireguardOverhead6, Packets: wireguardPackets(model.IPv6),
		Settings: func(f *model.FelixConfigurationSpec) Settings {
			return Settings{Enabled: "wireguardEnabledV6", On: new(is(f.WireguardEnabledV6)),
				MTUName: "wireguardMTUV6", MTU: f.WireguardMTUV6,
				Shared: []Shared{{"wireguardListeningPortV6", int(wireguardPackets(model.IPv6)(f).Port)}}}
		},
	}
)

// noPool is an encapsulation that no pool has.
const noPool = ippool.Encapsulation(255)

func wireguardPackets(family model.Family) func(*model.FelixConfigurationSpec) Packets {
	return func(f *model.FelixConfigurationSpec) Packets {
		p := Packets{Name: "WireGuard", Protocol: protoUDP, Port: portWireGuard4, Authentic: true}
		port := f.WireguardListeningPort
		if family == model.IPv6 {
			p.Port, port = portWireGuard6, f.WireguardListeningPortV6
		}
		if port != nil && *port > 0 && *port <= 65535 {
			p.Port = uint16(*port)
		}
		return p
	}
}

// Encryption has the settings of the encryption between nodes for one family.
type Encryption struct {
	Name, Device string
	Family       model.Family
	On           bool
	Enabled      string // the name of the setting for that
	// Port is the UDP port of this node, and of all others.
	Port uint16
	// Mark is that of encrypted packets, which are not to be encrypted again.
	Mark uint32
	// Table and Priority are those of the rule that leads packets to the routes through the device.
	Table, Priority uint32
	// Hosts is set if packets to the nodes themselves are to be encrypted, too.
	Hosts bool
	// Threaded is whether threads of its own receive the device's packets; nil: as the kernel decides, which uses them
	// from Linux 6.17 on.
	Threaded *bool
	// Keepalive is the time between packets that are sent without need, 0 for none.
	Keepalive time.Duration
}

// Encryptions returns those of a node, of both families.
func Encryptions(f *model.FelixConfigurationSpec) (list []Encryption) {
	mark, _ := encryptionMark(f)
	for _, o := range all {
		if o.Kind != kindWireGuard {
			continue
		}
		e := Encryption{Name: o.Name, Device: o.Device, Family: o.Family, On: *o.Settings(f).On,
			Enabled: o.Settings(f).Enabled,
			Port:    o.Packets(f).Port, Mark: mark, Table: lowestTable(f), Priority: defaultRulePriority}
		if p := f.WireguardRoutingRulePriority; p != nil && *p > 0 && *p <= mostRulePriority {
			e.Priority = uint32(*p)
		}
		e.Threaded = f.WireguardThreadingEnabled
		e.Hosts = e.On && is(f.WireguardHostEncryptionEnabled) && e.Priority > 1
		if k := f.WireguardPersistentKeepAlive; k != nil && k.Duration > 0 {
			e.Keepalive = min(k.Duration.Truncate(time.Second), 65535*time.Second)
		}
		list = append(list, e)
	}
	return list
}

// hasHostAddress reports whether the device has the node's own address: while packets to the nodes themselves are
// encrypted, since that is the source by which the others know this node, and while there is no address of a pool,
// since rp_filter is strict on a device without any.
func (o Overlay) hasHostAddress(f *model.FelixConfigurationSpec, ofPools []netip.Prefix) bool {
	if o.Kind != kindWireGuard || len(ofPools) == 0 {
		return o.Kind == kindWireGuard
	}
	return slices.ContainsFunc(Encryptions(f), func(e Encryption) bool { return e.Device == o.Device && e.Hosts })
}

// Ports are TCP ports from First to Last.
type Ports struct{ First, Last uint16 }

// PlainPorts are those of BGP and of etcd, to its clients and between its members. No tunnel takes the packets of nodes
// to and from them: where two nodes do not know each other's keys, those could not be learned.
func PlainPorts() []Ports { return []Ports{{179, 179}, {2379, 2380}} }

// Encrypts reports whether a node encrypts packets to others, of any family.
func Encrypts(f *model.FelixConfigurationSpec) bool {
	return is(f.WireguardEnabled) || is(f.WireguardEnabledV6)
}

// lowestTable returns the first of routeTableRanges, as Calico takes it.
func lowestTable(f *model.FelixConfigurationSpec) uint32 {
	lowest := 0
	take := func(n int) {
		if n > 0 && n <= mostTable && (lowest == 0 || n < lowest) {
			lowest = n
		}
	}
	switch {
	case f.RouteTableRanges != nil:
		for _, r := range *f.RouteTableRanges {
			take(r.Min)
		}
	case f.RouteTableRange != nil:
		take(f.RouteTableRange.Min)
	}
	return uint32(max(lowest, 1))
}

// standardEncryptionMark is Calico's, of its standard mask.
const standardEncryptionMark = 0x200000

// encryptionMark returns the mark of encrypted packets: the sixth bit of nftablesMarkMask, else of iptablesMarkMask,
// which is the one that Calico takes; the highest one of a mask with fewer bits. The two lowest ones are policy's.
func encryptionMark(f *model.FelixConfigurationSpec) (mark uint32, problem string) {
	name, mask := "nftablesMarkMask", f.NftablesMarkMask
	if mask == nil {
		name, mask = "iptablesMarkMask", f.IptablesMarkMask
	}
	if mask == nil {
		return standardEncryptionMark, ""
	}
	rest := *mask
	for n := 1; rest != 0; n++ {
		mark = rest & -rest
		if rest &^= mark; n == 6 {
			break
		}
		if rest == 0 && n < 3 {
			mark = 0
		}
	}
	if mark == 0 {
		return standardEncryptionMark, fmt.Sprintf("%s 0x%x has fewer than three bits: the mark of encrypted packets "+
			"is 0x%x", name, *mask, standardEncryptionMark)
	}
	return mark, ""
}

// wireguardConflicts are settings that WireGuard cannot follow.
func wireguardConflicts(f *model.FelixConfigurationSpec) (list []Conflict) {
	if hosts := is(f.WireguardHostEncryptionEnabled); hosts && !Encrypts(f) {
		return []Conflict{{"wireguardHostEncryptionEnabled", "nothing is encrypted: neither wireguardEnabled nor " +
			"wireguardEnabledV6 is true"}}
	} else if p := f.WireguardRoutingRulePriority; hosts && p != nil && *p == 1 {
		list = append(list, Conflict{"wireguardRoutingRulePriority", "1 leaves no priority for the rules that keep " +
			"BGP and the datastore out of the tunnel: packets between the nodes themselves are not encrypted"})
	}
	if !Encrypts(f) {
		return nil
	}
	if _, problem := encryptionMark(f); problem != "" {
		list = append(list, Conflict{"markMask", problem})
	}
	for _, x := range []struct{ setting, value, used string }{
		{"wireguardInterfaceName", f.WireguardInterfaceName, wireguard.Device},
		{"wireguardInterfaceNameV6", f.WireguardInterfaceNameV6, wireguard6.Device},
	} {
		if x.value != "" && x.value != x.used {
			list = append(list, Conflict{x.setting, fmt.Sprintf("the device is always named %s", x.used)})
		}
	}
	return list
}
