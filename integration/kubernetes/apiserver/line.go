package apiserver

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Line is a TCP proxy to a server. It can be cut, and counts its traffic.
type Line struct {
	// URL replaces the server's.
	URL string
	// Delay is added in either direction. Set it before the first use of the line.
	Delay time.Duration

	target   string
	listener net.Listener
	received atomic.Int64

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
	hush  chan struct{} // closed when the line carries data again; nil: it does
}

// NewLine opens a line to a URL, which ends with the test.
func NewLine(t testing.TB, to string) *Line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return NewLineFrom(t, l, to)
}

// NewLineFrom is a line that begins at a listener, which may be in another network namespace.
func NewLineFrom(t testing.TB, l net.Listener, to string) *Line {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	line := &Line{URL: u.Scheme + "://" + l.Addr().String(), target: u.Host, listener: l, conns: map[net.Conn]bool{}}
	go line.serve()
	t.Cleanup(func() {
		l.Close() //nolint:errcheck // nobody uses it any more
		line.Mend()
		line.Cut()
	})
	return line
}

// Received returns the number of bytes from the server.
func (l *Line) Received() int64 { return l.received.Load() }

// Cut drops all connections and refuses new ones until Mend.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for c := range l.conns {
		c.Close() //nolint:errcheck // that is all there is to it
	}
	clear(l.conns)
}

// Hush keeps connections open and carries no data until Mend, as a network that loses all packets. New connections are
// accepted, and get no data.
func (l *Line) Hush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hush == nil {
		l.hush = make(chan struct{})
	}
}

// Mend lets connections through again.
func (l *Line) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
	if l.hush != nil {
		close(l.hush)
		l.hush = nil
	}
}

// hushed waits until the line carries data.
type hushed struct{ line *Line }

func (h hushed) Write(p []byte) (int, error) {
	h.line.mu.Lock()
	wait := h.line.hush
	h.line.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return len(p), nil
}

func (l *Line) serve() {
	for {
		in, err := l.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", l.target)
		if err != nil {
			in.Close() //nolint:errcheck // refused
			continue
		}
		l.mu.Lock()
		if l.down {
			in.Close()  //nolint:errcheck // refused
			out.Close() //nolint:errcheck // refused
		} else {
			l.conns[in], l.conns[out] = true, true
			there, back := delayWriter(out, l.Delay), delayWriter(in, l.Delay)
			go pipe(io.MultiWriter(hushed{l}, there), in, there)
			go pipe(io.MultiWriter(hushed{l}, back, counter{&l.received}), out, back)
		}
		l.mu.Unlock()
	}
}

// pipe copies until either end is closed, and closes both.
func pipe(to io.Writer, from net.Conn, and ...io.Closer) {
	defer from.Close() //nolint:errcheck // over
	for _, c := range and {
		defer c.Close() //nolint:errcheck // over
	}
	_, _ = io.Copy(to, from)
}

// delayWriter is a writer to w that adds the delay, for any amount of data under way; w itself if there is no delay.
// Its Close closes w after the data under way.
func delayWriter(w io.WriteCloser, by time.Duration) io.WriteCloser {
	if by == 0 {
		return w
	}
	d := &delayed{by: by, queue: make(chan chunk, 4096)}
	go func() {
		defer w.Close() //nolint:errcheck // over
		for p := range d.queue {
			time.Sleep(time.Until(p.due)) // the delay of the line
			_, _ = w.Write(p.content)
		}
	}()
	return d
}

type delayed struct {
	by    time.Duration
	queue chan chunk
}

type chunk struct {
	due     time.Time
	content []byte
}

func (d *delayed) Write(p []byte) (int, error) {
	d.queue <- chunk{time.Now().Add(d.by), bytes.Clone(p)}
	return len(p), nil
}

func (d *delayed) Close() error {
	close(d.queue)
	return nil
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
