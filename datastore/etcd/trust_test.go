package etcd_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/model"
)

// strangerEnv makes the test binary an unprivileged user who tries to access the embedded server of the named
// directory.
const strangerEnv = "MANX_TEST_STRANGER"

// nobody is the user and group of the stranger.
const nobody = 65534

// stranger tries all methods of access until standard input ends, and reports each that works, once.
func stranger(dir string) {
	reported := map[string]bool{}
	try := func(what string, err error) {
		if err == nil && !reported[what] {
			reported[what] = true
			fmt.Println("OPEN", what)
		}
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	fmt.Println("READY")
	for {
		try("socket", dial("unix", filepath.Join(dir, embedded.SocketName)))
		try("TCP 2379", dial("tcp", "127.0.0.1:2379"))
		try("TCP 2380", dial("tcp", "127.0.0.1:2380"))
		for _, file := range []string{"lock", "pki", "pki/ca.key", "pki/ca.crt", "etcd", "etcd/member",
			"etcd/member/snap/db", "etcd/member/wal"} {
			f, err := os.Open(filepath.Join(dir, file))
			try(file, err)
			_ = f.Close()
		}
		try("a new file", os.WriteFile(filepath.Join(dir, "new"), nil, 0o666))
		try("another socket", os.Remove(filepath.Join(dir, embedded.SocketName)))
		select {
		case <-ended:
			fmt.Println("END")
			os.Exit(0)
		default:
		}
	}
}

func dial(network, address string) error {
	c, err := net.DialTimeout(network, address, time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

// watchStranger has an unprivileged user try all methods while do runs, and returns those that worked.
func watchStranger(t *testing.T, dir string, do func()) (open []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user wants root")
	}
	// The stranger must be able to run this program, which is in a folder of its owner.
	self := filepath.Join(publicDir(t), "stranger")
	copyFile(t, os.Args[0], self)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), strangerEnv+"="+dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	defer cmd.Wait() //nolint:errcheck // its output counts
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "READY" {
		t.Fatalf("the stranger prints %q", lines.Text())
	}
	do()
	in.Close()
	for lines.Scan() {
		if lines.Text() == "END" {
			return open
		}
		open = append(open, lines.Text())
	}
	t.Fatal("the stranger has ended early")
	return nil
}

// publicDir returns a folder that every user can enter.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd-trust-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	must(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(out, in)
	must(t, errors.Join(err, out.Close()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// No other user of this host has access at any moment, even while the server starts with an umask of 0 in a data
// directory that every user may enter.
func TestEmbeddedIsClosedToOtherUsers(t *testing.T) {
	if dial("tcp", "127.0.0.1:2379") == nil || dial("tcp", "127.0.0.1:2380") == nil {
		t.Skip("another etcd runs here")
	}
	for name, listen := range map[string]string{"socket alone": "", "TCP": "127.0.0.1:2379"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(publicDir(t), "data")
			must(t, os.Mkdir(dir, 0o755))
			open := watchStranger(t, dir, func() {
				for range 3 {
					process, endpoint := serveInProcess(t, dir, listen)
					s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{endpoint}}, zap.NewNop())
					must(t, err)
					_, err = s.Create(t.Context(), peer(fmt.Sprint("p", process.Pid), "10.0.0.1"))
					must(t, errors.Join(err, s.Close()))
					must(t, process.Signal(syscall.SIGKILL))
					process.Wait()
				}
			})
			if listen != "" { // the server requests a certificate of each client: TestEmbeddedAsksForACertificate
				open = slices.DeleteFunc(open, func(s string) bool { return s == "OPEN TCP 2379" })
			}
			if len(open) > 0 {
				t.Errorf("an unprivileged user found open: %q", open)
			}
		})
	}
}

// listening returns the TCP sockets on which a process listens.
func listening(t *testing.T, pid int) (addresses []string) {
	t.Helper()
	out, err := exec.Command("ss", "-Hltnp").Output()
	if err != nil {
		t.Skip("ss is not here:", err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, fmt.Sprintf("pid=%d,", pid)) {
			addresses = append(addresses, strings.Fields(line)[3])
		}
	}
	return addresses
}

// Nothing listens on TCP, for clients or for peers, unless it is configured.
func TestEmbeddedListensOnNothingElse(t *testing.T) {
	process, _ := serveInProcess(t, t.TempDir(), "")
	if l := listening(t, process.Pid); len(l) > 0 {
		t.Errorf("without a listen address it listens on %v", l)
	}
	address := closedPort(t)
	process, _ = serveInProcess(t, t.TempDir(), address)
	if l := listening(t, process.Pid); len(l) != 1 || l[0] != address {
		t.Errorf("it listens on %v, want %s alone", l, address)
	}
}

