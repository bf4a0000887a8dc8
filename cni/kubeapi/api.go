// Package kubeapi reads single objects from the Kubernetes API for CNI, and requests the tokens of the CNI plugin.
package kubeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// requestTimeout bounds one request.
const requestTimeout = 10 * time.Second

// longestAnswer bounds the size of a response that is read, in bytes. Kubernetes' objects are smaller.
const longestAnswer = 4 << 20

// API is a client of the Kubernetes API. It is safe for concurrent use.
type API struct {
	client *http.Client
	server *url.URL
}

// New returns an API with client-go's settings.
func New(config *rest.Config) (*API, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerURL(config.Host, "", corev1.SchemeGroupVersion, true)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", config.Host, err)
	}
	return &API{client: client, server: server}, nil
}

// Pod reads a pod. The error Is datastore.ErrNotFound if there is none.
func (a *API) Pod(ctx context.Context, namespace, name string) (*model.Pod, error) {
	p := &model.Pod{}
	return p, a.do(ctx, http.MethodGet, []string{"namespaces", namespace, "pods", name}, nil, p)
}

// Namespace reads a namespace. The error Is datastore.ErrNotFound if there is none.
func (a *API) Namespace(ctx context.Context, name string) (*model.Namespace, error) {
	n := &model.Namespace{}
	return n, a.do(ctx, http.MethodGet, []string{"namespaces", name}, nil, n)
}

// KubeVirt reads the metadata of an object of KubeVirt, nil if there is none. served is false if the API has no such
// resource.
func (a *API) KubeVirt(ctx context.Context, resource, namespace, name string,
) (o *metav1.PartialObjectMetadata, served bool, err error) {
	o = &metav1.PartialObjectMetadata{}
	q := request{path: []string{"apis", "kubevirt.io", "v1", "namespaces", namespace, resource, name},
		accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"}
	var refused *statusError
	switch err = a.send(ctx, http.MethodGet, q, o); {
	case err == nil:
		return o, true, nil
	case errors.Is(err, datastore.ErrNotFound) && errors.As(err, &refused):
		d := refused.status.Details // only an answer about a served resource names the object
		return nil, d != nil && d.Name == name, nil
	}
	return nil, true, fmt.Errorf("%s %s/%s of KubeVirt: %w", resource, namespace, name, err)
}

// Token is a bearer token and its expiry.
type Token struct {
	Token   string
	Expires time.Time
}

// ErrNotBound is the error of a server that binds no token to a Node: Kubernetes before 1.31, by default.
var ErrNotBound = errors.New("the Kubernetes API binds no token to a Node")

// RequestToken requests a token for a service account (TokenRequest). The server may choose another lifetime. The token
// is bound to the Node of that name, unless node is empty: it ends with the Node, and each request made with it shows
// the node to the server. The error Is ErrNotBound if the server cannot do that.
func (a *API) RequestToken(ctx context.Context, namespace, account, node string, lifetime time.Duration,
) (Token, error) {
	spec := map[string]any{"expirationSeconds": int64(lifetime / time.Second)}
	if node != "" {
		spec["boundObjectRef"] = map[string]string{"kind": "Node", "apiVersion": "v1", "name": node}
	}
	request := map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
	var answer struct {
		Status struct {
			Token               string      `json:"token"`
			ExpirationTimestamp metav1.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	err := a.do(ctx, http.MethodPost, []string{"namespaces", namespace, "serviceaccounts", account, "token"}, request,
		&answer)
	if err != nil && node != "" && strings.Contains(err.Error(), "cannot bind token") {
		err = fmt.Errorf("%w: %w", ErrNotBound, err)
	}
	if err == nil && answer.Status.Token == "" {
		err = fmt.Errorf("the Kubernetes API gave no token for service account %s/%s", namespace, account)
	}
	return Token{Token: answer.Status.Token, Expires: answer.Status.ExpirationTimestamp.Time}, err
}

// Refused reports whether the API that config names refuses a token because it has expired or was revoked. It returns
// false if that is unknown, for instance after a timeout. The request, GET /version, needs no rights.
func Refused(ctx context.Context, config *rest.Config, token string) bool {
	config = rest.AnonymousClientConfig(config)
	config.BearerToken, config.Timeout = token, requestTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return false
	}
	defer client.CloseIdleConnections()
	server, _, err := rest.DefaultServerURL(config.Host, "", corev1.SchemeGroupVersion, true)
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.JoinPath("version").String(), nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close() //nolint:errcheck // its status is enough
	return resp.StatusCode == http.StatusUnauthorized
}

// request is one request.
type request struct {
	path   []string
	accept string
	body   any
}

// do makes a request about an object of Kubernetes itself.
func (a *API) do(ctx context.Context, method string, path []string, body, into any) error {
	return a.send(ctx, method, request{append([]string{"api", "v1"}, path...), "application/json", body}, into)
}

// send makes a request. An error of the server keeps its text.
func (a *API) send(ctx context.Context, method string, q request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for i := range q.path {
		q.path[i] = url.PathEscape(q.path[i])
	}
	at := a.server.JoinPath(q.path...).String()
	var content io.Reader
	if q.body != nil {
		text, err := json.Marshal(q.body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, at, content)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", q.accept)
	resp, err := a.client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: the Kubernetes API: %w", datastore.ErrUnavailable, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(io.LimitReader(resp.Body, longestAnswer))
	if err != nil {
		return fmt.Errorf("%w: the Kubernetes API: %w", datastore.ErrUnavailable, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return json.Unmarshal(text, into)
	}
	return refusal(at, resp, text)
}

// statusError is an error of the server.
type statusError struct {
	status metav1.Status
	text   string
}

func (e *statusError) Error() string { return e.text }

// refusal returns the server's error, mapped to a datastore error if one matches.
func refusal(at string, resp *http.Response, text []byte) error {
	var status metav1.Status
	_ = json.Unmarshal(text, &status)
	var err error = &statusError{status, fmt.Sprintf("%s answers %s: %s", at, resp.Status,
		cmp.Or(status.Message, "no reason given"))}
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: %w", datastore.ErrNotFound, err)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("%w: %w", datastore.ErrUnauthorized, err)
	case code == http.StatusTooManyRequests, code >= 500:
		return fmt.Errorf("%w: %w", datastore.ErrUnavailable, err)
	}
	return err
}
