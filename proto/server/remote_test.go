package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue makes a certificate; change may modify it before it is signed.
func (a *authority) issue(name string, change func(*x509.Certificate)) (cert, key []byte) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func forServer(c *x509.Certificate) {
	c.ExtKeyUsage, c.IPAddresses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []net.IP{net.IPv4(127, 0, 0, 1)}
}

// remoteRig is a server on a TCP port of the loopback interface.
type remoteRig struct {
	*testing.T
	ca      *authority
	dir     string
	server  *Server
	remote  Remote
	address string
	logs    *observer.ObservedLogs
}

func newRemoteRig(t *testing.T) *remoteRig {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	x := &remoteRig{T: t, ca: newAuthority(t, "CA"), dir: t.TempDir(), logs: logs}
	x.server = New(Config{Node: "node-1", Log: zap.New(core), Level: zap.NewAtomicLevel(), Poll: 5 * time.Millisecond})
	x.remote = Remote{CAFile: x.dir + "/ca", CertFile: x.dir + "/cert", KeyFile: x.dir + "/key",
		Admins: []string{"admin", "ops.example.org", "spiffe://example.org/ops"}, Readers: []string{"reader"}}
	x.install(x.ca)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.server.ServeRemote(ctx, l, x.remote) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return x
}

// install installs the CA and a certificate of it on the server.
func (x *remoteRig) install(ca *authority) {
	x.Helper()
	cert, key := ca.issue("node-1", forServer)
	for name, content := range map[string][]byte{"ca": ca.pem, "cert": cert, "key": key} {
		if err := os.WriteFile(filepath.Join(x.dir, name), content, 0o600); err != nil {
			x.Fatal(err)
		}
	}
}

func (x *remoteRig) dial(name string) *grpc.ClientConn {
	x.Helper()
	return x.dialWith(x.ca, x.ca, name, nil)
}

