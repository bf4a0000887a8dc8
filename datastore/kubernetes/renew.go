package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// dialer opens a connection. It is the type of rest.Config.Dial.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// httpClient returns client-go's client. It reads the file of the certificate authority again when the server shows a
// certificate of another one: authorities are rotated while programs run. With settings of Config.REST it reads all
// credentials again.
func httpClient(config *rest.Config) (*http.Client, error) {
	if config.WrapTransport == nil && config.Transport == nil {
		config = rest.CopyConfig(config)
		same := rest.CopyConfig(config)
		config.UserAgent = cmp.Or(config.UserAgent, UserAgent("", ""))
		config.WrapTransport = renewal(same, func() (*rest.Config, error) { return same, nil })
		config.Wrap(throttling(nil))
	}
	return rest.HTTPClientFor(config)
}

// renewal returns a transport wrapper that reads the credentials again, by read, when the server refuses the previous
// ones: tokens, certificates and authorities are rotated while a program runs, in files that a kubeconfig names and in
// the kubeconfig itself. The address of the server stays.
func renewal(config *rest.Config, read func() (*rest.Config, error)) transport.WrapperFunc {
	return func(base http.RoundTripper) http.RoundTripper {
		t := &renewing{read: read, base: base, way: base}
		t.content, _ = credentials(config) // unreadable credentials differ from readable ones
		if h, ok := base.(*http.Transport); ok {
			t.dial = h.DialContext
			if h.TLSClientConfig != nil {
				t.protocols = slices.Clone(h.TLSClientConfig.NextProtos)
			}
		}
		return t
	}
}

// renewing implements http.RoundTripper.
type renewing struct {
	read func() (*rest.Config, error)
	base http.RoundTripper // with the initial credentials, which its caller has already set on a request
	dial dialer            // base's dialer; nil if unknown
	// protocols are those that base negotiates: HTTP/2 or HTTP/1.1.
	protocols []string

	mu      sync.Mutex
	content [sha256.Size]byte // of the credentials in use
	way     http.RoundTripper
}

// credentials returns a hash of the credentials, including the content of their files.
func credentials(c *rest.Config) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, part := range []struct {
		file string
		data []byte
	}{
		{c.CAFile, c.CAData}, {c.CertFile, c.CertData}, {c.KeyFile, c.KeyData},
		{c.BearerTokenFile, []byte(c.BearerToken)}, {"", []byte(c.Username + "\x00" + c.Password)},
	} {
		if part.file != "" {
			if part.data, err = os.ReadFile(part.file); err != nil {
				return sum, err
			}
		}
		fmt.Fprintf(h, "%d\x00%s", len(part.data), part.data) //nolint:errcheck // a hash takes everything
	}
	h.Sum(sum[:0])
	return sum, nil
}

func (t *renewing) now() http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.way
}

// renew returns a transport with the current credentials, nil if they are the refused ones. Of concurrent refusals,
// only one reads the files.
func (t *renewing) renew(refused http.RoundTripper) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.way != refused {
		return t.way
	}
	config, err := t.read()
	if err != nil {
		return nil // half-written, perhaps; the refusal is reported
	}
	content, err := credentials(config)
	if err != nil || content == t.content {
		return nil
	}
	config = rest.CopyConfig(config)
	config.WrapTransport, config.Dial, config.NextProtos = nil, t.dial, t.protocols
	way, err := rest.TransportFor(config)
	if err != nil {
		return nil
	}
	t.content, t.way = content, way
	return way
}

// RoundTrip sends a request. If the server refuses it and there are new credentials, it sends it again with those: a
// refused request has had no effect.
func (t *renewing) RoundTrip(req *http.Request) (*http.Response, error) {
	way := t.now()
	resp, err := way.RoundTrip(t.signed(req, way))
	if !isRefusal(resp, err) {
		return resp, err
	}
	next := t.renew(way)
	if next == nil {
		return resp, err
	}
	again := t.signed(req.Clone(req.Context()), next)
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return resp, err
		}
		body, bodyErr := req.GetBody()
		if bodyErr != nil {
			return resp, err
		}
		again.Body = body
	}
	if resp != nil {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
		resp.Body.Close() //nolint:errcheck // nobody wants it
	}
	utilnet.CloseIdleConnectionsFor(way) // nothing uses the refused credentials again
	return next.RoundTrip(again)
}

// CloseIdleConnections closes the connections with the current credentials; RoundTrip has closed those with refused
// ones.
func (t *renewing) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.now()) }

// signed returns a request for a transport, which sets its own credentials unless it is the first.
func (t *renewing) signed(req *http.Request, way http.RoundTripper) *http.Request {
	if way == t.base || req.Header.Get("Authorization") == "" {
		return req
	}
	req = req.Clone(req.Context())
	req.Header.Del("Authorization")
	return req
}

// isRefusal reports whether client and server refuse each other: the server rejects the token or the client's
// certificate, or its own certificate is of another authority.
func isRefusal(resp *http.Response, err error) bool {
	var op *net.OpError
	return err == nil && resp.StatusCode == http.StatusUnauthorized ||
		errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, &op) && op.Op == "remote error" // a TLS alert
}
