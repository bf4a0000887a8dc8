package overlay

import (
	"fmt"
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
				MTUName: "wireguardMTU", MTU: f.WireguardMTU}
		},
	}
	wireguard6 = Overlay{
		Name: "WireGuard IPv6", Encapsulation: noPool, Device: model.DeviceWireguardV6, Kind: kindWireGuard,
		Family: model.IPv6, Overhead: wireguardOverhead6, Packets: wireguardPackets(model.IPv6),
		Settings: func(f *model.FelixConfigurationSpec) Settings {
			return Settings{Enabled: "wireguardEnabledV6", On: new(is(f.WireguardEnabledV6)),
				MTUName: "wireguardMTUV6", MTU: f.WireguardMTUV6}
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
	// Port is the UDP port of this node, and of all others.
	Port uint16
	// Mark is that of encrypted packets, which are not to be encrypted again.
	Mark uint32
	// Table and Priority are those of the rule that leads packets to the routes through the device.
	Table, Priority uint32
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
			Port: o.Packets(f).Port, Mark: mark, Table: lowestTable(f), Priority: defaultRulePriority}
		if p := f.WireguardRoutingRulePriority; p != nil && *p > 0 && *p <= mostRulePriority {
			e.Priority = uint32(*p)
		}
		if k := f.WireguardPersistentKeepAlive; k != nil && k.Duration > 0 {
			e.Keepalive = min(k.Duration.Truncate(time.Second), 65535*time.Second)
		}
		list = append(list, e)
	}
	return list
}

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
