package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/manxnet/manx/retry"
)

// acceptRetry is how long a listener waits after a failure to accept a connection.
const acceptRetry = time.Second

// listener is a listening socket.
type listener struct {
	gate    *Gate
	address netip.AddrPort
	socket  *net.TCPListener
}

// Listen accepts connections of peers on addresses, from then on until Close. Peers come afterwards.
func (g *Gate) Listen(addrs []netip.AddrPort) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range addrs {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false) // MD5 needs plain TCP
		socket, err := config.Listen(context.Background(), network(a.Addr()), a.String())
		if err != nil {
			for _, l := range g.listeners {
				_ = l.socket.Close()
			}
			g.listeners = nil
			return err
		}
		g.listeners = append(g.listeners, &listener{g, a, socket.(*net.TCPListener)})
	}
	for _, l := range g.listeners {
		go l.run()
	}
	return nil
}

// setKey makes the kernel drop packets of a peer that are not signed with a password; without one it takes only those
// that are not signed.
func (l *listener) setKey(peer netip.Addr, password string) error {
	if network(peer) != network(l.address.Addr()) {
		return nil
	}
	c, err := l.socket.SyscallConn()
	if err != nil {
		return err
	}
	err = setMD5(c, peer, password)
	if password == "" {
		return nil // there was no key, or the kernel has none at all
	}
	if err != nil {
		return fmt.Errorf("the kernel does not take the MD5 password: %w", err)
	}
	return nil
}

func (l *listener) run() {
	failing := false
	for l.gate.ctx.Err() == nil {
		tcp, err := l.accept(failing)
		switch {
		case l.gate.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if tcp != nil {
				_ = tcp.Close()
			}
			return
		case err != nil:
			failing = true
			l.report(err)
			retry.Sleep(l.gate.ctx, acceptRetry)
		default:
			failing = false
			l.report(nil)
			if tcp != nil {
				l.gate.accepted(tcp)
			}
		}
	}
}

// report passes on whether connections are accepted, if that is new.
func (l *listener) report(err error) {
	if l.gate.accepting.set(l.address, err) {
		l.gate.cfg.Accepting(l.address, err)
	}
}

// accept waits for a connection. After a failure it waits for a second at most: no connection and no error says that
// none came, and that the socket works.
func (l *listener) accept(failing bool) (*net.TCPConn, error) {
	var deadline time.Time
	if failing {
		deadline = time.Now().Add(acceptRetry)
	}
	if err := l.socket.SetDeadline(deadline); err != nil {
		return nil, err
	}
	tcp, err := l.socket.AcceptTCP()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	return tcp, err
}

func (g *Gate) accepted(tcp *net.TCPConn) {
	remote, local := addressOf(tcp.RemoteAddr()).Addr(), addressOf(tcp.LocalAddr()).Addr()
	p := g.peer(remote)
	if p == nil {
		g.cfg.Stranger(remote, local)
		_ = tcp.Close()
		return
	}
	s := p.settings()
	c, err := tcp.SyscallConn()
	if err == nil {
		err = s.protect(c) // the handshake may have been before the session had its settings
	}
	if err != nil { // without them, other hosts could be the peer
		_ = tcp.Close()
		p.emit(Ended{Cause: CauseLocal, Incoming: true, Err: err})
		return
	}
	p.accept(tcp, s, local.WithZone(""))
}

// accepting has the addresses on which no connections are accepted, with the reasons.
type accepting struct {
	mu     sync.Mutex
	failed map[netip.AddrPort]string
}

// set records the last failure, nil for none, and reports whether that is new.
func (a *accepting) set(address netip.AddrPort, err error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.failed[address]
	if err == nil {
		delete(a.failed, address)
		return was != ""
	}
	if a.failed == nil {
		a.failed = map[netip.AddrPort]string{}
	}
	a.failed[address] = err.Error()
	return was != err.Error()
}

// why returns why connections are not accepted, empty if they are.
func (a *accepting) why() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var reasons []string
	for _, reason := range a.failed {
		reasons = append(reasons, reason)
	}
	if len(reasons) == 0 {
		return ""
	}
	return "connections of BGP peers are not accepted: " + slices.Min(reasons)
}
