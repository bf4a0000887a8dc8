package kubernetes

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	asJSON       = "application/json"
	asProtobuf   = "application/vnd.kubernetes.protobuf"
	asMergePatch = "application/merge-patch+json"
)

// client sends requests to the API and hands on what it answers as bytes.
type client struct{ rest *rest.RESTClient }

func newClient(config *rest.Config) (*client, error) {
	h, err := HTTPClient(config)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme() // only to read what the API says of errors
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &metav1.Status{})
	c := rest.CopyConfig(config)
	c.GroupVersion = &v1
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.WarningHandler = rest.NoWarnings{}
	r, err := rest.RESTClientForConfigAndClient(c, h)
	if err != nil {
		return nil, err
	}
	return &client{rest: r}, nil
}

// request is one to the API.
type request struct {
	verb, path, accept string
	query              url.Values
	body               []byte
	bodyType           string
	// once is for requests that are not repeated here when the server says to come again later.
	once bool
}

func (c *client) prepare(q request) *rest.Request {
	r := c.rest.Verb(q.verb).AbsPath(q.path).SetHeader("Accept", q.accept)
	for name, values := range q.query {
		for _, v := range values {
			r.Param(name, v)
		}
	}
	if q.body != nil {
		r.SetHeader("Content-Type", q.bodyType).Body(q.body)
	}
	if q.once {
		r.MaxRetries(0)
	}
	return r
}

func (c *client) do(ctx context.Context, q request) ([]byte, error) {
	result := c.prepare(q).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// stream opens what is read bit by bit.
func (c *client) stream(ctx context.Context, q request) (io.ReadCloser, error) {
	q.once = true
	return c.prepare(q).Stream(ctx)
}

// noResource reports whether the API does not know the kind of what was asked for: a plain page of the server, rather
// than a status, says that nothing is there.
func noResource(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	if details == nil {
		return true
	}
	for _, cause := range details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}

// groups lists the API groups that the server has.
func (c *client) groups(ctx context.Context) (map[string]bool, error) {
	raw, err := c.do(ctx, request{verb: http.MethodGet, path: "/apis", accept: asJSON})
	if err != nil {
		return nil, err
	}
	var list metav1.APIGroupList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("list of API groups: %w", err)
	}
	groups := map[string]bool{}
	for _, g := range list.Groups {
		groups[g.Name] = true
	}
	return groups, nil
}

// HTTPClient is client-go's, and beyond that reads the file of the certificate authority again when the server shows a
// certificate of another one: authorities are rotated while programs run.
func HTTPClient(config *rest.Config) (*http.Client, error) {
	if config.CAFile == "" || config.Insecure || config.Transport != nil {
		return rest.HTTPClientFor(config)
	}
	t := &rotating{config: rest.CopyConfig(config)}
	t.config.CAData = nil
	if err := t.load(); err != nil {
		return nil, err
	}
	return &http.Client{Transport: t, Timeout: config.Timeout}, nil
}

// rotating is a way to a server whose authority may change.
type rotating struct {
	config *rest.Config

	mu      sync.Mutex
	ca      []byte
	current http.RoundTripper
}

// load makes the way anew if the authority's file says something else than before.
func (t *rotating) load() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ca, err := os.ReadFile(t.config.CAFile)
	if err != nil || t.current != nil && bytes.Equal(ca, t.ca) {
		return err
	}
	c := rest.CopyConfig(t.config)
	c.CAFile, c.CAData = "", ca
	next, err := rest.TransportFor(c)
	if err != nil {
		return err
	}
	t.ca, t.current = ca, next
	return nil
}

func (t *rotating) now() http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current
}

// RoundTrip implements http.RoundTripper.
func (t *rotating) RoundTrip(req *http.Request) (*http.Response, error) {
	was := t.now()
	resp, err := was.RoundTrip(req)
	var unknown x509.UnknownAuthorityError
	if err == nil || !errors.As(err, &unknown) || t.load() != nil || t.now() == was {
		return resp, err
	}
	again := req.Clone(req.Context()) // nothing was sent: the handshake failed
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return nil, err
		}
		body, bodyErr := req.GetBody()
		if bodyErr != nil {
			return nil, err
		}
		again.Body = body
	}
	return t.now().RoundTrip(again)
}
