package kubernetes_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/datastore/kubernetes"
)

// pair is a certificate and its key.
type pair struct{ cert, key []byte }

func (p pair) load(t *testing.T) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// selfSigned returns a certificate that is its own authority.
func selfSigned(t *testing.T, name string) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})}
}

// authServer is a server that accepts one token and one name of a client certificate, and shows one certificate.
type authServer struct {
	*httptest.Server
	token, client    atomic.Value // of string
	cert             atomic.Pointer[tls.Certificate]
	received, posted atomic.Int64
}

func newAuthServer(t *testing.T, shows pair) *authServer {
	p := &authServer{}
	p.token.Store("")
	p.client.Store("")
	c := shows.load(t)
	p.cert.Store(&c)
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.received.Add(1)
		byToken := r.Header.Get("Authorization") == "Bearer "+p.token.Load().(string)
		byCert := len(r.TLS.PeerCertificates) > 0 &&
			r.TLS.PeerCertificates[0].Subject.CommonName == p.client.Load().(string)
		if !byToken && !byCert {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if body, _ := io.ReadAll(r.Body); r.Method == http.MethodPost && strings.Contains(string(body), "an event") {
			p.posted.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Event","apiVersion":"v1"}`) //nolint:errcheck // a test's answer
	}))
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.TLS = &tls.Config{ClientAuth: tls.RequestClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{ClientAuth: tls.RequestClientCert, Certificates: []tls.Certificate{*p.cert.Load()}}, nil
		}}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// A token, a client certificate and an authority are replaced in a kubeconfig, and in files that it names. Every
// existing client goes on, also with requests that have a body.
func TestRotatedCredentials(t *testing.T) {
	server, next := selfSigned(t, "server"), selfSigned(t, "next server")
	first, second := selfSigned(t, "first"), selfSigned(t, "second")
	p := newAuthServer(t, server)
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	write := func(name string, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b64 := base64.StdEncoding.EncodeToString
	config := func(ca pair, user string) {
		write("kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x,
  clusters: [{name: c, cluster: {server: "%s", certificate-authority-data: %s}}],
  users: [{name: u, user: {%s}}], contexts: [{name: x, context: {cluster: c, user: u}}]}`, p.URL, b64(ca.cert), user))
	}
	certificate := func(c pair) string {
		return fmt.Sprintf("client-certificate-data: %s, client-key-data: %s", b64(c.cert), b64(c.key))
	}
	p.token.Store("one")
	config(server, "token: one")
	r, err := kubernetes.Config{Kubeconfig: kubeconfig}.REST()
	if err != nil {
		t.Fatal(err)
	}
	events, err := typedcorev1.NewForConfig(r)
	if err != nil {
		t.Fatal(err)
	}
	post := func() error {
		before := p.posted.Load()
		_, err := events.Events("default").Create(t.Context(), &corev1.Event{Message: "an event"},
			metav1.CreateOptions{})
		if err == nil && p.posted.Load() != before+1 {
			err = fmt.Errorf("it came %d times", p.posted.Load()-before)
		}
		return err
	}
	for _, step := range []struct {
		name    string
		refuses func() // the first action of the server
		renew   func()
	}{
		{"the token", func() { p.token.Store("two") }, func() { config(server, "token: two") }},
		{"a certificate in place of the token", func() { p.token.Store("three"); p.client.Store("first") },
			func() { config(server, certificate(first)) }},
		{"the client's certificate", func() { p.client.Store("second") },
			func() { config(server, certificate(second)) }},
		{"the authority", func() { c := next.load(t); p.cert.Store(&c); p.CloseClientConnections() },
			func() { config(next, certificate(second)) }},
		{"a file with a token", func() { p.client.Store("nobody"); p.token.Store("four") },
			func() { write("token", "four"); config(next, "tokenFile: "+filepath.Join(dir, "token")) }},
		{"the token in that file", func() { p.token.Store("five") }, func() { write("token", "five") }},
	} {
		if err := post(); err != nil {
			t.Fatalf("%s, before: %v", step.name, err)
		}
		step.refuses()
		received := p.received.Load()
		if err := post(); err == nil {
			t.Errorf("%s is refused, and the request succeeds", step.name)
		}
		if n := p.received.Load() - received; n > 1 {
			t.Errorf("%s is refused: %d requests with the same credentials", step.name, n)
		}
		step.renew()
		if err := post(); err != nil {
			t.Errorf("%s was replaced: %v", step.name, err)
		}
	}
	// A kubeconfig that is half-written does no harm.
	write("kubeconfig", "{apiVersion: v1, kind: Con")
	p.token.Store("six")
	if err := post(); !apierrors.IsUnauthorized(err) {
		t.Errorf("with half a kubeconfig: %v", err)
	}
	config(next, "token: six")
	if err := post(); err != nil {
		t.Error(err)
	}
}
