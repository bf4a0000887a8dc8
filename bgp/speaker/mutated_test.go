package speaker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// The environment variables of TestMutatedMessages.
const (
	envMutations = "MANX_BGP_MUTATIONS" // number of messages; default mutationSample
	envSeed      = "MANX_BGP_SEED"      // of the messages; default: another one each time

	mutationSample = 400
	attackers      = 48
)

// TestMutatedMessages: peers send any message on internal and external sessions, with and without ADD-PATH and in both
// families. The process survives, the sessions of others are untouched, nothing is leaked, and after each message the
// session either works or has ended with a NOTIFICATION.
func TestMutatedMessages(t *testing.T) { // not parallel: it counts goroutines
	count, seed := numberFrom(t, envMutations, mutationSample), numberFrom(t, envSeed, uint64(time.Now().UnixNano()))
	fmt.Fprintf(os.Stderr, "%d messages, %s=%d\n", count, envSeed, seed) // also when the process dies
	s, d := testSpeaker(t, Config{Logger: zap.NewNop(), RestartDeferral: time.Second, OpenTimeout: 3 * time.Second})
	d.Refusals = bgp.Martians()
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1},
		{Prefix: pfx("fd00:244::/64"), LocalPref: 1}}
	d.Global.ListenAddresses = append(d.Global.ListenAddresses, ip("::1"))
	observer, list := passive("127.0.6.255"), []*attacker(nil)
	d.Sessions = []bgp.Session{observer}
	for i := range attackers {
		list = append(list, newAttacker(s, &d, i))
	}
	mustSet(t, s, d)
	watcher := dialFake(t, "127.0.6.255", listenOf(d), fakeOptions{as: 64512, id: "10.99.6.255"})
	watcher.await("our route", func() bool { return len(watcher.routes) == 1 })
	stayUp(t, watcher)
	// the state kept for each peer
	forEach(t, list, func(a *attacker) error { defer a.disconnect(); return a.connect() })
	before := usageNow(s)

	var number atomic.Uint64
	forEach(t, list, func(a *attacker) error {
		defer a.disconnect()
		for n := number.Add(1); n <= count && !t.Failed(); n = number.Add(1) {
			if err := a.attack(newMutator(seed, n)); err != nil {
				return fmt.Errorf("message %d of seed %d: %w", n, seed, err)
			}
			if watcher.isClosed() {
				return fmt.Errorf("message %d of seed %d, or one of those beside it: the session of another peer ended",
					n, seed)
			}
		}
		return nil
	})
	forEach(t, list, func(a *attacker) error { defer a.disconnect(); return a.connect() })
	if st, _ := s.Session(ip("127.0.6.255")); st.Flaps != 0 || !established(st) {
		t.Errorf("observer: %+v", st)
	}
	before.compare(t, s)
	ended := uint64(0)
	for _, a := range list {
		ended += a.ended
	}
	t.Logf("%d messages, %d of which ended their session", count, ended)
}

// stayUp sends KEEPALIVEs until the test ends.
func stayUp(t *testing.T, p *fakePeer) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Second):
				p.write(message(gobgp.BGP_MSG_KEEPALIVE))
			}
		}
	}()
}

func numberFrom(t *testing.T, env string, otherwise uint64) uint64 {
	text := os.Getenv(env)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s = %q: want a number", env, text)
	}
	return n
}

