package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/etcd"
)

// Config says where the embedded server keeps its data and who may use it.
type Config struct {
	// DataDir is created if it is missing; it belongs to one process at a time.
	DataDir string
	// Listen is ADDRESS:PORT, 127.0.0.1:2379 if empty. Port 0 takes a free one.
	Listen string
	// Insecure permits listening on other than loopback addresses without TLS: everybody who reaches the address may
	// then read and write everything.
	Insecure bool
	// PEM files. With CertFile and KeyFile the server speaks TLS; with CAFile clients need a certificate of that CA.
	CAFile, CertFile, KeyFile string
	// QuotaBytes is how big the database may grow, 4 GiB if zero.
	QuotaBytes int64
	// MinFreeBytes is how much of the disk must stay free for writes to be accepted, 160 MiB if zero.
	MinFreeBytes int64
}

// maxSocketPath is what the kernel takes as the name of a unix socket.
const maxSocketPath = 107

// DefaultListen is where the embedded server is reached by the processes of its own host.
const DefaultListen = "127.0.0.1:2379"

// Server is an etcd server inside this process. Everything else reaches it as it would reach any other, through Config.
//
// A full disk makes writes fail until there is room again. When the disk breaks, however, etcd logs why and ends the
// process: it must not go on without knowing what is stored.
type Server struct {
	config Config
	server *embed.Etcd
	disk   *diskGuard
	lock   *os.File
	log    *zap.Logger
	stop   context.CancelFunc
	tasks  sync.WaitGroup
	close  sync.Once
	ending atomic.Bool // the server is being closed: that it stops is no trouble
}

// Start starts the server and waits until it serves. It survives kill -9 and power loss: every write is on the
// disk before it is acknowledged.
func Start(ctx context.Context, config Config, log *zap.Logger) (*Server, error) {
	config = config.withDefaults()
	listen, err := config.check()
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(config.DataDir)
	if err != nil {
		return nil, err
	}
	e := &Server{config: config, lock: lock, log: log}
	if err := e.start(ctx, listen); err != nil {
		lock.Close()
		return nil, err
	}
	tasks, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	e.tasks.Go(func() { e.maintain(tasks) })
	return e, nil
}

func (e *Server) start(ctx context.Context, listen url.URL) error {
	dir := filepath.Join(e.config.DataDir, "etcd")
	e.disk = &diskGuard{dir: e.config.DataDir, database: filepath.Join(dir, "member", "snap", "db"), minFree: uint64(e.config.MinFreeBytes)}
	if err := e.disk.check(); err != nil {
		return fmt.Errorf("embedded datastore: %w", err)
	}
	server, err := embed.StartEtcd(e.config.server(dir, listen, e.disk, e.log, &e.ending))
	if err != nil {
		return startError(err, e.config)
	}
	select {
	case <-server.Server.ReadyNotify():
		e.server = server
		if e.config.CertFile != "" {
			return os.Chmod(e.config.socket(), 0o600)
		}
		return nil
	case <-server.Server.StopNotify():
		err = errors.New("stopped while starting")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	e.ending.Store(true)
	server.Close()
	return fmt.Errorf("embedded datastore in %s: %w", e.config.DataDir, err)
}

// Config is how this process reaches the server. Over TLS the server's certificate need not name any address of this
// host, and ours need not be one for clients, so there a unix socket serves instead, for root alone.
func (e *Server) Config() etcd.Config {
	if e.config.CertFile != "" {
		return etcd.Config{Endpoints: []string{"unix://" + e.config.socket()}}
	}
	return etcd.Config{Endpoints: []string{"http://" + e.Address()}}
}

// Address is the ADDRESS:PORT that the server listens on; 127.0.0.1 stands for all addresses.
func (e *Server) Address() string {
	for _, l := range e.server.Clients {
		if _, ok := l.Addr().(*net.TCPAddr); !ok {
			continue
		}
		address := netip.MustParseAddrPort(l.Addr().String())
		if address.Addr().IsUnspecified() {
			address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), address.Port())
		}
		return address.String()
	}
	return ""
}

func (c Config) socket() string { return filepath.Join(c.DataDir, "etcd.sock") }

// Err delivers an error if the server fails while it runs, and is closed when it has stopped.
func (e *Server) Err() <-chan error { return e.server.Err() }