// dialWith connects with a certificate of one CA, and trusts another.
func (x *remoteRig) dialWith(trusted, signer *authority, name string, change func(*x509.Certificate)) *grpc.ClientConn {
	x.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(trusted.pem)
	if signer != nil {
		cert, key := signer.issue(name, change)
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			x.Fatal(err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	conn, err := grpc.NewClient("passthrough:///"+x.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		x.Fatal(err)
	}
	x.Cleanup(func() { conn.Close() })
	return conn
}

func (x *remoteRig) getStatus(conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(x.Context(), time.Minute)
	defer cancel()
	_, err := manxv1.NewManxClient(conn).GetStatus(ctx, &manxv1.GetStatusRequest{})
	return err
}

// TestCertificatesThatAreNotAccepted: both sides report the reason.
func TestCertificatesThatAreNotAccepted(t *testing.T) {
	x := newRemoteRig(t)
	other := newAuthority(t, "other CA")
	for _, c := range []struct {
		name     string
		conn     *grpc.ClientConn
		caller   string // part of the caller's message
		log      string // part of the logged message
		loggedAs string // subject
	}{
		{"of another CA", x.dialWith(x.ca, other, "admin", nil), "unknown certificate authority",
			"signed by unknown authority", "CN=admin"},
		{"expired", x.dialWith(x.ca, x.ca, "admin",
			func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "expired certificate",
			"certificate has expired", "CN=admin"},
		{"not valid yet", x.dialWith(x.ca, x.ca, "admin",
			func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Minute) }), "expired certificate",
			"is not yet valid", "CN=admin"},
		{"for servers", x.dialWith(x.ca, x.ca, "admin", forServer), "bad certificate", "incompatible key usage",
			"CN=admin"},
		{"none", x.dialWith(x.ca, nil, "", nil), "certificate required", "client didn't provide a certificate", ""},
		{"the daemon's is of a CA that the caller does not trust", x.dialWith(other, x.ca, "admin", nil),
			"signed by unknown authority", "the caller does not accept the certificate of this daemon: bad certificate",
			""},
	} {
		for range 5 { // the alert must not get lost
			x.logs.TakeAll()
			if err := x.getStatus(c.conn); status.Code(err) != codes.Unavailable ||
				!strings.Contains(err.Error(), c.caller) {
				t.Errorf("%s: the caller gets %v", c.name, err)
			}
			eventually(t, func() string {
				for _, l := range x.logs.FilterMessage("remote control connection refused").All() {
					f := l.ContextMap()
					if strings.Contains(fmt.Sprint(f["reason"]), c.log) && f["subject"] == c.loggedAs &&
						strings.HasPrefix(fmt.Sprint(f["remote"]), "127.0.0.1:") {
						return ""
					}
				}
				return fmt.Sprintf("%s: the log does not say %q of %q: %v", c.name, c.log, c.loggedAs, x.logs.All())
			})
			x.server.strangers.mu.Lock()
			x.server.strangers.lines = 0
			x.server.strangers.mu.Unlock()
			c.conn.ResetConnectBackoff()
		}
	}
}

func TestRolesFollowFromNames(t *testing.T) {
	x := newRemoteRig(t)
	spiffe, err := url.Parse("spiffe://example.org/ops")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		change    func(*x509.Certificate)
		cn        string
		reads, is bool // is: an admin
		text      string
	}{
		{"common name", nil, "admin", true, true, ""},
		{"DNS name", func(c *x509.Certificate) { c.DNSNames = []string{"a.example.org", "ops.example.org"} },
			"somebody", true, true, ""},
		{"URI", func(c *x509.Certificate) { c.URIs = []*url.URL{spiffe} }, "", true, true, ""},
		{"reader", nil, "reader", true, false,
			`the certificate of "reader" may only read: this call needs the role admin`},
		{"both roles", func(c *x509.Certificate) { c.DNSNames = []string{"ops.example.org"} }, "reader", true, true,
			""},
		{"in capitals", nil, "Admin", false, false,
			`the certificate of "Admin" has no role here: --control-admins and --control-readers of manxd list none of its names`},
		{"a part of a name", nil, "admi", false, false, "no role"},
		{"a wildcard", func(c *x509.Certificate) { c.DNSNames = []string{"*.example.org"} }, "x", false, false,
			`"x", "*.example.org"`},
		{"no name", nil, "", false, false, "it has no common name, DNS name or URI"},
		{"a name in another field", func(c *x509.Certificate) {
			c.Subject.Organization, c.EmailAddresses = []string{"admin"}, []string{"admin"}
		}, "x", false, false, "no role"},
	} {
		conn := x.dialWith(x.ca, x.ca, c.cn, c.change)
		reads := x.getStatus(conn)
		_, changes := manxv1.NewManxClient(conn).SetLogLevel(t.Context(), &manxv1.SetLogLevelRequest{Level: "info"})
		conn.Close()
		if (reads == nil) != c.reads || (changes == nil) != c.is {
			t.Errorf("%s: reads %v, changes %v", c.name, reads, changes)
		}
		for _, err := range []error{reads, changes} {
			if err != nil && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("%s: %v, want %q", c.name, err, c.text)
			}
		}
	}
	refused := x.logs.FilterMessage("control call refused").FilterField(zap.String("call",
		manxv1.Manx_SetLogLevel_FullMethodName)).All()
	if !slices.ContainsFunc(refused, func(e observer.LoggedEntry) bool {
		f := e.ContextMap()
		return f["caller_subject"] == "CN=reader" && strings.HasPrefix(fmt.Sprint(f["caller_address"]), "127.0.0.1:") &&
			strings.Contains(fmt.Sprint(f["reason"]), "may only read")
	}) {
		t.Errorf("the reader's attempt is not logged: %v", refused)
	}
	done := x.logs.FilterMessage("control call").All()
	if len(done) != 4 {
		t.Fatalf("%d changes are logged, want 4", len(done))
	}
	if f := done[0].ContextMap(); f["caller_subject"] != "CN=admin" || f["object"] != "node/node-1" ||
		f["code"] != "OK" {
		t.Errorf("logged: %v", f)
	}
}

