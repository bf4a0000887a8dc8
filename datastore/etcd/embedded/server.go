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

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/etcd"
)

// Config configures the data directory of the embedded server, and the access to it.
type Config struct {
	// DataDir is created if it is missing; it belongs to one process at a time. No other user may have write access.
	DataDir string
	// Listen is ADDRESS:PORT for the programs of other hosts, which need a certificate of the authority below DataDir.
	// Port 0 selects a free one. If empty, there is no TCP listener.
	Listen string
	// Insecure lets everybody with access to Listen read and write everything.
	Insecure bool
	// PEM files that replace the authority below DataDir: the server's certificate and key, and the CA of the clients'
	// certificates.
	CAFile, CertFile, KeyFile string
	// QuotaBytes is the maximum size of the database, 4 GiB if zero.
	QuotaBytes int64
	// MinFreeBytes is the free disk space below which writes are refused, 160 MiB if zero.
	MinFreeBytes int64
}

// Server is an etcd server inside this process. It serves only gRPC, on a unix socket that only root and this process's
// user can connect to, and on Config.Listen: no /debug/vars, no /metrics, and nothing for peers.
//
// On a full disk writes fail until there is space again. On a disk error, however, etcd logs the cause and ends the
// process: it must not continue with unknown stored data.
type Server struct {
	config  Config
	server  *embed.Etcd
	serving *serving
	disk    *diskGuard
	lock    *os.File
	log     *zap.Logger
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	close   sync.Once
	ending  atomic.Bool // the server is being closed, so its stop is no error
}

// Start starts the server and waits until it serves. Its data survives kill -9 and power loss: every write is on the
// disk before its acknowledgement.
func Start(ctx context.Context, config Config, log *zap.Logger) (*Server, error) {
	config = config.withDefaults()
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("embedded datastore: %w", err)
	}
	lock, err := lockDir(config.DataDir)
	if err != nil {
		return nil, err
	}
	e := &Server{config: config, lock: lock, log: log}
	if err := e.start(ctx); err != nil {
		e.serving.close()
		lock.Close()
		return nil, err
	}
	tasks, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	e.tasks.Go(func() { e.maintain(tasks) })
	return e, nil
}

func (e *Server) start(ctx context.Context) error {
	dir := filepath.Join(e.config.DataDir, "etcd")
	e.disk = &diskGuard{dir: e.config.DataDir, database: filepath.Join(dir, "member", "snap", "db"),
		minFree: uint64(e.config.MinFreeBytes)}
	if err := e.disk.check(); err != nil {
		return fmt.Errorf("embedded datastore: %w", err)
	}
	var err error
	if e.serving, err = e.config.listen(ctx); err != nil {
		return startError(err, e.config)
	}
	server, err := embed.StartEtcd(e.config.server(dir, e.serving.urls(), e.log, &e.ending))
	if err != nil {
		return startError(err, e.config)
	}
	select {
	case <-server.Server.ReadyNotify():
		e.server = server
		err = allowEverybody(ctx, server.Server, e.log)
	case <-server.Server.StopNotify():
		err = errors.New("stopped while starting")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		e.ending.Store(true)
		server.Close()
		return fmt.Errorf("embedded datastore in %s: %w", e.config.DataDir, err)
	}
	e.serving.start(server.Server, e.disk, e.log)
	return nil
}

// Config returns the client configuration for programs of this host: the unix socket, which needs no certificate.
func (e *Server) Config() etcd.Config {
	return etcd.Config{Endpoints: []string{"unix://" + e.config.socket()}}
}

// Address returns the ADDRESS:PORT of the listener for other hosts, empty without one; 127.0.0.1 stands for all
// addresses.
func (e *Server) Address() string {
	if e.serving.tcp == nil {
		return ""
	}
	address := netip.MustParseAddrPort(e.serving.tcp.Addr().String())
	if address.Addr().IsUnspecified() {
		address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), address.Port())
	}
	return address.String()
}

func (c Config) socket() string { return filepath.Join(c.DataDir, SocketName) }

// Close stops the server. The data stay in the data directory.
func (e *Server) Close() error {
	e.close.Do(func() {
		e.stop()
		e.tasks.Wait()
		e.ending.Store(true)
		e.serving.close()
		e.server.Close()
		e.lock.Close()
	})
	return nil
}

