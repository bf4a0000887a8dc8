package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/namespace"
)

// Port is an interface that frames are sent from and captured at.
type Port struct {
	// MAC is the interface's address.
	MAC net.HardwareAddr

	fd    int
	index int

	mu     sync.Mutex
	frames [][]byte // captured since the start or the last Forget
}

// Open opens an interface of a namespace, and captures the frames that come in there until the test ends.
func Open(t testing.TB, ns, device string) *Port {
	t.Helper()
	p := &Port{}
	var err error
	inside := namespace.Inside(ns, func() { err = p.open(device) })
	if err := errors.Join(inside, err); err != nil {
		t.Fatalf("%s in %s: %v", device, ns, err)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		p.capture(quit)
	}()
	t.Cleanup(func() {
		close(quit)
		<-done
		_ = unix.Close(p.fd)
	})
	return p
}

const (
	// captureBuffer holds the frames of a flood until they are read, in bytes.
	captureBuffer = 64 << 20
	maxFrame      = 1 << 16
)

func (p *Port) open(device string) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	p.MAC, p.index = link.HardwareAddr, link.Index
	everything := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8 // in network byte order
	if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	return errors.Join(
		unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		// The reader looks ten times a second whether the test has ended.
		unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: p.index}))
}

func (p *Port) capture(quit <-chan struct{}) {
	for buf := make([]byte, maxFrame); ; {
		select {
		case <-quit:
			return
		default:
		}
		n, from, err := unix.Recvfrom(p.fd, buf, 0)
		if err != nil {
			continue // the timeout, or the interface is down
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		p.mu.Lock()
		p.frames = append(p.frames, bytes.Clone(buf[:n]))
		p.mu.Unlock()
	}
}

// Send sends a frame.
func (p *Port) Send(t testing.TB, frame []byte) {
	t.Helper()
	if err := p.TrySend(frame); err != nil {
		t.Fatal(err)
	}
}

// TrySend sends a frame. It fails where the interface is down, or its queue is full.
func (p *Port) TrySend(frame []byte) error { return unix.Send(p.fd, frame, 0) }

// Forget drops the frames captured so far.
func (p *Port) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frames = nil
}

// Captured returns the frames that came in with these bytes somewhere in them, such as a payload that only one probe
// has.
func (p *Port) Captured(bytesOf string) (found []gopacket.Packet) {
	p.mu.Lock()
	frames := slices.Clone(p.frames)
	p.mu.Unlock()
	for _, f := range frames {
		if bytes.Contains(f, []byte(bytesOf)) {
			found = append(found, gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default))
		}
	}
	return found
}

// Offload asks the kernel to cut a frame into segments, as struct virtio_net_hdr of linux/virtio_net.h does.
type Offload struct {
	Kind byte // VIRTIO_NET_HDR_GSO_TCPV4 and the like
	Size uint16
	// HeaderLength, ChecksumStart and ChecksumOffset are bytes: of all headers, to the transport header, and in it.
	HeaderLength, ChecksumStart, ChecksumOffset uint16
}

// TrySendOffload sends a frame that may be longer than the MTU. It fails where the kernel refuses the frame.
func (p *Port) TrySendOffload(o Offload, frame []byte) error {
	if err := unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	const needsChecksum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	header := []byte{needsChecksum, o.Kind}
	for _, v := range []uint16{o.HeaderLength, o.Size, o.ChecksumStart, o.ChecksumOffset} {
		header = binary.NativeEndian.AppendUint16(header, v)
	}
	return unix.Send(p.fd, append(header, frame...), 0)
}