// bundle is the folder that a program of another host gets.
func bundle(t *testing.T, dataDir string) etcd.Config {
	t.Helper()
	authority, err := embedded.Authority(dataDir)
	must(t, err)
	dir := filepath.Join(t.TempDir(), "client")
	must(t, authority.WriteClient(dir, "n2", time.Hour))
	return etcd.Config{CAFile: filepath.Join(dir, "ca.crt"), CertFile: filepath.Join(dir, "client.crt"),
		KeyFile: filepath.Join(dir, "client.key")}
}

// Over TCP, a client needs a certificate of the server's own authority. The server's certificate is valid for every
// address or name that the client uses, and stays trusted over a restart.
func TestEmbeddedAsksForACertificate(t *testing.T) {
	dir := t.TempDir()
	e, err := startEmbedded(t, embedded.Config{DataDir: dir, Listen: "0.0.0.0:0"})
	must(t, err)
	_, port, _ := net.SplitHostPort(e.Address())
	good, stranger := bundle(t, dir), newPKI(t)
	for name, c := range map[string]struct {
		config etcd.Config
		want   string
	}{
		"no TLS":         {etcd.Config{Endpoints: []string{"http://127.0.0.1:" + port}}, "speaks TLS"},
		"no certificate": {etcd.Config{CAFile: good.CAFile}, "wants a client certificate"},
		"certificate of another CA": {etcd.Config{CAFile: good.CAFile, CertFile: stranger.client.cert,
			KeyFile: stranger.client.key}, "refuses the client certificate"},
		"another server's CA": {etcd.Config{CAFile: stranger.ca, CertFile: good.CertFile, KeyFile: good.KeyFile},
			"not signed by CA"},
	} {
		if c.config.Endpoints == nil {
			c.config.Endpoints = []string{"https://127.0.0.1:" + port}
		}
		if _, err := etcd.Open(t.Context(), c.config, zap.NewNop()); !errors.Is(err, datastore.ErrUnavailable) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "localhost"} {
		good.Endpoints = []string{"https://" + host + ":" + port}
		create(t, open(t, good), peer("by-"+host, "10.0.0.1"))
	}
	must(t, e.Close())
	_, err = startEmbedded(t, embedded.Config{DataDir: dir, Listen: "127.0.0.1:" + port})
	must(t, err)
	if list, _, err := open(t, good).List(t.Context(), model.KindBGPPeer, ""); err != nil || len(list) != 3 {
		t.Errorf("after a restart: %d objects, %v", len(list), err)
	}
}

// A folder of another user in the place of the authority's folder is not used.
func TestEmbeddedRefusesAForeignAuthority(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user's folder wants root")
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "pki"), 0o700))
	must(t, os.Chown(filepath.Join(dir, "pki"), nobody, nobody))
	_, err := startEmbedded(t, embedded.Config{DataDir: dir, Listen: "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "pki")+" can be written by others") {
		t.Errorf("with a folder of uid %d: %v", nobody, err)
	}
	if _, err := startEmbedded(t, embedded.Config{DataDir: dir}); err != nil {
		t.Errorf("without a listener: %v", err)
	}
}

// A client's certificate is invalid for a server: its owner cannot impersonate the datastore.
func TestEmbeddedClientIsNoServer(t *testing.T) {
	dir := t.TempDir()
	_, err := startEmbedded(t, embedded.Config{DataDir: dir, Listen: "127.0.0.1:0"})
	must(t, err)
	good := bundle(t, dir)
	cert, err := tls.LoadX509KeyPair(good.CertFile, good.KeyFile)
	must(t, err)
	pool, err := etcd.ReadCA(good.CAFile)
	must(t, err)
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	must(t, err)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a client's certificate passes for a server's")
	}
}

// throughProxy returns the configuration of a client of an embedded datastore, over a line that can be cut.
func throughProxy(t *testing.T) (etcd.Config, *proxy) {
	t.Helper()
	dir := t.TempDir()
	e, err := startEmbedded(t, embedded.Config{DataDir: dir, Listen: "127.0.0.1:0"})
	must(t, err)
	c, line := bundle(t, dir), newProxy(t, e.Address())
	c.Endpoints, c.RequestTimeout = []string{strings.Replace(line.URL(), "http", "https", 1)}, time.Second
	return c, line
}