// TestCertificatesAreReadAgain: new files are used for the next connection and, on an open connection, for the next
// call.
func TestCertificatesAreReadAgain(t *testing.T) {
	x := newRemoteRig(t)
	old := x.dial("admin")
	if err := x.getStatus(old); err != nil {
		t.Fatal(err)
	}
	// Garbage, and files that do not match: the earlier files stay in use.
	for name, content := range map[string][]byte{"cert": []byte("half a cert"), "ca": nil} {
		before, err := os.ReadFile(filepath.Join(x.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(x.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := x.getStatus(x.dial("admin")); err != nil {
				t.Errorf("while %s is spoilt: %v", name, err)
			}
		}
		if n := x.logs.FilterMessage("new certificates cannot be used, those before stay in use").Len(); n != 1 {
			t.Errorf("logged %d times that %s is spoilt", n, name)
		}
		x.logs.TakeAll()
		if err := os.WriteFile(filepath.Join(x.dir, name), before, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := x.getStatus(old); err != nil {
			t.Error(err)
		}
	}
	next := newAuthority(t, "next CA")
	x.install(next)
	if err := x.getStatus(x.dialWith(next, next, "admin", nil)); err != nil {
		t.Errorf("with certificates of the new CA: %v", err)
	}
	if err := x.getStatus(old); status.Code(err) != codes.Unauthenticated ||
		!strings.Contains(err.Error(), "not accepted any more") {
		t.Errorf("a connection with a certificate of the old CA: %v", err)
	}
	if err := x.getStatus(x.dialWith(next, x.ca, "admin", nil)); status.Code(err) != codes.Unavailable {
		t.Errorf("a new connection with a certificate of the old CA: %v", err)
	}
	if x.logs.FilterMessage("certificates of the remote control listener").Len() == 0 {
		t.Error("the change is not logged")
	}
}

// TestCertificateExpiresDuringItsConnection: the next call is refused.
func TestCertificateExpiresDuringItsConnection(t *testing.T) {
	x := newRemoteRig(t)
	end := time.Now().Add(3 * time.Second).Truncate(time.Second)
	conn := x.dialWith(x.ca, x.ca, "admin", func(c *x509.Certificate) { c.NotAfter = end })
	if err := x.getStatus(conn); err != nil && time.Now().Before(end) {
		t.Fatal(err)
	}
	time.Sleep(time.Until(end.Add(1100 * time.Millisecond))) // certificates count in seconds
	if err := x.getStatus(conn); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("after the end: %v", err)
	}
}

// openUntrusted opens connections that do nothing, from an address.
func (x *remoteRig) openUntrusted(local string, n int) (open []net.Conn) {
	x.Helper()
	for range n {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
		c, err := d.Dial("tcp", x.address)
		if err != nil {
			x.Fatal(err)
		}
		x.Cleanup(func() { c.Close() })
		open = append(open, c)
	}
	return open
}

// isOpen reports whether the server has not closed a connection yet.
func isOpen(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return os.IsTimeout(err)
}

// TestStrangersKeepNobodyOut: connections without a handshake are closed in favour of others, and after a time limit.
func TestStrangersKeepNobodyOut(t *testing.T) {
	x := newRemoteRig(t)
	inUse := x.dial("reader")
	if err := x.getStatus(inUse); err != nil {
		t.Fatal(err)
	}
	var all []net.Conn
	for i := range 8 {
		all = append(all, x.openUntrusted(fmt.Sprintf("127.0.0.%d", 2+i), 2*remotePerAddress)...)
	}
	eventually(t, func() string {
		n := 0
		for _, c := range all {
			if isOpen(c) {
				n++
			}
		}
		if n > remoteConnections {
			return fmt.Sprintf("%d connections of strangers are open", n)
		}
		return ""
	})
	if err := x.getStatus(x.dial("reader")); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	if err := x.getStatus(inUse); err != nil {
		t.Errorf("the connection that was there before: %v", err)
	}
	if !slices.ContainsFunc(x.logs.FilterMessage("remote control connection refused").All(),
		func(l observer.LoggedEntry) bool {
			return strings.Contains(fmt.Sprint(l.ContextMap()["reason"]), "too many connections without a certificate")
		}) {
		t.Errorf("the log does not report too many connections: %v", x.logs.All())
	}
	eventually(t, func() string {
		if i := slices.IndexFunc(all, isOpen); i >= 0 {
			return fmt.Sprintf("connection %d is still open, without a handshake", i)
		}
		return ""
	})
}

// TestRemoteIsBounded: a caller with a certificate has a limited number of connections, and requests have a time limit.
func TestRemoteIsBounded(t *testing.T) {
	x := newRemoteRig(t)
	var failed error
	var conns []*grpc.ClientConn
	for range remotePerAddress + 1 {
		conns = append(conns, x.dial("reader"))
		if err := x.getStatus(conns[len(conns)-1]); err != nil {
			failed = err
		}
	}
	if status.Code(failed) != codes.Unavailable {
		t.Errorf("one connection too many: %v", failed)
	}
	for _, c := range conns {
		c.Close()
	}
	admin := manxv1.NewManxClient(x.dial("admin"))
	eventually(t, func() string {
		if _, err := admin.GetLogLevel(t.Context(), &manxv1.GetLogLevelRequest{}); err != nil {
			return err.Error()
		}
		return ""
	})
	if _, err := admin.SetLogLevel(t.Context(),
		&manxv1.SetLogLevelRequest{Level: string(bytes.Repeat([]byte("x"),
			biggestRequest))}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a big request: %v", err)
	}
}

func TestRemoteWithoutFilesOrNamesIsRefused(t *testing.T) {
	x := newRemoteRig(t)
	for name, change := range map[string]func(*Remote){
		"CA":    func(r *Remote) { r.CAFile = "" },
		"key":   func(r *Remote) { r.KeyFile = "" },
		"names": func(r *Remote) { r.Admins, r.Readers = nil, nil },
	} {
		r := x.remote
		change(&r)
		if r.Check() == nil || x.server.ServeRemote(t.Context(), nil, r) == nil {
			t.Errorf("without %s", name)
		}
	}
	r := x.remote
	r.KeyFile = x.dir + "/missing"
	if err := r.Readable(); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a file that is not there: %v", err)
	}
	r = x.remote
	r.KeyFile = r.CertFile
	if r.Readable() == nil {
		t.Error("an invalid key")
	}
}
