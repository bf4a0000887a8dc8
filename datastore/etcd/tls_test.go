package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
)

type pair struct{ cert, key string }

// pki is a CA with a server and a client, and with faulty certificates: files in a directory of the test.
type pki struct {
	ca, otherCA              string
	server, expiredServer    pair
	client, expired, foreign pair
}

type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newPKI(t *testing.T) pki {
	t.Helper()
	good, other := newAuthority(t, "ca"), newAuthority(t, "other")
	hour := time.Hour
	return pki{
		ca: good.file, otherCA: other.file,
		server:        good.issue("server", hour),
		expiredServer: good.issue("expired-server", -hour),
		client:        good.issue("client", hour),
		expired:       good.issue("expired", -hour),
		foreign:       other.issue("foreign", hour),
	}
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) issue(name string, validFor time.Duration) pair {
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(validFor),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pair{a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", keyDER)}
}

func (a *authority) write(name, kind string, der []byte) string {
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

func serveTLS(t *testing.T, ca string, server pair) string {
	t.Helper()
	e, err := startEmbedded(t, embedded.Config{Listen: "127.0.0.1:0", Insecure: ca == "", CAFile: ca,
		CertFile: server.cert, KeyFile: server.key})
	if err != nil {
		t.Fatal(err)
	}
	return "https://" + e.Address()
}

func TestOpenSaysWhatIsWrongWithTLS(t *testing.T) {
	p := newPKI(t)
	secure := serveTLS(t, p.ca, p.server)
	old := serveTLS(t, "", p.expiredServer)
	plain := etcdtest.Start(t).Endpoint
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config etcd.Config
		want   string
		is     error
	}{
		"wrong CA": {etcd.Config{Endpoints: []string{secure}, CAFile: p.otherCA,
			CertFile: p.client.cert, KeyFile: p.client.key}, "not signed by CA certificate file " + p.otherCA,
			datastore.ErrUnavailable},
		"no CA": {etcd.Config{Endpoints: []string{secure}, CertFile: p.client.cert,
			KeyFile: p.client.key}, "a CA certificate file is needed", datastore.ErrUnavailable},
		"no client certificate": {etcd.Config{Endpoints: []string{secure}, CAFile: p.ca},
			"the server wants a client certificate", datastore.ErrUnavailable},
		"expired certificate": {etcd.Config{Endpoints: []string{secure}, CAFile: p.ca, CertFile: p.expired.cert,
			KeyFile: p.expired.key}, "refuses the client certificate of " + p.expired.cert, datastore.ErrUnavailable},
		"certificate of another CA": {etcd.Config{Endpoints: []string{secure}, CAFile: p.ca, CertFile: p.foreign.cert,
			KeyFile: p.foreign.key}, "refuses the client certificate of " + p.foreign.cert, datastore.ErrUnavailable},
		"server expired": {etcd.Config{Endpoints: []string{old}, CAFile: p.ca}, "certificate has expired",
			datastore.ErrUnavailable},
		"http to a TLS server": {etcd.Config{Endpoints: []string{strings.Replace(secure, "https", "http", 1)}},
			"speaks TLS, want https://", datastore.ErrUnavailable},
		"https to a plain server": {etcd.Config{Endpoints: []string{strings.Replace(plain, "http", "https", 1)},
			CAFile: p.ca}, "does not speak TLS, want http://", datastore.ErrUnavailable},
		"CA file missing": {etcd.Config{Endpoints: []string{secure}, CAFile: "/nowhere/ca.pem"},
			"/nowhere/ca.pem: no such file", nil},
		"CA file empty": {etcd.Config{Endpoints: []string{secure}, CAFile: empty},
			empty + " holds no PEM certificate", nil},
		"certificate file missing": {etcd.Config{Endpoints: []string{secure}, CAFile: p.ca, CertFile: "/nowhere/c.pem",
			KeyFile: p.client.key}, "certificate file: open /nowhere/c.pem: no such file", nil},
		"key file missing": {etcd.Config{Endpoints: []string{secure}, CAFile: p.ca, CertFile: p.client.cert,
			KeyFile: "/nowhere/k.pem"}, "key file: open /nowhere/k.pem: no such file", nil},
		"key of another": {etcd.Config{Endpoints: []string{secure}, CAFile: p.ca, CertFile: p.client.cert,
			KeyFile: p.expired.key}, "does not match", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := etcd.Open(context.Background(), c.config, zap.NewNop())
			if err == nil {
				s.Close()
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q lacks %q", err, c.want)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%q is not %q", err, c.is)
			}
			if c.is != nil && !strings.Contains(err.Error(), c.config.Endpoints[0]) {
				t.Errorf("%q does not name the endpoint", err)
			}
		})
	}
	good := etcd.Config{Endpoints: []string{secure}, CAFile: p.ca, CertFile: p.client.cert, KeyFile: p.client.key}
	create(t, open(t, good), peer("a", "10.0.0.1"))
}

