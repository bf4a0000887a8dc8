package policy

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/namespace"
)

// flood sends datagrams without a pause, in rounds: one of each stream. Each has another source port than those before,
// and gets no answer, so that connection tracking takes each for the first of its connection and policy decides about
// it. All leave one processor in the order of the streams, and the kernel keeps that order. Their payload identifies
// them.
type flood struct {
	mu      sync.Mutex
	streams []*stream     // guarded by mu; only ever gets longer
	pace    time.Duration // between rounds
	rounds  atomic.Int64  // sent
	quit    chan struct{}
	done    sync.WaitGroup
	sinks   map[string]*net.UDPConn
}

// stream is the datagrams from one namespace to one address and port.
type stream struct {
	name    string
	to      netip.AddrPort
	fd      int
	address unix.Sockaddr
	failed  atomic.Int64 // could not be sent

	mu     sync.Mutex
	got    map[int64]bool
	latest int64
}

func newFlood(pace time.Duration) *flood {
	return &flood{pace: pace, quit: make(chan struct{}), sinks: map[string]*net.UDPConn{}}
}

// add prepares a stream and a listener for it in the other namespace.
func (f *flood) add(t *testing.T, name, from string, to netip.AddrPort, listener string) *stream {
	t.Helper()
	s := &stream{name: name, to: to, got: map[int64]bool{}}
	family := unix.AF_INET
	if a := to.Addr(); a.Is6() {
		family, s.address = unix.AF_INET6, &unix.SockaddrInet6{Addr: a.As16()}
	} else {
		s.address = &unix.SockaddrInet4{Addr: a.As4()}
	}
	var err error
	must(t, namespace.Inside(from, func() {
		s.fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			unix.IPPROTO_UDP)
	}))
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(s.fd) })
	if family == unix.AF_INET6 {
		must(t, unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, 6))
	}
	f.mu.Lock()
	f.streams = append(f.streams, s)
	f.mu.Unlock()
	if listener != "" {
		f.listen(t, listener, to.Port())
	}
	return s
}

// all returns the streams so far.
func (f *flood) all() []*stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.streams
}

// as gives the stream another source address, one of its namespace.
func (s *stream) as(a netip.Addr) error {
	if a.Is6() {
		return unix.Bind(s.fd, &unix.SockaddrInet6{Addr: a.As16()})
	}
	return unix.Bind(s.fd, &unix.SockaddrInet4{Addr: a.As4()})
}

// listen counts the datagrams that come to a port of a namespace.
func (f *flood) listen(t *testing.T, ns string, port uint16) {
	t.Helper()
	key := fmt.Sprint(ns, " ", port)
	if f.sinks[key] != nil {
		return
	}
	var conn *net.UDPConn
	var err error
	must(t, namespace.Inside(ns, func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(port)}) }))
	must(t, err)
	raw, err := conn.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE,
			64<<20)
	}))
	must(t, err)
	f.sinks[key] = conn
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 64); ; {
			n, _, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if n == 16 {
				f.all()[binary.BigEndian.Uint64(buf)].note(int64(binary.BigEndian.Uint64(buf[8:])))
			}
		}
	}()
}

func (s *stream) note(round int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[round] = true
	s.latest = max(s.latest, round)
}

// received reports whether the datagram of a round arrived.
func (s *stream) received(round int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[round]
}

func (s *stream) last() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// start sends until stop. Rounds are counted from 1.
func (f *flood) start(t *testing.T) {
	t.Helper()
	f.done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread, which is bound to a processor, ends with the goroutine
		var cpus, one unix.CPUSet
		if unix.SchedGetaffinity(0, &cpus) == nil {
			for i := 0; ; i++ {
				if cpus.IsSet(i) {
					one.Set(i)
					break
				}
			}
			_ = unix.SchedSetaffinity(0, &one)
		}
		for next := time.Now(); ; next = next.Add(f.pace) {
			if wait := time.Until(next); wait > 0 {
				time.Sleep(wait)
			} else if wait < -20*f.pace {
				next = time.Now() // the machine was busy; missed datagrams are not sent in one burst
			}
			select {
			case <-f.quit:
				return
			default:
			}
			round := f.rounds.Load() + 1
			for i, s := range f.all() {
				s.send(i, round)
			}
			f.rounds.Store(round)
		}
	})
	t.Cleanup(f.stop)
}

