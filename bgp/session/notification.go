package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Fault: when a peer answers our OPEN with a NOTIFICATION, GoBGP drops its content; no event, counter or log message
// has it. Every peer reports a wrong AS in this way, the most frequent mistake of all. So while a session fails in this
// way, the speaker captures the packets of that peer, for a few attempts, and reads the NOTIFICATION itself. Shown by
// TestReasons and TestWithBIRD. Can go when GoBGP's events carry messages received before Established.

const (
	listenTime    = time.Minute // a few attempts
	mostListening = 8           // peers that are looked at at the same time
)

// listen starts to capture the packets of a peer, unless a capture runs already.
func (t *Table) listen(addr netip.Addr, e *entry, now time.Time) {
	if now.Before(e.hints.listenUntil) || t.listening >= mostListening {
		return
	}
	e.hints.listenUntil = now.Add(listenTime)
	t.listening++
	go func() {
		code, sub, err := awaitNotification(addr, listenTime)
		t.mu.Lock()
		t.listening--
		t.mu.Unlock()
		if err != nil {
			t.log.Debug("what the peer answers to our OPEN cannot be read", zap.Stringer("peer", addr), zap.Error(err))
			return
		}
		t.change(addr, func(e *entry, now time.Time) {
			if e.fsm != gobgp.BGP_FSM_ESTABLISHED {
				e.hints.refusal = receivedWords(e, code, sub, "")
				e.fail(DirectionReceived, e.hints.refusal, now)
			}
		})
	}()
}

var errNoNotification = errors.New("no NOTIFICATION came")

// awaitNotification waits for a BGP NOTIFICATION in a TCP segment from addr. It needs CAP_NET_RAW.
func awaitNotification(addr netip.Addr, timeout time.Duration) (code, sub uint8, err error) {
	proto, filter := uint16(unix.ETH_P_IP), fromFilter(addr)
	if addr.Is6() {
		proto = unix.ETH_P_IPV6
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // protocol 0: nothing yet
	if err != nil {
		return 0, 0, fmt.Errorf("packet socket: %w", err)
	}
	defer unix.Close(fd)
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return 0, 0, fmt.Errorf("packet filter: %w", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, 0, fmt.Errorf("packet socket timeout: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto<<8 | proto>>8}); err != nil {
		return 0, 0, fmt.Errorf("bind packet socket: %w", err)
	}
	buf := make([]byte, 1<<16)
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read packets: %w", err)
		}
		if code, sub, ok := notificationIn(buf[:n]); ok {
			return code, sub, nil
		}
	}
	return 0, 0, errNoNotification
}

// fromFilter is a classic BPF program that accepts TCP segments from addr; packets begin with their IP header.
func fromFilter(addr netip.Addr) []unix.SockFilter {
	const (
		loadByte  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		loadWord  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jumpEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret       = unix.BPF_RET | unix.BPF_K
	)
	proto, source := uint32(9), uint32(12)
	if addr.Is6() {
		proto, source = 6, 8
	}
	words := addr.AsSlice()
	type test struct{ load, at, value uint32 }
	tests := []test{{loadByte, proto, unix.IPPROTO_TCP}}
	for i := 0; i < len(words); i += 4 {
		tests = append(tests, test{loadWord, source + uint32(i), binary.BigEndian.Uint32(words[i:])})
	}
	var prog []unix.SockFilter
	for i, t := range tests {
		toDrop := uint8(2*(len(tests)-i-1) + 1)
		prog = append(prog, unix.SockFilter{Code: uint16(t.load), K: t.at},
			unix.SockFilter{Code: jumpEqual, K: t.value, Jf: toDrop})
	}
	return append(prog, unix.SockFilter{Code: ret, K: 1 << 16}, unix.SockFilter{Code: ret})
}

// notificationIn finds a NOTIFICATION in an IP packet with a TCP segment that begins with a BGP message.
func notificationIn(packet []byte) (code, sub uint8, ok bool) {
	if len(packet) < 40 {
		return 0, 0, false
	}
	header := 40
	if packet[0]>>4 == 4 {
		header = int(packet[0]&15) * 4
	}
	if len(packet) < header+20 {
		return 0, 0, false
	}
	segment := packet[header:]
	data := segment[min(len(segment), int(segment[12]>>4)*4):]
	for len(data) >= gobgp.BGP_HEADER_LENGTH {
		for _, b := range data[:16] {
			if b != 0xff {
				return 0, 0, false
			}
		}
		length, kind := int(binary.BigEndian.Uint16(data[16:])), data[18]
		if kind == gobgp.BGP_MSG_NOTIFICATION && len(data) >= 21 {
			return data[19], data[20], true
		}
		if length < gobgp.BGP_HEADER_LENGTH || length > len(data) {
			return 0, 0, false
		}
		data = data[length:]
	}
	return 0, 0, false
}