func TestOpenSaysWhatIsWrongWithTheConfiguration(t *testing.T) {
	blank, lines := filepath.Join(t.TempDir(), "blank"), filepath.Join(t.TempDir(), "lines")
	for file, content := range map[string]string{blank: " \n", lines: "a\nb\n"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		config etcd.Config
		want   string
	}{
		"no endpoints": {etcd.Config{}, "ETCD_ENDPOINTS"},
		"scheme": {etcd.Config{Endpoints: []string{"ftp://10.0.0.1:2379"}},
			`"ftp": want http or https`},
		"password in an endpoint": {etcd.Config{Endpoints: []string{"ftp://10.0.0.1:1",
			"http://root:hunter2@10.0.0.2:2"}},
			"an etcd endpoint has a user or a password"},
		"no port": {etcd.Config{Endpoints: []string{"http://10.0.0.1"}}, "want http://HOST:PORT"},
		"path": {etcd.Config{Endpoints: []string{"http://10.0.0.1:2379/v3"}},
			"want http://HOST:PORT"},
		"mixed schemes": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1", "https://10.0.0.1:2"}},
			"all must begin"},
		"TLS files for plain": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1"}, CAFile: "/ca"},
			"not encrypted"},
		"certificate without key": {etcd.Config{Endpoints: []string{"https://10.0.0.1:1"}, CertFile: "/c"},
			"both or none"},
		"password twice": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1"}, Username: "u", Password: "p",
			PasswordFile: "/p"}, "one of them"},
		"password file missing": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1"}, Username: "u",
			PasswordFile: "/nowhere/p"}, "password file: open /nowhere/p"},
		"password file empty": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1"}, Username: "u",
			PasswordFile: blank}, blank + " is empty"},
		"password of two lines": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1"}, Username: "u",
			PasswordFile: lines}, lines + " has more than one line"},
		"user without password": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1"}, Username: "u"}, "both or none"},
	} {
		if _, err := etcd.Open(t.Context(), c.config, zap.NewNop()); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v lacks %q", name, err, c.want)
		}
	}
}