func (c Config) withDefaults() Config {
	if abs, err := filepath.Abs(c.DataDir); err == nil && c.DataDir != "" {
		c.DataDir = abs // other programs learn the socket's path
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = 4 << 30
	}
	if c.MinFreeBytes == 0 {
		c.MinFreeBytes = 160 << 20
	}
	return c
}

// check refuses unsafe and invalid settings.
func (c Config) check() error {
	if c.DataDir == "" {
		return errors.New("data directory is missing")
	}
	if n := len(c.socket()); n > maxSocketPath {
		return fmt.Errorf("socket %s: the path has %d bytes, want at most %d: choose a shorter data directory",
			c.socket(), n, maxSocketPath)
	}
	if c.Listen == "" {
		if c.Insecure || c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" {
			return errors.New("--embedded-insecure and TLS files are about --embedded-listen=ADDRESS:PORT, " +
				"which is missing")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen address %q: want ADDRESS:PORT", c.Listen)
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("listen address %q: want an IP address before the port", c.Listen)
	}
	return c.checkFiles()
}

// checkFiles refuses TLS files that do not match or cannot be read.
func (c Config) checkFiles() error {
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		return fmt.Errorf("certificate file %q and key file %q: want both or none", c.CertFile, c.KeyFile)
	case c.CertFile == "" && c.CAFile != "":
		return fmt.Errorf("CA certificate file %s is given without certificate and key file", c.CAFile)
	case c.CertFile != "" && c.CAFile == "" && !c.Insecure:
		return fmt.Errorf("listen address %s: without a CA certificate file (--embedded-ca-file) everybody "+
			"who reaches it "+
			"may change the cluster: set --embedded-insecure if that is intended", c.Listen)
	}
	if c.CertFile != "" {
		if _, err := etcd.ReadKeyPair(c.CertFile, c.KeyFile); err != nil {
			return err
		}
	}
	if c.CAFile != "" {
		if _, err := etcd.ReadCA(c.CAFile); err != nil {
			return err
		}
	}
	return nil
}

// server returns etcd's own configuration. etcd itself has no listeners: a cluster of one has no peers, and its client
// listeners come with HTTP handlers.
func (c Config) server(dir string, advertise []url.URL, log *zap.Logger, ending *atomic.Bool) *embed.Config {
	s := embed.NewConfig()
	s.Name = "manx"
	s.Dir = dir
	s.ListenClientUrls, s.ListenPeerUrls = nil, nil
	s.AdvertiseClientUrls = advertise
	// The URL only names the member in its own records.
	s.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	s.InitialCluster = s.InitialClusterFromName(s.Name)
	s.QuotaBackendBytes = c.QuotaBytes
	s.AutoCompactionMode, s.AutoCompactionRetention = embed.CompactorModePeriodic, "10m"
	s.EnableGRPCGateway = false
	s.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcd.QuietServer(log.Named("etcd-server"), ending))
	return s
}

// lockDir locks the data directory. etcd itself would wait for the other process for ever.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded datastore: data directory: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return nil, fmt.Errorf("embedded datastore: %w", err)
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

// checkDir refuses a folder in which others could replace the socket, the database or a key.
func checkDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	if st.Mode().Perm()&0o022 != 0 || owner != uint32(os.Geteuid()) && owner != 0 {
		return fmt.Errorf("folder %s can be written by others (mode %#o, owner uid %d): "+
			"want mode 0700 and this user or root as the owner", dir, st.Mode().Perm(), owner)
	}
	return nil
}

// startError adds the remedy to an error of etcd's start.
func startError(err error, c Config) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("embedded datastore: %s is in use by another program, perhaps an etcd server (%w)", c.Listen,
			err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("embedded datastore: %s is no address of this host (%w)", c.Listen, err)
	case strings.Contains(err.Error(), "permission denied"):
		return fmt.Errorf("embedded datastore: no permission for %s or %s (%w)", c.DataDir, c.Listen, err)
	}
	return fmt.Errorf("embedded datastore in %s: %w", c.DataDir, err)
}
