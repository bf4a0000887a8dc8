package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/datastore/etcd/embedded/pki"
	"github.com/manxnet/manx/datastore/safefile"
)

const (
	// SocketName is the unix socket in the data directory.
	SocketName = "etcd.sock"
	// pkiName is the folder of the certificate authority in the data directory.
	pkiName = "pki"
	// maxSocketPath is the kernel's limit for the path of a unix socket, in bytes.
	maxSocketPath = 107
	// maxConnections limits the connections of other hosts, so that strangers cannot exhaust this process's
	// descriptors.
	maxConnections = 4096
	// handshakeTimeout is the time that a stranger may hold a connection.
	handshakeTimeout = 10 * time.Second
	// closeTimeout is the time that current requests have to finish when the server is closed. Watches never end.
	closeTimeout = 500 * time.Millisecond
)

// serving has the listeners of a server and their gRPC servers.
type serving struct {
	config  Config
	unix    net.Listener
	tcp     net.Listener // nil without a TCP listener
	tls     *tls.Config  // of tcp, nil if it is not encrypted
	servers []*grpc.Server
	tasks   errgroup.Group
}

// listen opens the listeners. No request is served before start.
func (c Config) listen(ctx context.Context) (_ *serving, err error) {
	s := &serving{config: c}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if c.Listen != "" {
		if s.tls, err = c.tls(); err != nil {
			return nil, err
		}
		if s.tcp, err = new(net.ListenConfig).Listen(ctx, "tcp", c.Listen); err != nil {
			return nil, err
		}
	}
	s.unix, err = safefile.Listen(c.socket(), 0o600)
	return s, err
}

// tls returns the TLS configuration of the TCP listener; nil admits everybody.
func (c Config) tls() (*tls.Config, error) {
	switch {
	case c.CertFile != "":
		// The files are read again for each connection, so new ones apply at once.
		info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile,
			ClientCertAuth: c.CAFile != "", TrustedCAFile: c.CAFile}
		return info.ServerConfig()
	case c.Insecure:
		return nil, nil
	}
	dir := filepath.Join(c.DataDir, pkiName)
	if err := checkDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	authority, err := pki.Open(dir, "manx embedded datastore")
	if err != nil {
		return nil, err
	}
	return authority.ServerConfig(), nil
}

// Authority returns the certificate authority of the server with that data directory, which must have listened on TCP
// once.
func Authority(dataDir string) (*pki.Authority, error) {
	a, err := pki.Read(filepath.Join(dataDir, pkiName))
	if errors.Is(err, pki.ErrMissing) {
		return nil, fmt.Errorf("%w: manxd makes one when it is first started with --embedded-listen=ADDRESS:PORT, "+
			"without --embedded-insecure and certificate files", err)
	}
	return a, err
}

// urls returns the client URLs in the member list.
func (s *serving) urls() []url.URL {
	urls := []url.URL{{Scheme: "unix", Path: s.config.socket()}}
	if s.tcp == nil {
		return urls
	}
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	}
	return append(urls, url.URL{Scheme: scheme, Host: s.tcp.Addr().String()})
}

// start serves the listeners.
func (s *serving) start(server *etcdserver.EtcdServer, disk *diskGuard, log *zap.Logger) {
	options := []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: embed.DefaultGRPCKeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: embed.DefaultGRPCKeepAliveInterval, Timeout: embed.DefaultGRPCKeepAliveTimeout}),
		grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				err := refuse(req)
				if err == nil {
					err = disk.admit(req)
				}
				if err != nil {
					return nil, err
				}
				return handler(ctx, req)
			}),
	}
	serve := func(l net.Listener, config *tls.Config) {
		gs := v3rpc.Server(server, config, nil, options...)
		s.servers = append(s.servers, gs)
		s.tasks.Go(func() error {
			if err := gs.Serve(l); err != nil {
				log.Error("embedded datastore: not served any more", zap.Stringer("address", l.Addr()), zap.Error(err))
			}
			return nil
		})
	}
	serve(s.unix, nil)
	if s.tcp != nil {
		serve(netutil.LimitListener(s.tcp, maxConnections), s.tls)
	}
}

// refuse refuses requests that would make the server useless to everybody: it has no users, and its cluster has one
// member.
func refuse(req any) error {
	switch req.(type) {
	case *etcdserverpb.AuthEnableRequest:
		return status.Error(codes.FailedPrecondition,
			"the embedded datastore has no users: its socket and its certificates say who may use it")
	case *etcdserverpb.MemberAddRequest, *etcdserverpb.MemberRemoveRequest:
		return status.Error(codes.FailedPrecondition,
			"the embedded datastore is a cluster of one member: use an etcd cluster for more")
	}
	return nil
}

// allowEverybody disables authentication. Older versions let every user of the host enable it, and could not start
// again then.
func allowEverybody(ctx context.Context, server *etcdserver.EtcdServer, log *zap.Logger) error {
	auth := server.AuthStore()
	if !auth.IsAuthEnabled() {
		return nil
	}
	log.Warn("embedded datastore: somebody has switched authentication on, which is of no use here: it is switched off")
	_, err := server.AuthDisable(auth.WithRoot(ctx), &etcdserverpb.AuthDisableRequest{})
	return err
}

// close closes the listeners and their servers.
func (s *serving) close() {
	if s == nil {
		return
	}
	for _, gs := range s.servers {
		hard := time.AfterFunc(closeTimeout, gs.Stop)
		gs.GracefulStop()
		hard.Stop()
	}
	_ = s.tasks.Wait()
	for _, l := range []net.Listener{s.unix, s.tcp} {
		if l != nil {
			_ = l.Close()
		}
	}
}
