package e2e

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
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
	"github.com/manxnet/manx/integration/kubernetes/pki"
)

// apiProxy is a proxy before the API with its own TLS certificate. It can disturb requests.
type apiProxy struct {
	URL string

	mu       sync.Mutex
	cert     tls.Certificate
	handler  func(w http.ResponseWriter, r *http.Request) bool
	requests []request
	server   *httptest.Server
}

// request is a logged request.
type request struct {
	at                   time.Time
	verb, path           string
	watch, local         bool // local: the proxy responded itself
	userAgent, selectors string
}

func newAuthority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	ca, err := pki.NewAuthority(name)
	must(t, err)
	return ca
}

// certificateOf makes the certificate of a server on loopback.
func certificateOf(t *testing.T, ca *pki.Authority) tls.Certificate {
	t.Helper()
	cert, key, err := ca.Server("front", []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	must(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	must(t, err)
	return pair
}

func newAPIProxy(t *testing.T, s *apiserver.Server, ca *pki.Authority) *apiProxy {
	t.Helper()
	f := &apiProxy{cert: certificateOf(t, ca)}
	config := s.Config("")
	config.BearerToken = ""
	transport, err := rest.TransportFor(config)
	must(t, err)
	target, err := url.Parse(s.URL)
	must(t, err)
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { // a cut stream is not printed
			if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // it is that very value
				panic(p)
			}
		}()
		q := r.URL.Query()
		logged := request{at: time.Now(), verb: r.Method, path: r.URL.Path, watch: q.Get("watch") == "true",
			userAgent: r.UserAgent(),
			selectors: q.Get("labelSelector") + " " + q.Get("fieldSelector")}
		f.mu.Lock()
		handler := f.handler
		f.mu.Unlock()
		logged.local = handler != nil && handler(w, r)
		f.mu.Lock()
		f.requests = append(f.requests, logged)
		f.mu.Unlock()
		if !logged.local {
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
	f.server.TLS.Certificates = nil // httptest's own, which it uses for clients without SNI
	f.URL = f.server.URL
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
	})
	return f
}

// intercept sets the handler that gets each request first and returns whether it has responded. It drops all
// connections, so that watches come again.
func (f *apiProxy) intercept(handler func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	f.handler, f.requests = handler, nil
	f.mu.Unlock()
	f.server.CloseClientConnections()
}

// clearLog drops the record of requests.
func (f *apiProxy) clearLog() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = nil
}

func (f *apiProxy) logged() []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]request(nil), f.requests...)
}

// setCertificate gives the proxy a new certificate.
func (f *apiProxy) setCertificate(c tls.Certificate) {
	f.mu.Lock()
	f.cert = c
	f.mu.Unlock()
	f.server.CloseClientConnections()
}

// writeStatus writes a response of the API with a status.
func writeStatus(w http.ResponseWriter, code int, reason, message string) bool {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure",
		"message": message, "reason": reason, "code": code})
	return true
}
