package property

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/nft"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/integration/namespace"
)

// node is a network namespace with the interfaces of the worlds, whose other ends are all in another namespace. That
// one has no addresses: it answers nothing, so that only our packets are about.
type node struct {
	inside, ends string
	target       *nft.Target
	send         int            // sends frames from the other ends
	receiver     int            // receives the packets that come out there
	raw          map[uint16]int // of the node, by family and protocol: the packets that its processes receive
	out          map[bool]int   // of the node, by family (IPv6): the packets that its processes send
	index        map[string]int // of the other ends, by the name of the node's interface
	name         map[int]string
	flushes      int    // a netlink socket of the node
	first        uint32 // number of the first packet of this round
}

func endMAC(i int, far bool) net.HardwareAddr {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}
	if far {
		mac[4] = 1
	}
	return mac
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{inside: namespace.New(t, "manxprop"), ends: namespace.New(t, "manxprop-ends"), raw: map[uint16]int{},
		out:   map[bool]int{},
		index: map[string]int{}, name: map[int]string{}}
	for _, step := range []func() error{n.settings, n.cable, n.open} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(n.close)
	rules, err := nftables.Open("/run/netns/" + n.inside)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	n.target = nft.New(rules, time.Now)
	return n
}

func (n *node) settings() error {
	set := func(ns string, values map[string]string) error {
		var err error
		in := namespace.Inside(ns, func() {
			for name, v := range values {
				err = errors.Join(err, os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(v), 0))
			}
		})
		return errors.Join(in, err)
	}
	return errors.Join(
		set(n.inside, map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
			"ipv6/conf/default/forwarding": "1",
			"ipv4/conf/all/rp_filter":      "0", "ipv4/conf/default/rp_filter": "0",
			"ipv4/conf/all/send_redirects":     "0",
			"ipv4/conf/default/send_redirects": "0",
			"ipv6/conf/default/accept_dad":     "0"}),
		set(n.ends, map[string]string{"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1",
			"ipv4/ip_forward": "0"}))
}

func (n *node) interfaces() []string {
	list := []string{uplink}
	for i := range localPods {
		list = append(list, podInterface(i))
	}
	return list
}

func (n *node) cable() error {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for i, name := range n.interfaces() {
		add("link add %s address %s type veth peer name %s address %s netns %s", name, endMAC(i, false), name,
			endMAC(i, true), n.ends)
		add("link set %s up", name)
	}
	add("link set lo up")
	for _, v6 := range []bool{false, true} {
		bits, gateway, far := 24, outsideAddress(0, v6), endMAC(0, true)
		if v6 {
			bits = 64
		}
		add("address add %s/%d dev %s", hostAddress(v6), bits, uplink)
		add("neighbour add %s lladdr %s dev %s nud permanent", gateway, far, uplink)
		add("route add default via %s", gateway)
		for i := range localPods {
			a := localAddress(i, v6)
			add("neighbour add %s lladdr %s dev %s nud permanent", a, endMAC(i+1, true), podInterface(i))
			add("route add %s dev %s", a, podInterface(i))
		}
	}
	if err := batch(n.inside, lines); err != nil {
		return err
	}
	lines = nil
	for _, name := range n.interfaces() {
		add("link set %s up", name)
	}
	return batch(n.ends, lines)
}

func batch(ns string, lines []string) error {
	cmd := exec.Command("ip", "-n", ns, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

const everyEtherType = 0x0300 // ETH_P_ALL in the order of the wire

// open makes the sockets, which stay in their namespaces.
func (n *node) open() error {
	var errs []error
	socket := func(domain, kind, protocol int) int {
		fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		errs = append(errs, err)
		if err == nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20)
		}
		return fd
	}
	errs = append(errs, namespace.Inside(n.ends, func() {
		n.send = socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		n.receiver = socket(unix.AF_PACKET, unix.SOCK_DGRAM, everyEtherType)
		for _, name := range n.interfaces() {
			link, err := net.InterfaceByName(name)
			if errs = append(errs, err); err == nil {
				n.index[name], n.name[link.Index] = link.Index, name
			}
		}
	}), namespace.Inside(n.inside, func() {
		for _, protocol := range []uint8{1, 6, 17, 132, 253} {
			n.raw[4<<8|uint16(protocol)] = socket(unix.AF_INET, unix.SOCK_RAW, int(protocol))
		}
		for _, protocol := range []uint8{58, 6, 17, 132, 253} {
			n.raw[6<<8|uint16(protocol)] = socket(unix.AF_INET6, unix.SOCK_RAW, int(protocol))
		}
		n.out[false] = socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		n.out[true] = socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)
		n.flushes = socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	}))
	return errors.Join(errs...)
}

