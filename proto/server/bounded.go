package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"go.uber.org/zap"
)

// Bounds of connections: of authenticated callers, and as many again of callers that are not authenticated yet.
const (
	remoteConnections = 32
	remotePerAddress  = 8
)

// boundedListener bounds connections. Unauthenticated ones give way, the oldest first, so that strangers, however many
// connections they open, keep others out for no longer than they need to open the next ones.
type boundedListener struct {
	net.Listener
	server *Server

	mu      sync.Mutex
	strange []*boundedConn // have not proved who they are, the oldest first
	known   []*boundedConn
}

// Accept implements net.Listener.
func (b *boundedListener) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	c := &boundedConn{Conn: conn, listener: b, address: from.Addr().Unmap()}
	if out := b.add(c); out != nil {
		b.server.refused("remote control connection refused", zap.Stringer("remote", out.RemoteAddr()),
			zap.String("reason", fmt.Sprintf("too many connections without a certificate: at most %d, and %d of one "+
				"address; the oldest is closed", remoteConnections, remotePerAddress)))
		_ = out.Close()
	}
	return c, nil
}

// add takes in a new connection, and returns one that has to go for it, nil if there is room.
func (b *boundedListener) add(c *boundedConn) (out *boundedConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case of(b.strange, c.address) >= remotePerAddress:
		out = b.strange[slices.IndexFunc(b.strange, func(x *boundedConn) bool { return x.address == c.address })]
	case len(b.strange) >= remoteConnections:
		out = b.strange[0]
	}
	b.strange = append(b.strange, c)
	return out
}

// of counts the connections of an address.
func of(list []*boundedConn, address netip.Addr) (n int) {
	for _, c := range list {
		if c.address == address {
			n++
		}
	}
	return n
}

// boundedConn is a connection that its listener counts.
type boundedConn struct {
	net.Conn
	listener *boundedListener
	address  netip.Addr
}

// proved records that the caller is authenticated. It fails if there are too many authenticated callers.
func (c *boundedConn) proved() error {
	b := c.listener
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) >= remoteConnections || of(b.known, c.address) >= remotePerAddress {
		return fmt.Errorf("too many connections: at most %d, and %d of one address", remoteConnections,
			remotePerAddress)
	}
	b.forget(c)
	b.known = append(b.known, c)
	return nil
}

// forget is called with the listener locked.
func (b *boundedListener) forget(c *boundedConn) {
	same := func(x *boundedConn) bool { return x == c }
	b.strange, b.known = slices.DeleteFunc(b.strange, same), slices.DeleteFunc(b.known, same)
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.forget(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends the data sent to the caller.
func (c *boundedConn) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return errors.ErrUnsupported
}
