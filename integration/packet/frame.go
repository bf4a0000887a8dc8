package packet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// IP returns a header of the addresses' family. hops is the TTL or hop limit.
func IP(from, to netip.Addr, protocol layers.IPProtocol, hops uint8) gopacket.NetworkLayer {
	if from.Is4() {
		return &layers.IPv4{Version: 4, TTL: hops, Protocol: protocol, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
	}
	return &layers.IPv6{Version: 6, HopLimit: hops, NextHeader: protocol, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
}

// Frame returns an Ethernet frame with the layers above it, whose lengths and checksums it computes. The layer above IP
// gets the IP header that its checksum needs.
func Frame(t testing.TB, from, to net.HardwareAddr, ip gopacket.NetworkLayer,
	above ...gopacket.SerializableLayer) []byte {
	t.Helper()
	ether := &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv4}
	if ip.LayerType() == layers.LayerTypeIPv6 {
		ether.EthernetType = layers.EthernetTypeIPv6
	}
	return Bytes(t, ip, append([]gopacket.SerializableLayer{ether, ip.(gopacket.SerializableLayer)}, above...)...)
}

// ARP returns a broadcast ARP request of a sender for a target; if both are the same, a gratuitous one.
func ARP(t testing.TB, from net.HardwareAddr, sender, target netip.Addr) []byte {
	t.Helper()
	return Bytes(t, nil, &layers.Ethernet{SrcMAC: from, DstMAC: layers.EthernetBroadcast,
		EthernetType: layers.EthernetTypeARP}, &layers.ARP{AddrType: layers.LinkTypeEthernet,
		Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
		SourceHwAddress: from, SourceProtAddress: sender.AsSlice(), DstHwAddress: make([]byte, 6),
		DstProtAddress: target.AsSlice()})
}

// Ethernet returns a frame with a complete packet.
func Ethernet(from, to net.HardwareAddr, ip []byte) []byte {
	kind := layers.EthernetTypeIPv4
	if ip[0]>>4 == 6 {
		kind = layers.EthernetTypeIPv6
	}
	return slices.Concat(to, from, []byte{byte(kind >> 8), byte(kind & 0xff)}, ip)
}

// Bytes returns layers as they are on the wire. ip is what checksums of transports include.
func Bytes(t testing.TB, ip gopacket.NetworkLayer, all ...gopacket.SerializableLayer) []byte {
	t.Helper()
	for _, l := range all {
		if c, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := c.SetNetworkLayerForChecksum(ip); err != nil {
				t.Fatal(err)
			}
		}
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		all...); err != nil {
		t.Fatal(fmt.Errorf("a packet cannot be built: %w", err))
	}
	return buf.Bytes()
}

// UDP returns the layers of a datagram.
func UDP(from, to uint16, payload string) []gopacket.SerializableLayer {
	return []gopacket.SerializableLayer{
		&layers.UDP{SrcPort: layers.UDPPort(from), DstPort: layers.UDPPort(to)}, gopacket.Payload(payload)}
}