// forEach runs f for all attackers at once.
func forEach(t *testing.T, list []*attacker, f func(*attacker) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, a := range list {
		wg.Go(func() {
			if err := f(a); err != nil {
				t.Errorf("peer %s (AS %d, ADD-PATH %v): %v", a.session.Address, a.session.PeerAS, a.addPath, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// attacker is a peer that sends malformed messages.
type attacker struct {
	s        *Speaker
	session  bgp.Session
	speaker  string
	addPath  bool
	conn     net.Conn // nil: there is none
	messages chan byte
	ended    uint64 // sessions
}

// newAttacker adds the session of an attacker to d. One speaks IPv6, of the others every other one is in another AS.
func newAttacker(s *Speaker, d *bgp.Desired, i int) *attacker {
	a := &attacker{s: s, session: passive(fmt.Sprintf("127.0.6.%d", i+1)), speaker: listenOf(*d), addPath: i%4 > 1}
	if i == 0 {
		a.session.Address, a.session.Source, a.speaker = ip("::1"), netip.Addr{},
			fmt.Sprintf("[::1]:%d", d.Global.ListenPort)
	}
	if i%2 == 1 {
		a.session.PeerAS, a.session.Outsider = 64999, true
	}
	d.Sessions = append(d.Sessions, a.session)
	return a
}

func (a *attacker) options() fakeOptions {
	o := fakeOptions{as: a.session.PeerAS, id: "10.99.7.1", addPath: a.addPath}
	if a.session.Address.Is4() {
		b := a.session.Address.As4()
		o.id = fmt.Sprintf("10.99.7.%d", b[3])
	} else {
		o.family = gobgp.RF_IPv6_UC
	}
	return o
}

// refresh requests all routes of the speaker: the response shows that the session works.
func (a *attacker) refresh() []byte {
	if a.session.Address.Is6() {
		return message(5, 0, 2, 0, 1)
	}
	return message(5, 0, 1, 0, 1)
}

const (
	patience     = 60 * time.Second       // for an expected message
	short        = 300 * time.Millisecond // for an answer, before the rest of a message is filled up
	longestFrame = 65535
)

// connect establishes a session as soon as the speaker accepts it (it idles 5 s after a session is lost).
func (a *attacker) connect() error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = a.dial(); err != nil {
			continue
		}
		put(a.conn, a.options().open(), gobgp.NewBGPKeepAliveMessage())
		if kind := a.await(kindUpdate, 5*time.Second); kind == kindUpdate {
			return nil
		}
		a.disconnect()
		err = errors.New("no routes came")
	}
	return fmt.Errorf("cannot come back: %w", err)
}

// The kinds of messages (RFC 4271 section 4.1), and two values for no message.
const (
	kindOpen         byte = gobgp.BGP_MSG_OPEN
	kindUpdate       byte = gobgp.BGP_MSG_UPDATE
	kindNotification byte = gobgp.BGP_MSG_NOTIFICATION
	kindClosed       byte = 0
	kindNothing      byte = 255
)

// dial connects and waits for the OPEN of the speaker.
func (a *attacker) dial() error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: a.session.Address.AsSlice()}, Timeout: 3 * time.Second}
	conn, err := d.Dial("tcp", a.speaker)
	if err != nil {
		return err
	}
	a.conn, a.messages = conn, make(chan byte, 1024)
	go readKinds(conn, a.messages)
	if kind := a.await(kindOpen, 5*time.Second); kind != kindOpen {
		a.disconnect()
		return errors.New("the speaker sent no OPEN")
	}
	return nil
}

// readKinds returns the kind of each message until the connection ends. UPDATEs without routes (End-of-RIB) are left
// out.
func readKinds(c net.Conn, kinds chan<- byte) {
	defer close(kinds)
	h := make([]byte, gobgp.BGP_HEADER_LENGTH)
	for {
		if _, err := io.ReadFull(c, h); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(h[16:18])) - len(h)
		if _, err := io.CopyN(io.Discard, c, int64(n)); err != nil {
			return
		}
		if h[18] != kindUpdate || n > 12 {
			kinds <- h[18]
		}
	}
}

// await waits for a kind of message, a NOTIFICATION or the end of the connection.
func (a *attacker) await(wanted byte, timeout time.Duration) byte {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case kind, ok := <-a.messages:
			if !ok {
				return kindClosed
			}
			if kind == wanted || kind == kindNotification {
				return kind
			}
		case <-timer.C:
			return kindNothing
		}
	}
}

