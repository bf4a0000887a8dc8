package overlay

import "github.com/manxnet/manx/datastore/model"

// Packets are the packets between nodes in which those of workloads travel.
type Packets struct {
	// Name is the overlay's, for people.
	Name string
	// Protocol is that of IP.
	Protocol uint8
	// Port is the UDP port to which they are sent, 0 for a protocol without ports.
	Port uint16
	// VNI is the network in their VXLAN header; 0: they have none. Other programs may use the port for other networks.
	VNI uint32
	// Untracked: source ports differ by packet and direction, so that connection tracking would see no connections.
	Untracked bool
	// Authentic: they prove by themselves who sent them, so any host may do so.
	Authentic bool
	// FromWorkloads: the cluster lets workloads send such packets, too.
	FromWorkloads bool
}

// Imitable returns the packets that nodes would take for another node's if a workload sent them, with and without an
// overlay of this version.
func Imitable(f *model.FelixConfigurationSpec) []Packets {
	return []Packets{vxlanPackets(f), ipipPackets(f)}
}

const (
	protoIPIP = 4 // RFC 2003
	protoUDP  = 17
	portVXLAN = 4789 // RFC 7348
)

func ipipPackets(f *model.FelixConfigurationSpec) Packets {
	return Packets{Name: "IPIP", Protocol: protoIPIP, FromWorkloads: is(f.AllowIPIPPacketsFromWorkloads)}
}

func vxlanPackets(f *model.FelixConfigurationSpec) Packets {
	p := Packets{Name: "VXLAN", Protocol: protoUDP, Port: portVXLAN, VNI: vni(f), Untracked: true,
		FromWorkloads: is(f.AllowVXLANPacketsFromWorkloads)}
	if port := f.VXLANPort; port != nil && *port > 0 && *port <= 65535 {
		p.Port = uint16(*port)
	}
	return p
}

func is(b *bool) bool { return b != nil && *b }
