package kubernetes_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/storetest"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// apiProxy stands before an API server and handles requests for streams like another version of the server.
type apiProxy struct {
	*httptest.Server

	mu       sync.Mutex
	streams  func(w http.ResponseWriter, q url.Values) bool // changes the query, or returns that it has answered
	streamed int                                            // requests with sendInitialEvents
	listed   int                                            // requests for all peers in the server's cache
	plain    bool                                           // bookmarks do not name their kind
}

func newAPIProxy(t *testing.T, server *apiserver.Server) *apiProxy {
	t.Helper()
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(server.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	f := new(apiProxy)
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, ModifyResponse: f.strip}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !f.handle(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// strip removes annotations from bookmarks, if plain is set.
func (f *apiProxy) strip(r *http.Response) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.plain || !r.Request.URL.Query().Has("watch") {
		return nil
	}
	from := r.Body
	pipe, to := io.Pipe()
	r.Body = pipe
	go func() {
		defer from.Close() //nolint:errcheck // over
		lines := bufio.NewReader(from)
		for {
			line, err := lines.ReadString('\n')
			line = strings.Replace(line, `"k8s.io/initial-events-end":"true"`, `"x":"y"`, 1)
			if _, e := io.WriteString(to, line); e != nil || err != nil {
				to.CloseWithError(err)
				return
			}
		}
	}()
	return nil
}

// handle counts a request, and reports whether it was answered.
func (f *apiProxy) handle(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := r.URL.Query()
	if q.Has("resourceVersion") && !q.Has("watch") {
		f.listed++
	}
	if !q.Has("sendInitialEvents") {
		return false
	}
	f.streamed++
	if f.streams != nil && f.streams(w, q) {
		return true
	}
	r.URL.RawQuery = q.Encode()
	return false
}

func (f *apiProxy) setStreams(streams func(http.ResponseWriter, url.Values) bool, plain bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams, f.streamed, f.listed, f.plain = streams, 0, 0, plain
}

func (f *apiProxy) counts() (streamed, listed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.streamed, f.listed
}

// respondStatus returns a status of the API.
func respondStatus(code int, reason, message string) func(http.ResponseWriter, url.Values) bool {
	return func(w http.ResponseWriter, _ url.Values) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`,
			reason, code, message)
		return true
	}
}

// ignoreStreams has the server ignore sendInitialEvents; the watch begins at a revision, if there is one.
func ignoreStreams(at int64) func(http.ResponseWriter, url.Values) bool {
	return func(_ http.ResponseWriter, q url.Values) bool {
		q.Del("sendInitialEvents")
		q.Del("resourceVersionMatch")
		if at > 0 {
			q.Set("resourceVersion", fmt.Sprint(at))
		}
		return false
	}
}

// A server that refuses sendInitialEvents, or ignores it, is read by lists from its cache, until the line to it breaks.
func TestServersWithoutStreams(t *testing.T) {
	t.Parallel()
	server := apiserver.StartOn(t, etcdtest.Start(t).Endpoint)
	f, want, last := threePeers(t, server)
	for i, x := range []struct {
		name    string
		streams func(http.ResponseWriter, url.Values) bool
		plain   bool
	}{
		{"ignored, the watch begins now", ignoreStreams(last), false},
		{"ignored, as bookmarks show", nil, true},
		{"the value alone is ignored", func(_ http.ResponseWriter, q url.Values) bool {
			q.Del("sendInitialEvents") // the server's message: resourceVersionMatch is forbidden for watch
			return false
		}, false},
		{"invalid", respondStatus(422, "Invalid",
			`ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: `+
				`sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled`), false},
		{"a bad request", respondStatus(400, "BadRequest", "sendInitialEvents is forbidden for watch"), false},
		{"forbidden", respondStatus(403, "Forbidden", "sendInitialEvents is forbidden for watch"), false},
	} {
		t.Run(x.name, func(t *testing.T) {
			f.setStreams(x.streams, x.plain)
			s := openAt(t, server, f.URL, kubernetes.Config{})
			m := f.listedWatch(t, s, want)
			again := storetest.Watch(t, s, model.KindBGPPeer)
			again.UntilInSync()
			if streamed, listed := f.counts(); streamed != 1 || listed != 2 {
				t.Errorf("the next watch: %d streams, %d lists", streamed, listed)
			}
			// After a list the reader is in sync, but the watch may not have begun. A later change shows that it has.
			o, err := s.Get(t.Context(), model.ResourceKey(model.KindBGPPeer, "p0"))
			if err != nil {
				t.Fatal(err)
			}
			want[o.Key] = storetest.Change(t, s, o, fmt.Sprint("10.0.1.", i)).Revision
			m.UntilState(want)
			again.UntilState(want)
			f.setStreams(nil, false)
			f.CloseClientConnections()
			m.UntilInSync()
			third := storetest.Watch(t, s, model.KindBGPPeer)
			third.UntilInSync()
			third.UntilState(want)
			if streamed, listed := f.counts(); streamed != 1 || listed != 0 {
				t.Errorf("after a reconnect: %d streams, %d lists", streamed, listed)
			}
		})
	}
}

// threePeers stores three peers and returns a proxy to their datastore.
func threePeers(t *testing.T, server *apiserver.Server) (f *apiProxy, want map[model.Key]int64, last int64) {
	t.Helper()
	server.InstallCRDs(t, form.V1)
	direct := openAt(t, server, server.URL, kubernetes.Config{})
	want = map[model.Key]int64{}
	for i := range 3 {
		o := storetest.Create(t, direct, peer(fmt.Sprint("p", i), "10.0.0.1"))
		want[o.Key], last = o.Revision, o.Revision
	}
	return newAPIProxy(t, server), want, last
}

// listedWatch is a watch that tries a stream and then reads a list; its reader gets no EventLost.
func (f *apiProxy) listedWatch(t *testing.T, s *kubernetes.Store, want map[model.Key]int64) *storetest.Mirror {
	t.Helper()
	m := storetest.Watch(t, s, model.KindBGPPeer)
	m.UntilInSync()
	m.UntilState(want)
	if streamed, listed := f.counts(); streamed != 1 || listed != 1 || m.Lost > 0 {
		t.Errorf("%d streams, %d lists; the reader lost %d times", streamed, listed, m.Lost)
	}
	return m
}

// Without the feature and without validation of the parameter, as before Kubernetes 1.19, the watch begins with the
// existing objects, and nothing marks their end. Objects that were deleted meanwhile are removed.
func TestServerBeforeStreams(t *testing.T) {
	t.Parallel() // it waits for most of its time
	server := apiserver.StartOn(t, etcdtest.Start(t).Endpoint, "--feature-gates=WatchList=false")
	f, want, _ := threePeers(t, server)
	f.setStreams(ignoreStreams(0), false)
	s := openAt(t, server, f.URL, kubernetes.Config{})
	gone := model.ResourceKey(model.KindBGPPeer, "p1")
	m := storetest.Watch(t, s, model.KindBGPPeer)
	m.UntilState(want)
	if m.InSync > 0 {
		t.Error("in sync although nothing marks the end of the objects")
	}
	if _, err := s.Delete(t.Context(), gone, 0); err != nil {
		t.Fatal(err)
	}
	delete(want, gone)
	m.UntilInSync()
	m.UntilState(want)
	if streamed, listed := f.counts(); streamed != 1 || listed != 1 {
		t.Errorf("%d streams, %d lists", streamed, listed)
	}
}

// An error of another cause does not switch to plain lists.
func TestErrorsOfStreamsPass(t *testing.T) {
	t.Parallel()
	server := apiserver.StartOn(t, etcdtest.Start(t).Endpoint)
	server.InstallCRDs(t, form.V1)
	f := newAPIProxy(t, server)
	o := storetest.Create(t, openAt(t, server, server.URL, kubernetes.Config{}), peer("a", "10.0.0.1"))
	for _, x := range []struct {
		code            int
		reason, message string
	}{
		{500, "InternalError", "Internal error occurred: etcdserver: leader changed"},
		{500, "", "etcdserver: request timed out"},
		{503, "ServiceUnavailable", "apiserver is shutting down"},
		{400, "BadRequest", "the request is too old"},
	} {
		t.Run(x.message, func(t *testing.T) {
			failing := respondStatus(x.code, x.reason, x.message)
			left := 2
			f.setStreams(func(w http.ResponseWriter, q url.Values) bool {
				left--
				return left >= 0 && failing(w, q)
			}, false)
			m := storetest.Watch(t, openAt(t, server, f.URL, kubernetes.Config{}), model.KindBGPPeer)
			m.UntilInSync()
			m.UntilState(map[model.Key]int64{o.Key: o.Revision})
			if streamed, listed := f.counts(); streamed != 3 || listed != 0 || m.Lost != 2 ||
				!strings.Contains(m.Seen[0].Err.Error(), x.message) {
				t.Errorf("%d streams, %d lists; seen %+v", streamed, listed, m.Seen)
			}
		})
	}
}

// If the connection breaks among the initial events, the watch does not go on from the last received change.
func TestStreamCutAmongInitialEvents(t *testing.T) {
	t.Parallel()
	server := apiserver.StartOn(t, etcdtest.Start(t).Endpoint)
	server.InstallCRDs(t, form.V1)
	f := newAPIProxy(t, server)
	direct := openAt(t, server, server.URL, kubernetes.Config{})
	a, b := storetest.Create(t, direct, peer("a", "10.0.0.1")), storetest.Create(t, direct, peer("b", "10.0.0.1"))
	b = storetest.Change(t, direct, b, "10.0.0.2")
	raw := server.Request(t, http.MethodGet, peers+"/b", nil)
	left := 1
	f.setStreams(func(w http.ResponseWriter, _ url.Values) bool {
		if left--; left < 0 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", raw)
		return true
	}, false)
	m := storetest.Watch(t, openAt(t, server, f.URL, kubernetes.Config{}), model.KindBGPPeer)
	m.UntilInSync()
	if m.State[a.Key] != a.Revision || m.State[b.Key] != b.Revision {
		t.Errorf("in sync with %v, want a and b", m.State)
	}
}
