package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgpinside"
	"github.com/manxnet/manx/bgp/gobgppolicy"
	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/datastore/safefile"
)

// speakerRun is one GoBGP server and its configuration. Its maps hold the actual state.
type speakerRun struct {
	sp      *Speaker
	srv     *server.BgpServer
	gate    *wire.Gate
	conns   chan net.Conn // that srv takes; set before the gate has a peer
	readers *readers      // of srv
	global  bgp.Global
	cancel  context.CancelFunc // ends the watch

	restarting bool // sessions that are added now existed before the restart
	sessions   map[netip.Addr]bgp.Session
	deferred   map[netip.Addr]bgp.Session // changes that wait until the session is down
	// pending are wanted sessions that may differ from sessions: they have changed, failed, or are deferred. obsolete
	// are sessions that are not wanted any more and may still exist.
	pending, obsolete map[netip.Addr]bool
	origins           map[netip.Prefix]bgp.Origin
	settling          atomic.Bool // settleYielding is about to run
	policy            gobgppolicy.Policy
	desired           *bgp.Desired // the source of the current policy
	inForce           atomic.Pointer[policyInForce]
	rechecks          rechecks
	leftovers         leftovers

	socket *safefile.Socket // of GoBGP's own API, nil for none
}

// startRun starts a GoBGP server with its policy and its watch, without sessions.
func startRun(ctx context.Context, sp *Speaker, g bgp.Global) (*speakerRun, error) {
	if g.LocalAS == 0 {
		return nil, errors.New("bgp speaker: local AS is 0; want 1 to 4294967295")
	}
	if !g.RouterID.Is4() || g.RouterID.IsUnspecified() {
		return nil, fmt.Errorf("bgp speaker: router ID %q is not an IPv4 address other than 0.0.0.0; a node without "+
			"IPv4 address needs CALICO_ROUTER_ID", addrText(g.RouterID))
	}
	gate := sp.newGate(g)
	if err := gate.Listen(listenAddresses(g)); err != nil { // before a whole server is made that could not start
		return nil, fmt.Errorf("bgp speaker: start with %s: %w", g, explainListen(err, g))
	}
	readers := newReaders()
	opts := []server.ServerOption{server.LoggerOption(slog.New(gobgpinside.LogHandler(sp.log)), new(slog.LevelVar))}
	sock, err := prepareSocket(sp.cfg.GobgpSocket)
	if err != nil {
		sp.log.Error("BGP goes on without this socket", zap.Error(err))
	}
	if sock != nil {
		opts = append(opts, server.GrpcListenAddress("unix://"+sock.Address()),
			server.GrpcOption(readOnlyOptions(sp, readers)))
	}
	if err := gobgpinside.CheckIdle(); err != nil {
		sp.log.Warn("bgp sessions come back later after a restart of their peer", zap.Error(err))
	}
	srv := server.NewBgpServer(opts...)
	go srv.Serve()
	run := &speakerRun{sp: sp, srv: srv, gate: gate, readers: readers, global: g,
		sessions: map[netip.Addr]bgp.Session{}, deferred: map[netip.Addr]bgp.Session{},
		pending: map[netip.Addr]bool{}, obsolete: map[netip.Addr]bool{}, origins: map[netip.Prefix]bgp.Origin{}}
	run.socket = sock
	if err := run.start(ctx); err != nil {
		run.stop(ctx)
		return nil, err
	}
	return run, nil
}

func (r *speakerRun) start(ctx context.Context) error {
	global := &api.Global{
		Asn:              r.global.LocalAS,
		RouterId:         r.global.RouterID.String(),
		Families:         []uint32{0, 1}, // IPv4 and IPv6 unicast; each more family costs memory for every peer
		UseMultiplePaths: true,
	}
	var err error
	if r.conns, err = gobgpinside.Start(ctx, r.srv, global); err != nil {
		return fmt.Errorf("bgp speaker: start with %s: %w", r.global, err)
	}
	if err := r.startPolicy(ctx); err != nil {
		return err
	}
	if err := r.startBMP(ctx); err != nil {
		return err
	}
	watchCtx, cancel := context.WithCancel(r.sp.ctx)
	r.cancel = cancel
	if err := r.watch(watchCtx); err != nil {
		return fmt.Errorf("bgp speaker: watch events: %w", err)
	}
	if r.socket != nil {
		if err := publishSocket(r.socket); err != nil {
			r.sp.log.Error("BGP goes on without this socket", zap.Error(err))
		}
	}
	r.sp.log.Info("bgp speaker started", zap.Uint32("as", r.global.LocalAS),
		zap.Stringer("routerID", r.global.RouterID),
		zap.Uint16("port", r.global.ListenPort))
	return nil
}

// stop ends the server for good. Peers that can restart gracefully receive no NOTIFICATION.
func (r *speakerRun) stop(ctx context.Context) {
	if r.cancel != nil {
		r.cancel()
	}
	r.gate.Close()
	r.readers.close()
	if err := r.srv.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: true}); err != nil {
		r.sp.log.Debug("stop of the gobgp server", zap.Error(err))
	}
	r.srv.Stop() // ends the gRPC server and the BFD parts; its own StopBgp fails because of the one above
	closeWaiting(r.conns)
	r.removeSocket()
}

// removeSocket removes the socket of GoBGP's API, which no server answers any more.
func (r *speakerRun) removeSocket() {
	if r.socket == nil {
		return
	}
	if err := r.socket.Remove(); err != nil {
		r.sp.log.Warn("the gobgp socket is left behind", zap.Error(err))
	}
}

// listenAddresses returns the addresses to listen on; without any in the settings, every address of the families of
// this host.
func listenAddresses(g bgp.Global) (list []netip.AddrPort) {
	if g.ListenPort == 0 {
		return nil
	}
	configured := g.ListenAddresses
	if len(configured) == 0 {
		configured = []netip.Addr{netip.IPv4Unspecified()}
		if hasIPv6() {
			configured = append(configured, netip.IPv6Unspecified())
		}
	}
	for _, a := range configured {
		if to := netip.AddrPortFrom(a.Unmap(), g.ListenPort); !slices.Contains(list, to) {
			list = append(list, to)
		}
	}
	return list
}

// hasIPv6 reports whether the kernel has IPv6 at all. A failure of another kind shows when the speaker listens.
func hasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return !errors.Is(err, unix.EAFNOSUPPORT)
}

func explainListen(err error, g bgp.Global) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another BGP speaker (BIRD, FRR, gobgpd) uses port %d on this host; stop it first", err,
			g.ListenPort)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: a listen address %v is not on this host (yet)", err, g.ListenAddresses)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: port %d needs root or CAP_NET_BIND_SERVICE", err, g.ListenPort)
	}
	return err
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
