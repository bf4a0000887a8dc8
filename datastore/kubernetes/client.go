package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	asJSON       = "application/json"
	asProtobuf   = "application/vnd.kubernetes.protobuf"
	asMergePatch = "application/merge-patch+json"
)

// client sends requests to the API and returns the bytes of the responses. Watches, but for that of own pods, have a
// separate connection, whose events are gathered, and each large list has one with HTTP/1.1.
type client struct{ rest, watches, lists *rest.RESTClient }

func newClient(config *rest.Config) (*client, error) {
	requests, err := newRESTClient(config)
	if err != nil {
		return nil, err
	}
	watches, err := newRESTClient(gathered(config))
	if err != nil {
		return nil, err
	}
	lists, err := newRESTClient(overHTTP1(config))
	if err != nil {
		return nil, err
	}
	return &client{requests, watches, lists}, nil
}

// overHTTP1 returns config for connections with HTTP/1.1. A server compresses a large response in pieces of a few
// kilobytes, and each piece is a frame of HTTP/2, which costs the server a quarter more processor time.
func overHTTP1(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	return config
}

// close closes the idle connections. http.Client.CloseIdleConnections does not reach them: client-go's wrappers of a
// transport have another method for that.
func (c *client) close() {
	for _, r := range []*rest.RESTClient{c.rest, c.watches, c.lists} {
		utilnet.CloseIdleConnectionsFor(r.Client.Transport)
	}
}

func newRESTClient(config *rest.Config) (*rest.RESTClient, error) {
	h, err := httpClient(config)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme() // only to parse the API's errors
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &metav1.Status{})
	c := rest.CopyConfig(config)
	c.GroupVersion = &v1
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.WarningHandler = rest.NoWarnings{}
	return rest.RESTClientForConfigAndClient(c, h)
}

// request is a request to the API.
type request struct {
	verb, path, accept string
	query              url.Values
	body               []byte
	bodyType           string
	// once disables the retry after a Retry-After response.
	once bool
}

func prepare(c *rest.RESTClient, q request) *rest.Request {
	r := c.Verb(q.verb).AbsPath(q.path).SetHeader("Accept", q.accept)
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
	result := prepare(c.rest, q).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// read opens a large list as a stream.
func (c *client) read(ctx context.Context, q request) (io.ReadCloser, error) {
	q.once = true
	// The next one may be needed in hours: neither side keeps the connection.
	return prepare(c.lists, q).SetHeader("Connection", "close").Stream(ctx)
}

// get opens a response as a stream.
func (c *client) get(ctx context.Context, q request) (io.ReadCloser, error) {
	q.once = true
	return prepare(c.rest, q).Stream(ctx)
}

// stream opens a watch.
func (c *client) stream(ctx context.Context, q request) (io.ReadCloser, error) {
	q.once = true
	return prepare(c.watches, q).Stream(ctx)
}

// noResource reports whether the API does not serve the requested kind: its 404 is a plain page of the server, rather
// than a status.
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
