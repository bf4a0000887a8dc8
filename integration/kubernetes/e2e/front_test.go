package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// front stands before the API with TLS of its own and can do to requests what a bad day does.
type front struct {
	URL string

	mu       sync.Mutex
	cert     tls.Certificate
	answer   func(w http.ResponseWriter, r *http.Request) bool
	requests []request
	server   *httptest.Server
}

// request is one that came to a front.
type request struct {
	at             time.Time
	verb, path     string
	watch, local   bool // local: the front answered it
	who, selectors string
}

// authority signs certificates of fronts.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{cert, key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// server is a certificate of a server on loopback.
func (a *authority) server(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:   pkix.Name{CommonName: "front"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newFront(t *testing.T, s *apiserver.Server, ca *authority) *front {
	t.Helper()
	f := &front{cert: ca.server(t)}
	config := s.Config("")
	config.BearerToken = ""
	transport, err := rest.TransportFor(config)
	must(t, err)
	target, err := url.Parse(s.URL)
	must(t, err)
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { // a stream that was cut off is nothing to print
			if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // it is that very value
				panic(p)
			}
		}()
		q := r.URL.Query()
		seen := request{at: time.Now(), verb: r.Method, path: r.URL.Path, watch: q.Get("watch") == "true",
			who:       r.UserAgent(),
			selectors: q.Get("labelSelector") + " " + q.Get("fieldSelector")}
		f.mu.Lock()
		answer := f.answer
		f.mu.Unlock()
		seen.local = answer != nil && answer(w, r)
		f.mu.Lock()
		f.requests = append(f.requests, seen)
		f.mu.Unlock()
		if !seen.local {
			proxy.ServeHTTP(w, r)
		}
	}))
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.server.EnableHTTP2 = true
	f.server.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		c := f.cert
		return &c, nil
	}}
	f.server.StartTLS()
	f.server.TLS.Certificates = nil // httptest's own, which it would show to who names no host
	f.URL = f.server.URL
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
	})
	return f
}

// does has each request go through answer first, which returns whether it has answered; and drops all connections, so
// that watches come again.
func (f *front) does(answer func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	f.answer, f.requests = answer, nil
	f.mu.Unlock()
	f.server.CloseClientConnections()
}

// forget drops what was seen of requests.
func (f *front) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = nil
}

func (f *front) seen() []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]request(nil), f.requests...)
}

// shows gives the front a new certificate.
func (f *front) shows(c tls.Certificate) {
	f.mu.Lock()
	f.cert = c
	f.mu.Unlock()
	f.server.CloseClientConnections()
}

// says is an answer of the API with a status.
func says(w http.ResponseWriter, code int, reason, message string) bool {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure",
		"message": message, "reason": reason, "code": code})
	return true
}