func (n *node) close() {
	for _, fd := range []int{n.send, n.receiver, n.out[false], n.out[true], n.flushes} {
		_ = unix.Close(fd)
	}
	for _, fd := range n.raw {
		_ = unix.Close(fd)
	}
}

// flushConnections deletes all tracked connections of the node.
func (n *node) flushConnections() error {
	m := make([]byte, 20)
	binary.NativeEndian.PutUint32(m[0:], uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], unix.NFNL_SUBSYS_CTNETLINK<<8|2) // IPCTNL_MSG_CT_DELETE of all
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(n.flushes, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	if err := waitFor(n.flushes, time.Second); err != nil {
		return err
	}
	got, _, err := unix.Recvfrom(n.flushes, answer, 0)
	if err == nil && got >= 20 {
		if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
			err = unix.Errno(-code)
		}
	}
	return err
}

func waitFor(fd int, d time.Duration) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(d.Milliseconds()))
		if err != unix.EINTR {
			return err
		}
	}
}

// emit sends a packet from its source. A packet that the node itself may not send is refused with EPERM.
func (n *node) emit(p *ruleset.Packet, number uint32) error {
	b := encode(p, number)
	if p.In == "" {
		var to unix.Sockaddr = &unix.SockaddrInet4{}
		if p.Destination.Is4() {
			to = &unix.SockaddrInet4{Addr: p.Destination.As4()}
		} else {
			to = &unix.SockaddrInet6{Addr: p.Destination.As16()}
		}
		if err := unix.Sendto(n.out[p.Destination.Is6()], b, 0, to); err != nil && !errors.Is(err, unix.EPERM) {
			return err
		}
		return nil
	}
	i := 0
	for p.In != n.interfaces()[i] {
		i++
	}
	frame := append(append([]byte{}, endMAC(i, false)...), endMAC(i, true)...)
	if p.Source.Is4() {
		frame = append(frame, 8, 0)
	} else {
		frame = append(frame, 0x86, 0xdd)
	}
	return unix.Sendto(n.send, append(frame, b...), 0, &unix.SockaddrLinklayer{Ifindex: n.index[p.In], Halen: 6})
}

// place is where a packet came out: an interface of the node, or "" for the node itself.
type place struct {
	iface  string
	source netip.Addr
}

// receiveAll returns the packets that have arrived since, without late ones of the earlier round.
func (n *node) receiveAll(sent []*ruleset.Packet, got map[uint32]place) error {
	b := make([]byte, 4096)
	put := func(a arrival, ok bool, iface string) {
		if a.number -= n.first; !ok || int(a.number) >= len(sent) {
			return
		}
		if p := sent[a.number]; a.protocol == p.Protocol &&
			(p.Protocol != 1 && p.Protocol != 58 || a.icmpType == p.ICMPType) {
			got[a.number] = place{iface, a.source}
		}
	}
	for {
		size, from, err := unix.Recvfrom(n.receiver, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			return err
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING {
			a, ok := decode(b[:size])
			put(a, ok, n.name[ll.Ifindex])
		}
	}
	for kind, fd := range n.raw {
		for {
			size, from, err := unix.Recvfrom(fd, b, 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				return err
			}
			if from6, ok := from.(*unix.SockaddrInet6); ok { // without the IP header
				a, ok := arrival{protocol: uint8(kind), source: netip.AddrFrom16(from6.Addr)}.from(b[:size])
				put(a, ok, "")
			} else {
				a, ok := decode(b[:size])
				put(a, ok, "")
			}
		}
	}
	return nil
}