// A certificate that is replaced in its file is used for the next connection, without a restart of the client.
func TestReplacedClientCertificateCounts(t *testing.T) {
	good, line := throughProxy(t)
	s := open(t, good)
	create(t, s, peer("a", "10.0.0.1"))
	other := newPKI(t)
	content, err := os.ReadFile(other.client.cert)
	must(t, err)
	key, err := os.ReadFile(other.client.key)
	must(t, err)
	must(t, errors.Join(os.WriteFile(good.CertFile, content, 0o600), os.WriteFile(good.KeyFile, key, 0o600)))
	line.cut()
	line.mend()
	if _, err := s.Create(t.Context(), peer("b", "10.0.0.1")); err == nil ||
		!strings.Contains(err.Error(), "refuses the client certificate") {
		t.Errorf("with a certificate of another authority: %v", err)
	}
}

// The file of the CA certificate is read for each connection: a client needs no restart when the servers' authority is
// replaced, and does not trust the old one any longer.
func TestReplacedAuthorityCounts(t *testing.T) {
	good, line := throughProxy(t)
	content, err := os.ReadFile(good.CAFile)
	must(t, err)
	other, err := os.ReadFile(newPKI(t).otherCA)
	must(t, err)
	s := open(t, good)
	a := create(t, s, peer("a", "10.0.0.1"))
	must(t, os.WriteFile(good.CAFile, other, 0o600))
	line.cut()
	line.mend()
	if _, err := s.Create(t.Context(), peer("b", "10.0.0.1")); err == nil ||
		!strings.Contains(err.Error(), "is not signed by CA certificate file "+good.CAFile) {
		t.Errorf("with the certificate of another authority: %v", err)
	}
	must(t, os.Remove(good.CAFile))
	if _, err := s.Create(t.Context(), peer("b", "10.0.0.1")); err == nil ||
		!strings.Contains(err.Error(), good.CAFile) {
		t.Errorf("without the file: %v", err)
	}
	must(t, os.WriteFile(good.CAFile, content, 0o600))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, err := s.Get(t.Context(), a.Key)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("with the right certificate: %v", err)
		}
	}
}

// The server does not serve HTTP: with etcd's handlers every user could read the variables and the command line of the
// process.
func TestEmbeddedServesNoHTTP(t *testing.T) {
	dir := t.TempDir()
	e, err := startEmbedded(t, embedded.Config{DataDir: dir, Listen: "127.0.0.1:0", Insecure: true})
	must(t, err)
	_, config := oldServer(t, t.TempDir()) // proves that the requests are right
	secureDir := t.TempDir()
	secure, err := startEmbedded(t, embedded.Config{DataDir: secureDir, Listen: "127.0.0.1:0"})
	must(t, err)
	good := bundle(t, secureDir)
	cert, err := tls.LoadX509KeyPair(good.CertFile, good.KeyFile)
	must(t, err)
	pool, err := etcd.ReadCA(good.CAFile)
	must(t, err)
	tlsConfig := func(proto string) *tls.Config {
		return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, NextProtos: []string{proto},
			ServerName: "localhost"}
	}
	answered := 0
	for name, way := range map[string]struct {
		network, address string
		secure           bool
	}{
		"socket": {"unix", filepath.Join(dir, embedded.SocketName), false},
		"TCP":    {"tcp", e.Address(), false},
		"TLS":    {"tcp", secure.Address(), true},
		"old":    {"tcp", strings.TrimPrefix(config.Endpoints[0], "http://"), false},
	} {
		connect := func(ctx context.Context, proto string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, way.network, way.address)
			if err == nil && way.secure {
				conn = tls.Client(conn, tlsConfig(proto))
			}
			return conn, err
		}
		h2 := new(http.Protocols)
		h2.SetUnencryptedHTTP2(true) // connect encrypts
		clients := map[string]*http.Transport{"http/1.1": {}, "h2": {Protocols: h2}}
		for version, client := range clients {
			client.DialContext = func(ctx context.Context, _, _ string) (net.Conn,
				error) {
				return connect(ctx, version)
			}
			defer client.CloseIdleConnections()
			for _, path := range []string{"/debug/vars", "/debug/pprof/", "/debug/requests", "/metrics", "/health",
				"/version", "/"} {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
				must(t, err)
				resp, err := client.RoundTrip(req)
				if err == nil {
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if name == "old" {
						answered += strings.Count(string(body), "cmdline")
					} else if resp.StatusCode < 400 || strings.Contains(string(body), "cmdline") {
						t.Errorf("%s, %s: GET %s is answered: %s %s", name, version, path, resp.Status, body)
					}
				}
				cancel()
			}
		}
	}
	if answered == 0 {
		t.Error("an older server does not answer either")
	}
}

