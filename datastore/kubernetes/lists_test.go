package kubernetes

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Large lists use connections with HTTP/1.1 that end with them, other requests use HTTP/2. The same holds after a
// rotation of the token.
func TestLargeListsUseHTTP1(t *testing.T) {
	const accepted = "second"
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+accepted {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, r.Proto+strings.Repeat(", closed", len(r.Header["Connection"])))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := file("ca", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	kubeconfig := func(token string) string {
		return file("kubeconfig", fmt.Appendf(nil, "{current-context: c, contexts: [{name: c, context: {cluster: c, "+
			"user: u}}], clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}], "+
			"users: [{name: u, user: {token: %s}}]}", server.URL, ca, token))
	}
	for _, x := range []struct{ name, token string }{{"the first token", accepted}, {"a rotated token", "first"}} {
		settings := Config{Kubeconfig: kubeconfig(x.token)}
		config, err := settings.REST()
		if err != nil {
			t.Fatal(err)
		}
		c, err := newClient(config)
		if err != nil {
			t.Fatal(err)
		}
		kubeconfig(accepted)
		q := request{verb: http.MethodGet, path: "/x", accept: asJSON}
		for _, y := range []struct {
			name, want string
			send       func() ([]byte, error)
		}{
			{"a request", "HTTP/2.0", func() ([]byte, error) { return c.do(t.Context(), q) }},
			{"a watch", "HTTP/2.0", func() ([]byte, error) { return all(c.stream(t.Context(), q)) }},
			{"a large list", "HTTP/1.1, closed", func() ([]byte, error) { return all(c.read(t.Context(), q)) }},
		} {
			if got, err := y.send(); err != nil || string(got) != y.want {
				t.Errorf("%s, %s: %q, %v; want %s", x.name, y.name, got, err, y.want)
			}
		}
		c.close()
	}
}

func all(in io.ReadCloser, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // it is read
	return io.ReadAll(in)
}

// closing is a body that reports its end.
type closing struct {
	io.Reader
	closed chan struct{}
}

func (c closing) Close() error { close(c.closed); return nil }

// A response that is read ahead has the same bytes and the same error. It is closed with its reader, also before its
// end.
func TestReadAhead(t *testing.T) {
	content, lost := bytes.Repeat([]byte("0123456789"), aheadBy/3), errors.New("lost")
	for _, x := range []struct {
		name string
		body io.Reader
		want error
	}{
		{"a whole response", bytes.NewReader(content), nil},
		{"one that comes byte by byte", iotest.OneByteReader(bytes.NewReader(content)), nil},
		{"one that is cut", io.MultiReader(bytes.NewReader(content), iotest.ErrReader(lost)), lost},
	} {
		body := closing{x.body, make(chan struct{})}
		in, end := readAhead(body)
		got, err := io.ReadAll(in)
		if !errors.Is(err, x.want) || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes, error %v; want %d, %v", x.name, len(got), err, len(content), x.want)
		}
		end()
		<-body.closed
	}
	body := closing{bytes.NewReader(content), make(chan struct{})}
	_, end := readAhead(body)
	end()
	<-body.closed
}

// streaming is an API server that supports initial events, and whose kinds have no objects.
type streaming struct {
	mu       sync.Mutex
	requests []string // the paths, with the verb and with the field selector
}

func (s *streaming) count(request string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r == request {
			n++
		}
	}
	return n
}

func (s *streaming) RoundTrip(req *http.Request) (*http.Response, error) {
	q, verb := req.URL.Query(), "list"
	if q.Has("watch") {
		verb = "watch"
	}
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(verb+" "+req.URL.Path+" "+q.Get("fieldSelector")))
	s.mu.Unlock()
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {asProtobuf}}, Request: req}
	switch {
	case req.URL.Path == "/apis":
		resp.Header.Set("Content-Type", asJSON)
		resp.Body = io.NopCloser(strings.NewReader(`{"kind":"APIGroupList","groups":[]}`))
	case verb == "watch":
		time.Sleep(time.Second) // of the test's clock: other requests come meanwhile
		stream, from := io.Pipe()
		go func() {
			_, _ = from.Write(endOfInitialEvents())
			<-req.Context().Done()
			from.CloseWithError(req.Context().Err())
		}()
		resp.Body = stream
	default:
		resp.Body = io.NopCloser(bytes.NewReader(inMessage(marshalled(&metav1.PartialObjectMetadataList{
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}}))))
	}
	return resp, nil
}

func marshalled(m interface{ Marshal() ([]byte, error) }) []byte {
	raw, err := m.Marshal()
	if err != nil {
		panic(err) // these messages never fail
	}
	return raw
}

func inMessage(raw []byte) []byte {
	return append(slices.Clone(magic), marshalled(&runtime.Unknown{Raw: raw})...)
}

// endOfInitialEvents is the bookmark behind the initial events of a watch.
func endOfInitialEvents() []byte {
	bookmark := marshalled(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7",
		Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	event := marshalled(&metav1.WatchEvent{Type: "BOOKMARK", Object: runtime.RawExtension{Raw: inMessage(bookmark)}})
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}

// All kinds that are read as lists share one test of the server. Open begins it if the program follows them.
func TestServerIsTestedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, follows := range []bool{false, true} {
			server := new(streaming)
			s, err := OpenREST(t.Context(), Config{Follows: follows},
				&rest.Config{Host: "http://api", QPS: -1, Transport: server}, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			const test = "watch /api/v1/namespaces metadata.name=default"
			synctest.Wait()
			if begun := server.count(test) == 1; begun != follows {
				t.Errorf("follows %v: the test has begun: %v", follows, begun)
			}
			ctx, cancel := context.WithCancel(t.Context())
			kinds := []model.Kind{model.KindNode, model.KindWorkloadEndpoint, model.KindNamespace,
				model.KindServiceAccount, model.KindService, model.KindEndpointSlice,
				model.KindKubernetesNetworkPolicy}
			events := s.Watch(ctx, kinds...)
			for range kinds {
				if e := <-events; e.Type != datastore.EventInSync {
					t.Errorf("%+v", e)
				}
			}
			synctest.Wait()
			if n := server.count(test); n != 1 {
				t.Errorf("follows %v: the server is tested %d times, want once", follows, n)
			}
			for _, path := range []string{"/api/v1/nodes", "/api/v1/pods " + running, "/api/v1/namespaces",
				"/api/v1/serviceaccounts", "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices",
				"/apis/networking.k8s.io/v1/networkpolicies"} {
				lists, watches := server.count("list "+path), server.count("watch "+path)
				if lists != 1 || watches != 1 {
					t.Errorf("%s: %d lists and %d watches, want one of each", path, lists, watches)
				}
			}
			cancel()
			s.Close() //nolint:errcheck // it has no connection
		}
	})
}
