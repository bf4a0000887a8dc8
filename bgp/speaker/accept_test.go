package speaker

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// A failure to accept connections is reported, ends no session, and passes. The test is not parallel: the limit of
// open files holds for the whole process.
func TestAcceptAfterTooManyOpenFiles(t *testing.T) {
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.7.1"), passive("127.0.7.2")}
	mustSet(t, s, d)
	first := dialFake(t, "127.0.7.1", listenOf(d), fakeOptions{as: 64512, id: "10.99.7.1"})
	awaitSession(t, s, "127.0.7.1", "Established", established)
	notReady := func(want bool) {
		t.Helper()
		const words = "not accepted: accept tcp"
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			ok, reason := s.Ready()
			if !ok && strings.Contains(reason, words) && strings.Contains(reason, "too many open files") == want {
				return
			}
			if !want && !strings.Contains(reason, words) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("ready %t, %q", ok, reason)
			}
		}
	}

	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	limit := func(most syscall.Rlimit) {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &most); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(before)
	caller := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.7.3")},
		Control: func(string, string, syscall.RawConn) error { // its own socket is open already
			limit(syscall.Rlimit{Cur: 0, Max: before.Max})
			return nil
		}}
	conn, err := caller.Dial("tcp", listenOf(d))
	if err != nil {
		limit(before)
		t.Fatal(err)
	}
	defer conn.Close()
	notReady(true)
	limit(before)
	notReady(false)
	dialFake(t, "127.0.7.2", listenOf(d), fakeOptions{as: 64512, id: "10.99.7.2"})
	awaitSession(t, s, "127.0.7.2", "Established", established)
	if first.isClosed() {
		t.Error("the other session was lost")
	}

	d.Global.RouterID = ip("10.99.0.2") // a speaker that starts again closes its listeners
	mustSet(t, s, d)
	dialFake(t, "127.0.7.1", listenOf(d), fakeOptions{as: 64512, id: "10.99.7.1"})
	awaitSession(t, s, "127.0.7.1", "Established", established)
}
