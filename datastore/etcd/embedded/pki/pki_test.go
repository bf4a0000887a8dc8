package pki_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/etcd/embedded/pki"
)

func newAuthority(t *testing.T, dir string) *pki.Authority {
	t.Helper()
	a, err := pki.Open(dir, "test")
	must(t, err)
	return a
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An authority is created once, and only its owner can read its key.
func TestOpenKeepsTheAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if _, err := pki.Read(dir); !errors.Is(err, pki.ErrMissing) {
		t.Errorf("without a folder: %v", err)
	}
	first := newAuthority(t, dir).PEM()
	if again := newAuthority(t, dir).PEM(); !bytes.Equal(first, again) {
		t.Error("a second start made another authority")
	}
	st, err := os.Stat(dir)
	must(t, err)
	key, err := os.Stat(filepath.Join(dir, "ca.key"))
	must(t, err)
	if st.Mode().Perm() != 0o700 || key.Mode().Perm() != 0o600 {
		t.Errorf("folder %v, key %v", st.Mode(), key.Mode())
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v: want the certificate and the key", entries, err)
	}
}

// A crash between the key and the certificate leaves the key, which is used then.
func TestOpenAfterACrash(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	newAuthority(t, dir)
	before, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "ca.crt")))
	newAuthority(t, dir)
	after, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the key was replaced")
	}
}

func TestOpenRefuses(t *testing.T) {
	write := func(name, content string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600) }
	}
	for name, c := range map[string]struct {
		spoil func(dir string) error
		want  string
	}{
		"a key that is gone": {func(dir string) error { return os.Remove(filepath.Join(dir, "ca.key")) },
			"restore it from a backup"},
		"an empty key":            {write("ca.key", ""), "holds no PEM block PRIVATE KEY"},
		"an empty certificate":    {write("ca.crt", ""), "holds no PEM block CERTIFICATE"},
		"a truncated certificate": {truncate("ca.crt"), "ca.crt holds no PEM"},
		"garbage in a certificate": {write("ca.crt",
			string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))), "ca.crt"},
		"another's key":          {foreignKey, "is not the key of"},
		"a folder for everybody": {func(dir string) error { return os.Chmod(dir, 0o755) }, "others can enter"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pki")
			newAuthority(t, dir)
			must(t, c.spoil(dir))
			before, _ := os.ReadDir(dir)
			if _, err := pki.Open(dir, "test"); err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), dir) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if after, _ := os.ReadDir(dir); len(after) != len(before) {
				t.Errorf("files %v became %v", before, after)
			}
		})
	}
}

func truncate(name string) func(string) error {
	return func(dir string) error { return os.Truncate(filepath.Join(dir, name), 100) }
}

func foreignKey(dir string) error {
	other := filepath.Join(filepath.Dir(dir), "other")
	if _, err := pki.Open(other, "other"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(other, "ca.key"), filepath.Join(dir, "ca.key"))
}

// handshake has a client call a server of that configuration by a name.
func handshake(t *testing.T, server *tls.Config, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	result := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			err = tls.Server(conn, server).Handshake()
			conn.Close()
		}
		result <- err
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		return err
	}
	defer conn.Close()
	return <-result
}

func TestServerConfig(t *testing.T) {
	a, other := newAuthority(t, filepath.Join(t.TempDir(), "a")), newAuthority(t, filepath.Join(t.TempDir(), "b"))
	certOf := func(a *pki.Authority, life time.Duration) []tls.Certificate {
		certPEM, keyPEM, err := a.IssueClient("n2", life)
		must(t, err)
		cert, err := tls.X509KeyPair(certPEM, keyPEM)
		must(t, err)
		return []tls.Certificate{cert}
	}
	for name, c := range map[string]struct {
		client *tls.Config
		want   string
	}{
		"by address": {&tls.Config{RootCAs: a.Pool(), Certificates: certOf(a, time.Hour)}, ""},
		"with a clock that was never set": {&tls.Config{RootCAs: a.Pool(), Certificates: certOf(a, time.Hour),
			Time: func() time.Time { return time.Unix(100, 0) }}, ""},
		"with a clock that is far ahead": {&tls.Config{RootCAs: a.Pool(), Certificates: certOf(a, time.Hour),
			Time: func() time.Time { return time.Now().AddDate(50, 0, 0) }}, ""},
		"by a name": {&tls.Config{RootCAs: a.Pool(), Certificates: certOf(a, time.Hour),
			ServerName: "n1.example.com"}, ""},
		"without a certificate": {&tls.Config{RootCAs: a.Pool()}, "certificate"},
		"of another authority": {&tls.Config{RootCAs: a.Pool(), Certificates: certOf(other, time.Hour)},
			"certificate"},
		"trusting another": {&tls.Config{RootCAs: other.Pool(), Certificates: certOf(a, time.Hour)},
			"unknown authority"},
		"an expired certificate": {&tls.Config{RootCAs: a.Pool(), Certificates: certOf(a, time.Nanosecond)},
			"expired"},
		"an address of other hosts": {&tls.Config{RootCAs: a.Pool(), Certificates: certOf(a, time.Hour),
			ServerName: "192.0.2.1"}, "192.0.2.1"},
	} {
		if name == "an expired certificate" {
			time.Sleep(1100 * time.Millisecond) // certificates count in seconds
		}
		err := handshake(t, a.ServerConfig(), c.client)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestWriteClient(t *testing.T) {
	a := newAuthority(t, filepath.Join(t.TempDir(), "a"))
	dir := filepath.Join(t.TempDir(), "client")
	must(t, a.WriteClient(dir, "node-2", time.Hour))
	for _, name := range []string{"", ".", "client.key"} {
		st, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", st.Name(), st.Mode())
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	must(t, err)
	if pair.Leaf.Subject.CommonName != "node-2" {
		t.Errorf("it is for %s", pair.Leaf.Subject)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: a.Pool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	must(t, err)
	if err := a.WriteClient(dir, "node-3", time.Hour); !errors.Is(err, os.ErrExist) {
		t.Errorf("into a folder that is there: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("x", 65), "a\nb"} {
		if err := a.WriteClient(dir+"2", name, time.Hour); err == nil || !strings.Contains(err.Error(), "client name") {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := a.WriteClient(dir+"2", "n", -time.Hour); err == nil {
		t.Error("an expired certificate was made")
	}
	if _, err := os.Stat(dir + "2"); err == nil {
		t.Error("a refusal left a folder")
	}
}
