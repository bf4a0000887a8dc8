package nettest

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/namespace"
)

// Parts of a frame and of the header before it (struct virtio_net_hdr), in bytes.
const (
	vnetHeader     = 10
	checksumStart  = 6 // in that header: where in the frame the checksum begins that is left to the hardware
	ethernetHeader = 14
	ipv6Header     = 40
)

// BrokenOffload connects the interfaces eth0 of two namespaces, which it makes, by network cards as Relay has them.
func BrokenOffload(t testing.TB, a, b string) {
	t.Helper()
	middle := Bare(t)
	ends := [2]string{"card1", "card2"}
	for i, ns := range []string{a, b} {
		Run(t, "ip", "-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", ends[i], "netns", middle)
		Run(t, "ip", "-n", ns, "link", "set", "eth0", "up")
	}
	Relay(t, middle, ends)
}

// Relay connects two interfaces of a namespace by a program that stands for network cards which compute no checksums
// within tunnels: a packet whose inner checksum is left to the hardware arrives without it. All others arrive as they
// are. It ends with the test.
func Relay(t testing.TB, middle string, ends [2]string) {
	t.Helper()
	fds := [2]int{}
	var failed error
	for _, name := range ends {
		Run(t, "ip", "netns", "exec", middle, "sysctl", "-qw", "net.ipv6.conf."+name+".disable_ipv6=1")
		Run(t, "ip", "-n", middle, "link", "set", name, "up")
	}
	err := namespace.Inside(middle, func() {
		for i, name := range ends {
			if fds[i], failed = openEnd(name); failed != nil {
				return
			}
		}
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	stop, ended := make(chan struct{}), make(chan struct{}, len(fds))
	for i := range fds {
		go func() {
			defer func() { ended <- struct{}{} }()
			relay(fds[i], fds[1-i], stop)
		}()
	}
	t.Cleanup(func() {
		close(stop)
		for range fds {
			<-ended
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	})
}

// openEnd opens a socket for all frames that come from an interface, with the header that says which checksum is left
// to the hardware.
func openEnd(name string) (int, error) {
	const all = unix.ETH_P_ALL << 8 // in the order of the network
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	index, err := indexOf(name)
	l := &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}
	for _, set := range []func() error{
		func() error { return err },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1) },
		func() error {
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
		},
		func() error { return unix.Bind(fd, l) },
	} {
		if err := set(); err != nil {
			_ = unix.Close(fd)
			return 0, err
		}
	}
	return fd, nil
}

func indexOf(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r)
	}
	if err != nil {
		return 0, err
	}
	return int(r.Uint32()), nil
}

func relay(from, to int, stop chan struct{}) {
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(from, buf)
		select {
		case <-stop:
			return
		default:
		}
		if err != nil || n < vnetHeader {
			continue
		}
		if binary.NativeEndian.Uint16(buf[checksumStart:]) > ethernetHeader+ipv6Header {
			clear(buf[:vnetHeader])
		}
		_, _ = unix.Write(to, buf[:n]) // as a network, which may lose it
	}
}