func TestCredentials(t *testing.T) {
	server := startCluster(t, 1)[0]
	raw := plainClient(t, server)
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(raw.RoleAdd(ctx, "root"))
	must(raw.UserAdd(ctx, "root", "secret"))
	must(raw.UserGrantRole(ctx, "root", "root"))
	must(raw.RoleAdd(ctx, "calico"))
	must(raw.RoleGrantPermission(ctx, "calico", "/calico/", clientv3.GetPrefixRangeEnd("/calico/"),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	must(raw.UserAdd(ctx, "manx", "cat"))
	must(raw.UserGrantRole(ctx, "manx", "calico"))
	must(raw.UserAdd(ctx, "stranger", "dog"))
	must(raw.AuthEnable(ctx))
	config := etcd.Config{Endpoints: endpoints(server)}
	for name, c := range map[string][3]string{
		"none":           {"", "", "wants a user and a password: set ETCD_USERNAME and ETCD_PASSWORD_FILE"},
		"wrong password": {"manx", "dog", "refuses these credentials"},
		"unknown user":   {"nobody", "x", "refuses these credentials"},
		"no permission": {"stranger", "dog", "does not let user stranger do this: grant it to read and write " +
			"everything below /calico/"},
	} {
		config.Username, config.Password = c[0], c[1]
		if _, err := etcd.Open(ctx, config, zap.NewNop()); !errors.Is(err, datastore.ErrUnauthorized) ||
			!strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	config.Username, config.Password, config.PasswordFile = "manx", "", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("cat\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, config)
	a := create(t, s, peer("a", "10.0.0.1"))
	m := watch(t, s, a.Key.Kind, "Node", "IPAMBlock")
	m.UntilInSync()
	if len(m.State) != 1 {
		t.Errorf("the watch shows %v", m.State)
	}
	// Tokens of the old process are invalid. The first call with such a token, of any kind, logs the store in again.
	server.kill()
	server.start(t)
	m.UntilInSync()
	quiet := open(t, config) // has no watch
	server.kill()
	server.start(t)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var err error
	for limited.Err() == nil {
		if _, err = quiet.Get(limited, a.Key); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("a minute after etcd is back: %v", err)
}

func TestConfigFromEnv(t *testing.T) {
	env := map[string]string{
		"ETCD_ENDPOINTS": "https://10.0.0.1:2379, https://10.0.0.2:2379", "ETCD_CA_CERT_FILE": "/ca",
		"ETCD_CERT_FILE": "/cert", "ETCD_KEY_FILE": "/key",
		"ETCD_USERNAME": "u", "ETCD_PASSWORD": "plain", "CALICO_ETCD_PASSWORD": "calico",
	}
	got := etcd.ConfigFromEnv(func(name string) string { return env[name] })
	if len(got.Endpoints) != 2 || got.Endpoints[1] != "https://10.0.0.2:2379" || got.CAFile != "/ca" ||
		got.CertFile != "/cert" ||
		got.KeyFile != "/key" || got.Username != "u" || got.Password != "calico" {
		t.Errorf("%+v", got)
	}
}

func TestWarnings(t *testing.T) {
	p := newPKI(t)
	dir := t.TempDir()
	secret, open := filepath.Join(dir, "secret"), filepath.Join(dir, "open")
	for file, mode := range map[string]os.FileMode{secret: 0o600, open: 0o644} {
		if err := os.WriteFile(file, []byte("p"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		config etcd.Config
		want   []string
	}{
		"password over http": {etcd.Config{Endpoints: []string{"http://10.0.0.1:1", "http://10.0.0.2:1"},
			Username: "u", Password: "p"}, []string{"password of etcd user u goes over http://10.0.0.1:1 unencrypted"}},
		"without a scheme": {etcd.Config{Endpoints: []string{"10.0.0.1:1"}, Username: "u", PasswordFile: secret},
			[]string{"goes over 10.0.0.1:1 unencrypted"}},
		"password over https": {etcd.Config{Endpoints: []string{"https://10.0.0.1:1"}, Username: "u", Password: "p"},
			nil},
		"password over a socket": {etcd.Config{Endpoints: []string{"unix:///s"}, Username: "u", Password: "p"}, nil},
		"no password":            {etcd.Config{Endpoints: []string{"http://10.0.0.1:1"}}, nil},
		"file for everybody": {etcd.Config{Endpoints: []string{"https://10.0.0.1:1"}, Username: "u",
			PasswordFile: open}, []string{"every user of this host can read etcd password file " + open}},
		"file for root": {etcd.Config{Endpoints: []string{"https://10.0.0.1:1"}, Username: "u",
			PasswordFile: secret}, nil},
		"certificate near its end": {etcd.Config{Endpoints: []string{"https://10.0.0.1:1"}, CertFile: p.client.cert,
			KeyFile: p.client.key}, []string{
			"etcd client certificate " + p.client.cert + " expires on "}},
	} {
		got := c.config.Warnings(time.Now())
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s: %q lacks %q", name, got[i], c.want[i])
			}
		}
	}
}