// oldServer runs etcd with the defaults of older versions of this package, apart from the port.
func oldServer(t *testing.T, dir string) (stop func(), config etcd.Config) {
	t.Helper()
	s := embed.NewConfig()
	s.Name, s.Dir, s.EnableGRPCGateway = "manx", filepath.Join(dir, "etcd"), false
	endpoint := url.URL{Scheme: "http", Host: closedPort(t)}
	s.ListenClientUrls, s.AdvertiseClientUrls = []url.URL{endpoint}, []url.URL{{Scheme: "http", Host: "127.0.0.1:2379"}}
	s.ListenPeerUrls, s.AdvertisePeerUrls = nil, []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	s.InitialCluster = s.InitialClusterFromName(s.Name)
	s.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(s)
	must(t, err)
	<-e.Server.ReadyNotify()
	stop = sync.OnceFunc(e.Close)
	t.Cleanup(stop)
	return stop, etcd.Config{Endpoints: []string{endpoint.String()}}
}

// A data directory of an older version still works, even with authentication enabled, with which the older version did
// not start again.
func TestEmbeddedTakesOldData(t *testing.T) {
	dir := t.TempDir()
	stopOld, config := oldServer(t, dir)
	a := create(t, open(t, config), peer("a", "10.0.0.1"))
	raw, err := clientv3.New(clientv3.Config{Endpoints: config.Endpoints, Logger: zap.NewNop()})
	must(t, err)
	defer raw.Close()
	ctx := t.Context()
	for _, do := range []func() error{
		func() error { _, err := raw.UserAdd(ctx, "root", "mine"); return err },
		func() error { _, err := raw.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := raw.AuthEnable(ctx); return err },
	} {
		must(t, do())
	}
	stopOld()
	core, log := observer.New(zap.WarnLevel)
	for round := range 2 {
		e, err := embedded.Start(ctx, embedded.Config{DataDir: dir, MinFreeBytes: 1}, zap.New(core))
		must(t, err)
		s := open(t, e.Config())
		if got, err := s.Get(ctx, a.Key); err != nil || got.Revision != a.Revision {
			t.Errorf("round %d: %v, %v", round, got, err)
		}
		create(t, s, peer(fmt.Sprint("new", round), "10.0.0.1"))
		members, err := embeddedClient(t, e).MemberList(ctx)
		must(t, err)
		if want := "unix://" + filepath.Join(dir, embedded.SocketName); len(members.Members) != 1 ||
			!slices.Equal(members.Members[0].ClientURLs, []string{want}) {
			t.Errorf("round %d: members are %v, want one at %s", round, members.Members, want)
		}
		must(t, e.Close())
	}
	if n := log.FilterMessageSnippet("switched off").Len(); n != 1 || log.Len() != 1 {
		t.Errorf("the log is %v", log.All())
	}
}

// Programs in any working directory find the socket of a data directory with a relative path.
func TestEmbeddedInARelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	e, err := startEmbedded(t, embedded.Config{DataDir: "data"})
	must(t, err)
	t.Chdir("/")
	create(t, open(t, e.Config()), peer("a", "10.0.0.1"))
}

func embeddedClient(t *testing.T, e *embedded.Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Config().Endpoints, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// No user, root included, can make the server unusable for the daemon by accident.
func TestEmbeddedStaysUsable(t *testing.T) {
	e, err := startEmbedded(t, embedded.Config{})
	must(t, err)
	raw, ctx := embeddedClient(t, e), t.Context()
	if _, err := raw.UserAdd(ctx, "root", "mine"); err != nil {
		t.Fatal(err)
	}
	_, err = raw.UserGrantRole(ctx, "root", "root")
	must(t, err)
	if _, err := raw.AuthEnable(ctx); err == nil || !strings.Contains(err.Error(), "has no users") {
		t.Errorf("auth enable: %v", err)
	}
	if _, err := raw.MemberAdd(ctx, []string{"http://192.0.2.1:2380"}); err == nil ||
		!strings.Contains(err.Error(), "one member") {
		t.Errorf("member add: %v", err)
	}
	create(t, open(t, e.Config()), peer("a", "10.0.0.1"))
}
