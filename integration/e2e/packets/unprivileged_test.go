package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// TestUserOfTheHost: a user of a node without rights, such as a process of a host-network pod, sends to no pod in the
// name of another one. Linux lets every user bind any address (IP_FREEBIND, IPV6_FREEBIND).
func TestUserOfTheHost(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"b": "n1", "v": "n1", "w": "n2"})
	for _, pod := range []string{"b", "v", "w"} {
		must(t, p.Pods[pod].EditEndpoint(func(e lab.Resource) { e.Label("role", pod) }))
	}
	must(t, p.N1.Apply(world.GlobalPolicy("b-alone", "selector: role != 'b', types: [Ingress], "+
		"ingress: [{action: Allow, source: {selector: role == 'b'}}]")))
	b := p.ports["b"]
	for i := range 2 {
		for _, pod := range []string{"v", "w"} {
			from, to := p.addresses("b")[i], p.addresses(pod)[i]
			honest := fmt.Sprintf("honest to %s", to)
			frame := func() []byte {
				return packet.Frame(t, b.MAC, hostMAC, packet.IP(from, to, layers.IPProtocolUDP, 64),
					packet.UDP(8, 9, honest)...)
			}
			eventually(t, func() error { // until the policy is in force
				b.Send(t, frame())
				if len(p.ports[pod].Captured(honest)) == 0 {
					return errors.New("b does not reach " + pod)
				}
				return nil
			})
			p.ports[pod].Forget()
			for range 5 {
				sendAs(t, p.N1.Namespace, from, netip.AddrPortFrom(to, 9), forgedText+to.String())
			}
			b.Send(t, frame())
			arrives(t, p.ports[pod], "a packet of b", honest)
			if got := p.ports[pod].Captured(forgedText); len(got) > 0 {
				t.Errorf("%s received %s", pod, got[0])
			}
		}
	}
}

// sendAs sends a datagram as the user nobody of a namespace, from an address that is none of its own.
func sendAs(t *testing.T, ns string, from netip.Addr, to netip.AddrPort, payload string) {
	t.Helper()
	must(t, namespace.Inside(ns, func() { // on a thread that ends with it
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, world.Nobody, world.Nobody, world.Nobody); e != 0 {
			t.Errorf("become nobody: %v", e)
			return
		}
		var fd int
		var err error
		port := int(to.Port())
		if from.Is6() {
			if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
				err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1),
					unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16()}))
				_ = unix.Sendto(fd, []byte(payload), 0, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: port})
			}
		} else {
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
				err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1),
					unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}))
				_ = unix.Sendto(fd, []byte(payload), 0, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: port})
			}
		}
		_ = unix.Close(fd)
		if err != nil {
			t.Errorf("send as %s: %v", from, err)
		}
	}))
}
