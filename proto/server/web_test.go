package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// webRequest is the text of a request.
const webRequest = "GET %s HTTP/1.1\r\nHost: h\r\n\r\n"

// dialWeb opens a connection and sends text, if any.
func dialWeb(t *testing.T, l net.Listener, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// webAnswer is the status of the next response.
func webAnswer(c net.Conn) (int, error) {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, errors.Join(err, resp.Body.Close())
}

// open counts the connections that the server has not closed.
func open(list []net.Conn) int {
	var n atomic.Int32
	var reads sync.WaitGroup
	for _, c := range list {
		reads.Go(func() {
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				n.Add(1)
			}
		})
	}
	reads.Wait()
	return int(n.Load())
}

// Clients that keep more connections than there may be lose the oldest ones. A probe gets in, and a request that is
// served ends in order.
func TestWebConnectionsAreBounded(t *testing.T) {
	noLeak(t)
	s := New(Config{Log: zap.NewNop()})
	slow, end := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	defer release()
	mux := http.NewServeMux()
	mux.Handle("/", s.webHandler())
	mux.HandleFunc("/slow", func(http.ResponseWriter, *http.Request) {
		slow <- struct{}{}
		<-end
	})
	h := s.newWeb(mux)
	h.ReadHeaderTimeout = time.Hour // nothing but the limit closes connections
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	t.Cleanup(func() {
		h.Close()
		<-served
	})
	scrape := dialWeb(t, l, fmt.Sprintf(webRequest, "/slow"))
	<-slow
	var idle []net.Conn
	for i := range 300 {
		switch i % 3 {
		case 0:
			idle = append(idle, dialWeb(t, l, ""))
		case 1:
			idle = append(idle, dialWeb(t, l, "GET /livez HTTP/1.1\r\n"))
		default:
			c := dialWeb(t, l, fmt.Sprintf(webRequest, "/livez"))
			if code, err := webAnswer(c); err != nil || code != http.StatusOK {
				t.Fatalf("connection %d: %d, %v", i, code, err)
			}
			idle = append(idle, c)
		}
	}
	probe := dialWeb(t, l, fmt.Sprintf(webRequest, "/livez"))
	if code, err := webAnswer(probe); err != nil || code != http.StatusOK {
		t.Errorf("the probe: %d, %v", code, err)
	}
	eventually(t, func() string {
		if n := open(idle); n != webConnections-2 { // without the scrape and the probe
			return fmt.Sprintf("%d connections are open", n)
		}
		return ""
	})
	release()
	if code, err := webAnswer(scrape); err != nil || code != http.StatusOK {
		t.Errorf("the scrape: %d, %v", code, err)
	}
}

// Connections with a request give way too, if they are many: because nobody reads the answers, for instance.
func TestTheLargerGroupOfWebConnectionsGivesWay(t *testing.T) {
	w := &webConns{most: 4, log: zap.NewNop()}
	conns := make([]net.Conn, 11)
	for i := range conns {
		conns[i] = &net.TCPConn{}
	}
	add := func(n int, want net.Conn) {
		t.Helper()
		if out := w.add(conns[n]); out != want {
			t.Errorf("connection %d replaces %d, want %d", n, slices.Index(conns, out), slices.Index(conns, want))
		}
	}
	for n := range 4 {
		add(n, nil)
		w.move(conns[n], &w.busy)
	}
	add(4, conns[0])
	add(5, conns[1])
	add(6, conns[4]) // two of each kind
	w.changed(conns[2], http.StateClosed)
	add(7, nil)
	w.changed(conns[3], http.StateIdle)
	add(8, conns[5])
	w.changed(conns[6], http.StateIdle) // after a request
	add(9, conns[7])
	add(10, conns[3])
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error { return nil }

func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// No connection stays for ever, whatever its client does, or does not.
func TestWebConnectionsEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		send string
		read bool // the response
		most time.Duration
	}{
		"nothing is sent":      {"", false, 10 * time.Second},
		"half a request":       {"GET /livez HTTP/1.1\r\n", false, 10 * time.Second},
		"half a body":          {"GET /livez HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1", true, time.Minute},
		"nobody reads":         {fmt.Sprintf(webRequest, "/livez"), false, time.Minute},
		"idle after a request": {fmt.Sprintf(webRequest, "/livez"), true, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{Log: zap.NewNop()})
				h, l := s.newWeb(s.webHandler()), make(pipes)
				ended := make(chan net.Conn, 1)
				record := h.ConnState
				h.ConnState = func(c net.Conn, state http.ConnState) {
					if record(c, state); state == http.StateClosed {
						ended <- c
					}
				}
				served := make(chan error, 1)
				go func() { served <- h.Serve(l) }()
				client, conn := net.Pipe()
				start := time.Now()
				l <- conn
				if _, err := io.WriteString(client, tc.send); err != nil {
					t.Fatal(err)
				}
				if tc.read {
					go func() { _, _ = io.Copy(io.Discard, client) }()
				}
				<-ended
				if took := time.Since(start); took > tc.most+time.Second {
					t.Errorf("closed after %v, want %v", took, tc.most)
				}
				client.Close()
				close(l)
				<-served
			})
		})
	}
}

// A header as big as the memory of a node is refused.
func TestWebHeadersAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Log: zap.NewNop()})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.ServeWeb(ctx, l) }()
	c := dialWeb(t, l, "GET /livez HTTP/1.1\r\nHost: h\r\nX: "+strings.Repeat("x", 20<<10)+"\r\n\r\n")
	if code, err := webAnswer(c); err != nil || code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%d, %v", code, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