// Close stops the server. What was written stays in the data directory.
func (e *Server) Close() error {
	e.close.Do(func() {
		e.stop()
		e.tasks.Wait()
		e.ending.Store(true)
		e.server.Close()
		e.lock.Close()
	})
	return nil
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = 4 << 30
	}
	if c.MinFreeBytes == 0 {
		c.MinFreeBytes = 160 << 20
	}
	return c
}

// check refuses what would be unsafe or cannot work, and gives the URL to listen on.
func (c Config) check() (url.URL, error) {
	fail := func(format string, args ...any) (url.URL, error) {
		return url.URL{}, fmt.Errorf("embedded datastore: "+format, args...)
	}
	if c.DataDir == "" {
		return fail("data directory is missing")
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fail("listen address %q: want ADDRESS:PORT", c.Listen)
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return fail("listen address %q: want an IP address before the port", c.Listen)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return fail("certificate file %q and key file %q: want both or none", c.CertFile, c.KeyFile)
	}
	if c.CertFile == "" && c.CAFile != "" {
		return fail("CA certificate file %s is given without certificate and key file", c.CAFile)
	}
	scheme := "http"
	if c.CertFile != "" {
		scheme = "https"
		if n := len(c.socket()); n > maxSocketPath {
			return fail("socket %s: the path has %d bytes, want at most %d: choose a shorter data directory", c.socket(), n, maxSocketPath)
		}
		if _, err := etcd.ReadKeyPair(c.CertFile, c.KeyFile); err != nil {
			return fail("%w", err)
		}
		if c.CAFile != "" {
			if _, err := etcd.ReadCA(c.CAFile); err != nil {
				return fail("%w", err)
			}
		}
	}
	if !address.IsLoopback() && !c.Insecure && (c.CertFile == "" || c.CAFile == "") {
		return fail("listen address %s can be reached from other hosts: that wants certificate, key and CA certificate files (--embedded-cert-file, --embedded-key-file, --embedded-ca-file), or --embedded-insecure if everyone who reaches it may change the cluster", c.Listen)
	}
	return url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}, nil
}

// server translates to etcd's own configuration.
func (c Config) server(dir string, listen url.URL, disk *diskGuard, log *zap.Logger, ending *atomic.Bool) *embed.Config {
	s := embed.NewConfig()
	s.Name = "manx"
	s.Dir = dir
	s.ListenClientUrls = []url.URL{listen}
	s.AdvertiseClientUrls = []url.URL{listen}
	// A cluster of one has no peers: nothing listens for them. The URL only names the member in its own records.
	s.ListenPeerUrls = nil
	s.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	s.InitialCluster = s.InitialClusterFromName(s.Name)
	if c.CertFile != "" {
		s.ListenClientUrls = append(s.ListenClientUrls, url.URL{Scheme: "unix", Path: c.socket()})
		s.ClientTLSInfo = transport.TLSInfo{
			CertFile: c.CertFile, KeyFile: c.KeyFile,
			ClientCertAuth: c.CAFile != "", TrustedCAFile: c.CAFile,
		}
	}
	s.QuotaBackendBytes = c.QuotaBytes
	s.AutoCompactionMode, s.AutoCompactionRetention = embed.CompactorModePeriodic, "10m"
	s.EnableGRPCGateway = false
	s.GRPCAdditionalServerOptions = disk.serverOptions()
	s.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcd.QuietServer(log.Named("etcd-server"), ending))
	return s
}

// lockDir makes the data directory ours. etcd itself would wait for the other process for ever.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded datastore: data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("embedded datastore: data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("embedded datastore: data directory %s is in use by another manxd", dir)
		}
		return nil, fmt.Errorf("embedded datastore: locking data directory %s: %w", dir, err)
	}
	return f, nil
}

// startError says what to do about the usual reasons for etcd not to start.
func startError(err error, c Config) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("embedded datastore: %s is in use by another program, perhaps an etcd server (%w)", c.Listen, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("embedded datastore: %s is no address of this host (%w)", c.Listen, err)
	case strings.Contains(err.Error(), "permission denied"):
		return fmt.Errorf("embedded datastore: no permission for %s or %s (%w)", c.DataDir, c.Listen, err)
	}
	return fmt.Errorf("embedded datastore in %s: %w", c.DataDir, err)
}
