package kubernetes

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newConnection returns a connection that gathers, and its other end.
func newConnection(t *testing.T, longest time.Duration) (*gathering, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it has done its work
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return &gathering{TCPConn: conn.(*net.TCPConn), raw: raw, longest: longest}, other
}

func write(t *testing.T, c net.Conn, text []byte) {
	t.Helper()
	if _, err := c.Write(text); err != nil {
		t.Fatal(err)
	}
}

// reads reads all the time, and sends the bytes of each Read; the channel is closed with the connection.
func reads(c io.Reader) <-chan []byte {
	list := make(chan []byte, 100)
	go func() {
		defer close(list)
		for {
			b := make([]byte, 256<<10)
			n, err := c.Read(b)
			if err != nil {
				return
			}
			list <- b[:n]
		}
	}()
	return list
}

func TestGather(t *testing.T) {
	t.Run("what comes after a quiet time does not wait, what follows does until there is much", func(t *testing.T) {
		c, other := newConnection(t, time.Hour)
		c.drained = true // as after earlier reads
		batches := reads(c)
		write(t, other, []byte("first"))
		if got := <-batches; string(got) != "first" {
			t.Fatalf("%q", got)
		}
		write(t, other, []byte("second"))
		select {
		case got := <-batches:
			t.Fatalf("%q did not wait", got)
		case <-time.After(100 * time.Millisecond): // it may take longer; a fault shows sooner or later
		}
		write(t, other, bytes.Repeat([]byte("x"), gatherUpTo))
		// The kernel may deliver a part sooner, when its window gets small.
		if got := <-batches; !bytes.HasPrefix(got, []byte("secondx")) {
			t.Fatalf("%d bytes: %.20q", len(got), got)
		}
	})
	t.Run("what comes in close succession is read together", func(t *testing.T) {
		c, other := newConnection(t, 200*time.Millisecond)
		var n atomic.Int64
		batches := reads(c)
		const pieces = 100
		go func() {
			for range pieces {
				_, _ = other.Write([]byte("0123456789"))
				time.Sleep(5 * time.Millisecond) // the pace of the words
			}
			_ = other.Close()
		}()
		size := 0
		for b := range batches {
			n.Add(1)
			size += len(b)
		}
		if size != 10*pieces || n.Load() > pieces/2 {
			t.Errorf("%d bytes in %d reads", size, n.Load())
		}
	})
	t.Run("the other end goes while data are gathered", func(t *testing.T) {
		c, other := newConnection(t, time.Hour)
		c.drained, c.began = true, time.Now()
		batches := reads(c)
		write(t, other, []byte("last words"))
		_ = other.Close()
		if got := <-batches; string(got) != "last words" {
			t.Fatalf("%q", got)
		}
		if more, open := <-batches; open {
			t.Fatalf("%q after the end", more)
		}
	})
	t.Run("this end is closed while data are gathered", func(t *testing.T) {
		c, other := newConnection(t, time.Hour)
		c.drained, c.began = true, time.Now()
		batches := reads(c)
		write(t, other, []byte("words"))
		time.Sleep(10 * time.Millisecond) // most likely the words have arrived; both orders must pass
		_ = c.Close()
		for range batches { // ends
		}
	})
}

// TestShortWritesWait: acknowledgements of HTTP/2 wait while a batch is gathered. They leave together, before a longer
// write and before much data are read; at any other time they leave at once.
func TestShortWritesWait(t *testing.T) {
	c, other := newConnection(t, time.Hour)
	sent := reads(other)
	batches := reads(c)
	arrives := func(want string) {
		t.Helper()
		got := ""
		for len(got) < len(want) {
			select {
			case b := <-sent:
				got += string(b)
			case <-time.After(10 * time.Second):
				t.Fatalf("%q arrived, want %q", got, want)
			}
		}
		if got != want {
			t.Fatalf("%q arrived, want %q", got, want)
		}
	}
	waits := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.busy
	}
	untilItWaits := func() {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !waits(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the reader does not gather")
			}
		}
	}
	much := bytes.Repeat([]byte("x"), gatherUpTo+10) // more than one read
	long := string(bytes.Repeat([]byte("l"), shortWrite+1))

	write(t, c, []byte("at once ")) // the reader waits for as long as nothing comes
	arrives("at once ")
	write(t, other, []byte("an event"))
	<-batches
	untilItWaits()
	write(t, c, []byte("a "))
	write(t, c, []byte("b "))
	if c.mu.Lock(); string(c.held) != "a b " {
		t.Errorf("%q is held", c.held)
	}
	c.mu.Unlock()
	write(t, c, []byte(long))
	arrives("a b " + long)
	write(t, c, []byte("c "))
	write(t, c, []byte("d "))
	write(t, other, much)
	arrives("c d ") // with the batch
	<-batches
	<-batches
	untilItWaits()
	_ = other.Close()
	for range batches { // ends
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := c.Write([]byte("late")); err != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("writes to a closed connection succeed")
		}
	}
}

// TestShortWritesLeaveRarely: on a busy connection several batches share one segment of acknowledgements, and none
// waits for ever.
func TestShortWritesLeaveRarely(t *testing.T) {
	c, other := newConnection(t, 200*time.Millisecond)
	sent := reads(other)
	const batches = 15 // three times as long as holdFor
	for range batches {
		write(t, other, []byte("event"))
		if _, err := c.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		write(t, c, []byte("a"))
	}
	early := len(sent)
	_ = other.(*net.TCPConn).CloseWrite()
	if _, err := c.Read(make([]byte, 100)); err == nil {
		t.Fatal("the connection has no end")
	}
	_ = c.Close()
	got, segments := 0, 0
	for b := range sent {
		segments++
		got += len(b)
	}
	if got != batches || early < 2 || segments > batches/2 {
		t.Errorf("%d acknowledgements of %d batches in %d segments, %d of them early", got, batches, segments, early)
	}
}

// TestOneWakeupABatch: the reader of a busy connection is woken once for each batch, and not by its first event. A
// batch has room for the events of ten pods a second that come and go.
func TestOneWakeupABatch(t *testing.T) {
	c, other := newConnection(t, time.Hour)
	batches := reads(c)
	write(t, other, []byte("first"))
	<-batches
	until := func(what string, value func(fd int) (int, error), want int) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			var n int
			_ = c.raw.Control(func(fd uintptr) { n, _ = value(int(fd)) })
			if n == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s is %d, want %d", what, n, want)
			}
		}
	}
	until("SO_RCVLOWAT", func(fd int) (int, error) {
		return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT)
	}, gatherUpTo)
	const size = 10 * 45_000 / int(time.Second/gatherFor)
	for range 10 {
		write(t, other, bytes.Repeat([]byte("x"), size/10))
	}
	select {
	case got := <-batches:
		t.Fatalf("%d bytes did not wait for the others", len(got))
	case <-time.After(100 * time.Millisecond): // it may take longer; a fault shows sooner or later
	}
	until("the number of unread bytes", func(fd int) (int, error) {
		return unix.IoctlGetInt(fd, unix.SIOCINQ)
	}, size)
}
