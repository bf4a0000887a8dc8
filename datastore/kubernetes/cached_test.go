package kubernetes

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// pair are two API servers of one cluster behind one address, without streaming lists. They have tiers: "old" of
// revision 3 is deleted in revision 7, and "young" is of revision 8. The first server's cache knows all of it. Its
// watch ends after 20 seconds, and from then on the second server answers, which has no history.
type pair struct {
	behind int // the revision of the second server's cache

	mu      sync.Mutex
	second  bool
	queries []string // of lists
}

// tiersAt returns the tiers at a revision.
func tiersAt(revision int) []string {
	list := []string{}
	if revision < 7 {
		list = append(list, tierAt("old", 3))
	}
	if revision >= 8 {
		list = append(list, tierAt("young", 8))
	}
	return list
}

const pairNow = 9 // the revision of their etcd

func (p *pair) RoundTrip(req *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	query := req.URL.Query()
	answer := func(code int, text string) *http.Response {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {asJSON}}, Request: req,
			Body: io.NopCloser(strings.NewReader(text))}
	}
	status := func(code int, reason, message, details string) *http.Response {
		return answer(code, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,`+
			`"message":%q,"details":%s}`, code, reason, message, details))
	}
	at, _ := strconv.Atoi(query.Get("resourceVersion"))
	switch {
	case req.URL.Path == "/apis":
		return answer(http.StatusOK, `{"kind":"APIGroupList","groups":[]}`), nil
	case req.URL.Path == "/version": // the watch is quiet
		return answer(http.StatusOK, `{}`), nil
	case query.Has("sendInitialEvents"):
		return status(http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden for watch", "{}"), nil
	case query.Has("watch") && p.second && at < 8:
		return status(http.StatusGone, "Expired", "too old resource version", "{}"), nil
	case query.Has("watch"):
		return p.watch(req), nil
	}
	p.queries = append(p.queries, req.URL.RawQuery)
	cache, now := pairNow, pairNow
	if p.second {
		cache = p.behind
	}
	switch {
	case !query.Has("resourceVersion"):
	case at > cache:
		resp := status(http.StatusGatewayTimeout, "Timeout", "Too large resource version",
			`{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge"}]}`)
		resp.Header.Set("Retry-After", "1")
		return resp, nil
	default:
		now = cache
	}
	return answer(http.StatusOK, fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},"items":[%s]}`, now,
		strings.Join(tiersAt(now), ","))), nil
}

// watch is silent, and loses its history at its end.
func (p *pair) watch(req *http.Request) *http.Response {
	stream, from := io.Pipe()
	end := time.Hour
	if !p.second {
		end = 20 * time.Second
	}
	go func() {
		select {
		case <-req.Context().Done():
		case <-time.After(end):
			p.mu.Lock()
			p.second = true
			p.mu.Unlock()
			_, _ = io.WriteString(from, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410,`+
				`"reason":"Expired","message":"too old resource version"}}`+"\n")
		}
		from.CloseWithError(io.ErrUnexpectedEOF)
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {asJSON}}, Request: req,
		Body: stream}
}

// What was delivered is not taken back by the cache of another server, which is older. The first list follows a read of
// one object from etcd; a later one demands the newest delivered change; and if a cache does not have it, the list
// comes from etcd.
func TestOlderCache(t *testing.T) {
	for _, x := range []struct {
		name   string
		behind int
		want   []string
	}{
		{"of the same state", 8, []string{"limit=1", "limit=500&resourceVersion=0", "resourceVersion=8"}},
		{"before the newest object", 7, []string{"limit=1", "limit=500&resourceVersion=0", "resourceVersion=8",
			"limit=500"}},
		{"before the deletion of another one", 5, []string{"limit=1", "limit=500&resourceVersion=0",
			"resourceVersion=8", "limit=500"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &pair{behind: x.behind}
				s, err := OpenREST(t.Context(), Config{}, &rest.Config{Host: "http://api", QPS: -1, Transport: server},
					zap.NewNop())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close() //nolint:errcheck // it has no connection
				var got []string
				events := s.Watch(t.Context(), model.KindTier)
				for end := time.After(10 * time.Minute); end != nil; {
					select {
					case e := <-events:
						switch e.Type {
						case datastore.EventUpdate:
							got = append(got, e.Key.Name)
						case datastore.EventDelete:
							got = append(got, "not "+e.Key.Name)
						case datastore.EventInSync:
							got = append(got, fmt.Sprint("in sync at ", e.Revision))
						}
					case <-end:
						end = nil
					}
				}
				again := "in sync at 9"
				if len(x.want) == 3 {
					again = fmt.Sprint("in sync at ", x.behind)
				}
				if want := []string{"young", "in sync at 9", again}; !slices.Equal(got, want) {
					t.Errorf("events %q, want %q", got, want)
				}
				if !slices.Equal(server.queries, x.want) {
					t.Errorf("lists %q, want %q", server.queries, x.want)
				}
			})
		})
	}
}