func (s *stream) send(i int, round int64) {
	var b [24]byte
	binary.BigEndian.PutUint16(b[0:], uint16(10000+round%50000))
	binary.BigEndian.PutUint16(b[2:], s.to.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	binary.BigEndian.PutUint64(b[8:], uint64(i))
	binary.BigEndian.PutUint64(b[16:], uint64(round))
	if err := unix.Sendto(s.fd, b[:], 0, s.address); err != nil {
		s.failed.Add(1)
	}
}

// stop ends the flood and waits until all sent datagrams have arrived.
func (f *flood) stop() {
	select {
	case <-f.quit:
		return
	default:
		close(f.quit)
	}
	f.done.Wait()
	for before := f.countArrived() - 1; before != f.countArrived(); time.Sleep(200 * time.Millisecond) {
		before = f.countArrived()
	}
	for _, conn := range f.sinks {
		conn.Close()
	}
}

func (f *flood) countArrived() (n int) {
	for _, s := range f.all() {
		s.mu.Lock()
		n += len(s.got)
		s.mu.Unlock()
	}
	return n
}

// flows waits until one of the datagrams that the stream sends from now on arrives.
func (f *flood) flows(t *testing.T, s *stream) {
	t.Helper()
	from := f.rounds.Load()
	if err := f.waitFor(s, from); err != nil {
		t.Fatal(err)
	}
}

func (f *flood) waitFor(s *stream, after int64) error {
	for end := time.Now().Add(limit); s.last() <= after; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s: nothing arrives; %d could not be sent", s.name, s.failed.Load())
		}
	}
	return nil
}

// missing lists the rounds of a window, from and to included, that did not arrive.
func (s *stream) missing(from, to int64) (list []int64) {
	for r := from; r <= to; r++ {
		if !s.received(r) {
			list = append(list, r)
		}
	}
	return list
}

// checkAll fails the test unless all of a window arrived.
func (s *stream) checkAll(t *testing.T, from, to int64) {
	t.Helper()
	if lost := s.missing(from, to); len(lost) > 0 || from > to {
		t.Errorf("%s: %d of %d datagrams that are allowed were lost, the first ones in rounds %v", s.name, len(lost),
			to-from+1, lost[:min(10, len(lost))])
	}
}

// checkNone fails the test if anything of the stream ever arrived.
func (s *stream) checkNone(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) > 0 {
		t.Errorf("%s: %d datagrams that are denied passed, the last one in round %d", s.name, len(s.got), s.latest)
	}
}

// switches counts how often the decision changes between two streams of which each state allows one: a datagram that
// arrives and one that does not both show the state. A state with both or none of them would show as a row of switches.
// It also lists the datagrams that met another state than those before and after them.
func switches(a, b *stream, from, to int64) (n int, odd []string) {
	states := make([]bool, 0, 2*(to-from+1))
	for r := from; r <= to; r++ {
		states = append(states, a.received(r), !b.received(r))
	}
	for i := 1; i < len(states); i++ {
		if states[i] == states[i-1] {
			continue
		}
		n++
		if i+1 < len(states) && states[i+1] != states[i] {
			s, what := a, "passed"
			if i%2 == 1 {
				s = b
			}
			if states[i] != (i%2 == 0) {
				what = "was lost"
			}
			odd = append(odd, fmt.Sprintf("%s: round %d %s", s.name, from+int64(i/2), what))
		}
	}
	return n, odd
}

// exactlyOne fails the test unless each datagram of the window met one of two states, which changed that often.
func exactlyOne(t *testing.T, a, b *stream, from, to int64, changes int) {
	t.Helper()
	if n, odd := switches(a, b, from, to); n != changes {
		t.Errorf("%s / %s: what is allowed changed %d times with %d changes; %v", a.name, b.name, n, changes, odd)
	}
}
