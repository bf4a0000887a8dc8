package kubernetes

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// HTTPClient is client-go's, and beyond that reads the file of the certificate authority again when the server shows a
// certificate of another one: authorities are rotated while programs run. What comes from Config.REST reads all of its
// settings again.
func HTTPClient(config *rest.Config) (*http.Client, error) {
	if config.WrapTransport == nil && config.Transport == nil {
		config = rest.CopyConfig(config)
		same := rest.CopyConfig(config)
		config.UserAgent = cmp.Or(config.UserAgent, UserAgent("", ""))
		config.WrapTransport = renewal(same, func() (*rest.Config, error) { return same, nil })
		config.Wrap(throttling(nil))
	}
	return rest.HTTPClientFor(config)
}

// renewal makes ways to the server whose credentials are read again, by read, when the server refuses those of before:
// tokens, certificates and authorities are rotated below a running program, in files that a kubeconfig names and in the
// kubeconfig itself. The address of the server stays.
func renewal(config *rest.Config, read func() (*rest.Config, error)) transport.WrapperFunc {
	return func(base http.RoundTripper) http.RoundTripper {
		t := &renewing{read: read, base: base, way: base}
		t.content, _ = credentials(config) // what cannot be read differs from what can
		if h, ok := base.(*http.Transport); ok {
			t.dial = h.DialContext
		}
		return t
	}
}

// renewing implements http.RoundTripper.
type renewing struct {
	read func() (*rest.Config, error)
	base http.RoundTripper // with the credentials of the start, which its caller has put on a request already
	dial dialer            // how base makes connections; nil if nobody knows

	mu      sync.Mutex
	content [sha256.Size]byte // of the credentials in use
	way     http.RoundTripper
}

// credentials tells one state of the credentials from another, whether they are in files or not.
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

// renew returns the way with the credentials as they are now, nil if they are those that were refused. Of many that are
// refused at once, one reads.
func (t *renewing) renew(refused http.RoundTripper) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.way != refused {
		return t.way
	}
	config, err := t.read()
	if err != nil {
		return nil // half-written, say; the refusal is what counts
	}
	content, err := credentials(config)
	if err != nil || content == t.content {
		return nil
	}
	config = rest.CopyConfig(config)
	config.WrapTransport, config.Dial = nil, t.dial
	way, err := rest.TransportFor(config)
	if err != nil {
		return nil
	}
	t.content, t.way = content, way
	return way
}

// RoundTrip sends a request, again with new credentials if there are any and the server refused the ones before: then
// it has done nothing.
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
	return next.RoundTrip(again)
}

// signed returns a request for a way, which puts its own credentials on it unless it is the first.
func (t *renewing) signed(req *http.Request, way http.RoundTripper) *http.Request {
	if way == t.base || req.Header.Get("Authorization") == "" {
		return req
	}
	req = req.Clone(req.Context())
	req.Header.Del("Authorization")
	return req
}

// isRefusal reports whether client and server do not accept each other: the server does not know the token or the
// client's certificate, or its own certificate is of another authority.
func isRefusal(resp *http.Response, err error) bool {
	var op *net.OpError
	return err == nil && resp.StatusCode == http.StatusUnauthorized ||
		errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, &op) && op.Op == "remote error" // an alert of TLS
}