func (a *attacker) disconnect() {
	if a.conn == nil {
		return
	}
	a.conn.Close()
	for range a.messages { // until the reader has ended
	}
	a.conn = nil
}

// attack sends one message and determines the state of the session.
func (a *attacker) attack(m mutator) error {
	if m.often(12) {
		return a.attackOpening(m)
	}
	if a.conn == nil {
		if err := a.connect(); err != nil {
			return err
		}
	}
	b := m.updateOrRefresh(a.addPath)
	a.write(b)
	a.write(a.refresh())
	kind := a.await(kindUpdate, short)
	for _, more := range []int{gobgp.BGP_MAX_MESSAGE_LENGTH, longestFrame} { // the cut-off part swallows later messages
		for sent := 0; kind == kindNothing && sent < more; sent += 23 {
			a.write(a.refresh())
		}
		if kind == kindNothing {
			kind = a.await(kindUpdate, 10*short)
		}
	}
	if kind == kindNothing {
		kind = a.await(kindUpdate, patience)
	}
	switch kind {
	case kindUpdate:
		return nil
	case kindNothing:
		return fmt.Errorf("%x: neither an answer nor a NOTIFICATION", b)
	}
	return a.endedWith(kind, b)
}

func (a *attacker) write(b []byte) {
	a.conn.SetWriteDeadline(time.Now().Add(patience))
	_, _ = a.conn.Write(b) // a closed connection is seen by the reader
}

// endedWith checks that a session ended with a NOTIFICATION. One that the speaker sent may be lost with the connection
// when it closes with bytes unread, so that its own record counts as well.
func (a *attacker) endedWith(kind byte, b []byte) error {
	a.ended++
	a.disconnect()
	if kind == kindNotification {
		return nil
	}
	var st SessionStatus
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		st, _ = a.s.Session(a.session.Address)
		if !established(st) && (st.LastErrorBy == DirectionSent || st.LastErrorBy == DirectionReceived) {
			return nil
		}
	}
	return fmt.Errorf("%x: the session ended without a NOTIFICATION: %s, %q", b, st.State, st.LastError)
}

// attackOpening sends a broken OPEN. The speaker must refuse it, end the connection, or have the session.
func (a *attacker) attackOpening(m mutator) error {
	a.disconnect()
	var err error
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if err = a.dial(); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cannot come back: %w", err)
		}
	}
	defer a.disconnect()
	b := m.open(uint16(a.session.PeerAS), a.session.Address.AsSlice()[3])
	a.write(b)
	a.write(message(4))
	a.ended++
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if a.await(kindUpdate, short) != kindNothing {
			return nil
		}
		if st, _ := a.s.Session(a.session.Address); established(st) { // without a family in common no routes come
			return nil
		}
	}
	return fmt.Errorf("OPEN %x: no NOTIFICATION, no session, and the connection stays", b)
}

// usage has the resources that a leak increases.
type usage struct {
	goroutines, files int
	objects           uint64
}

// usageNow waits until the sessions have ended.
func usageNow(s *Speaker) usage {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		up := 0
		for _, st := range s.Sessions() {
			if established(st) {
				up++
			}
		}
		if up == 1 { // the observer
			break
		}
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return usage{runtime.NumGoroutine(), len(files), m.HeapObjects}
}

// compare waits until no count is higher than before, except for sessions that are about to be set up.
func (u usage) compare(t *testing.T, s *Speaker) {
	t.Helper()
	var now usage
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); time.Sleep(time.Second) {
		now = usageNow(s)
		if now.goroutines <= u.goroutines+20 && now.files <= u.files+10 && now.objects <= u.objects+u.objects/10+
			20_000 {
			t.Logf("before %+v, after %+v", u, now)
			return
		}
	}
	t.Errorf("leaked: before %+v, after %+v", u, now)
}
