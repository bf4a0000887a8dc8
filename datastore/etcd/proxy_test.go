package etcd_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd"
)

func open(t *testing.T, c etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(context.Background(), c, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// proxy is a line to a server that can be cut and made slow.
type proxy struct {
	target   string
	listener net.Listener

	mu    sync.Mutex
	down  bool
	delay time.Duration
	conns map[net.Conn]bool
}

func newProxy(t *testing.T, endpoint string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: strings.TrimPrefix(endpoint, "http://"), listener: l, conns: map[net.Conn]bool{}}
	go p.serve()
	t.Cleanup(func() {
		l.Close()
		p.cut()
	})
	return p
}

func (p *proxy) URL() string { return "http://" + p.listener.Addr().String() }

// cut drops all connections and refuses new ones.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	p.drop()
}

func (p *proxy) drop() {
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// setDelay delays each piece of data in either direction.
func (p *proxy) setDelay(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

func (p *proxy) serve() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		if p.down {
			in.Close()
			out.Close()
		} else {
			p.conns[in], p.conns[out] = true, true
			go p.pipe(in, out)
			go p.pipe(out, in)
		}
		p.mu.Unlock()
	}
}

func (p *proxy) pipe(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		delay := p.delay
		p.mu.Unlock()
		time.Sleep(delay)
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			if err != io.EOF {
				return
			}
			return
		}
	}
}
