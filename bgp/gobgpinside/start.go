package gobgpinside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"syscall"
	"unsafe"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// Fault: GoBGP's own handling of connections cannot be trusted with a session. It panics at a route that is too long to
// be passed on, keeps routes that RFC 4724 wants removed, waits for ever in OpenConfirm, reports no NOTIFICATION before
// a session is up, and stops accepting at the first error. Shown by TestLongestUpdate, TestGracefulRestart,
// TestSilentPeerIsReplaced, TestReasons and TestAcceptAfterTooManyOpenFiles. Can go when none of them is left.
//
// So package wire owns the connections, and GoBGP gets those on which the OPEN exchange is finished. It takes them from
// the channel of its listeners, BgpServer.acceptCh, which has no exported way in. GoBGP writes the field in StartBgp
// alone; it is read once, by reflection, after that has returned. If the field is not as expected, BGP does not start:
// there is no other way of running a session.

// Start starts a server, and returns the channel from which it takes established connections. It sets the listen
// address and port of g. It fails if this GoBGP is not built as expected; the server has to be stopped then, too.
func Start(ctx context.Context, srv *server.BgpServer, g *api.Global) (chan net.Conn, error) {
	if err := startBgp(ctx, srv, g); err != nil {
		return nil, err
	}
	conns, err := acceptChannel(srv)
	if err != nil {
		return nil, err
	}
	return conns, checkOutbox(reflect.TypeFor[server.BgpServer]())
}

// acceptChannel returns the channel from which a started server takes connections. srv points to a server.BgpServer.
func acceptChannel(srv any) (chan net.Conn, error) {
	conns, err := field[chan net.Conn](reflect.ValueOf(srv).Elem(), "acceptCh")
	if err == nil && conns == nil {
		err = errors.New("it has no channel for connections")
	}
	if err != nil {
		return nil, fmt.Errorf("this GoBGP does not take connections as expected: %w", err)
	}
	return conns, nil
}

// field returns an unexported field of a struct that a pointer leads to.
func field[T any](v reflect.Value, name string) (value T, err error) {
	f := v.FieldByName(name)
	if !f.IsValid() || f.Type() != reflect.TypeFor[T]() {
		return value, fmt.Errorf("%s has no %s of type %s", v.Type(), name, reflect.TypeFor[T]())
	}
	return *(*T)(unsafe.Pointer(f.UnsafeAddr())), nil
}

// startBgp starts the server. Its channel for connections exists only beside a listener of its own. That one is bound
// to a multicast address, to which no TCP connection can be made: nobody gets past package wire. Its port is below
// 1024, since every user of the host can occupy the others; without the right to that, any port does.
func startBgp(ctx context.Context, srv *server.BgpServer, g *api.Global) error {
	const tries, privileged = 20, 1024
	low, ports := privileged/2, privileged/2
	var err error
	for range tries {
		address := netip.AddrFrom4([4]byte{239, 255, byte(rand.UintN(256)), byte(rand.UintN(256))})
		g.ListenAddresses, g.ListenPort = []string{address.String()}, int32(low+rand.IntN(ports))
		err = srv.StartBgp(ctx, &api.StartBgpRequest{Global: g})
		switch {
		case errors.Is(err, syscall.EACCES):
			low, ports = privileged, 1<<15
		case !errors.Is(err, syscall.EADDRINUSE):
			return err
		}
	}
	return fmt.Errorf("no port for GoBGP's own listener: %w", err)
}
