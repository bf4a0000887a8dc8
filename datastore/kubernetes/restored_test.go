package kubernetes

import (
	"fmt"
	"io"
	"net/http"
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

// restoring is an API server of tiers, whose datastore is put back to an earlier state after 20 seconds. Like a real
// one it accepts a watch from a revision that it has not reached, and is silent.
type restoring struct {
	before, after int // its revisions

	mu       sync.Mutex
	restored bool
	lists    []string // requests without a watch
}

func tierAt(name string, revision int) string {
	return fmt.Sprintf(`{"kind":"Tier","apiVersion":"crd.projectcalico.org/v1","metadata":{"name":%q,"uid":%q,`+
		`"resourceVersion":"%d"},"spec":{"order":1}}`, name, name, revision)
}

// state returns the tiers, and the revision.
func (s *restoring) state() (tiers []string, revision int) {
	tiers = []string{tierAt("old", 3)}
	revision = s.before
	if s.restored {
		revision = s.after
	}
	if revision >= 8 {
		tiers = append(tiers, tierAt("young", 8))
	}
	return tiers, revision
}

func (s *restoring) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := func(body io.ReadCloser) *http.Response {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {asJSON}}, Body: body,
			Request: req}
	}
	tiers, revision := s.state()
	query := req.URL.Query()
	switch {
	case req.URL.Path == "/apis":
		return answer(io.NopCloser(strings.NewReader(`{"kind":"APIGroupList","groups":[]}`))), nil
	case req.URL.Path == "/version": // the watch is quiet
		return answer(io.NopCloser(strings.NewReader(`{}`))), nil
	case query.Get("watch") == "":
		s.lists = append(s.lists, req.URL.RawQuery)
		return answer(io.NopCloser(strings.NewReader(fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},"items":[%s]}`,
			revision, strings.Join(tiers, ","))))), nil
	}
	var text strings.Builder
	if query.Get("sendInitialEvents") == "true" {
		for _, tier := range tiers {
			fmt.Fprintf(&text, `{"type":"ADDED","object":%s}`+"\n", tier)
		}
		fmt.Fprintf(&text, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", revision)
	} else if _, err := strconv.Atoi(query.Get("resourceVersion")); err != nil {
		return nil, err
	}
	stream, from := io.Pipe()
	restored := s.restored
	go func() {
		_, _ = io.WriteString(from, text.String())
		end := 20 * time.Second
		if restored {
			end = time.Hour
		}
		select {
		case <-req.Context().Done():
		case <-time.After(end):
			s.mu.Lock()
			s.restored = true
			s.mu.Unlock()
		}
		from.CloseWithError(io.ErrUnexpectedEOF)
	}()
	return answer(stream), nil
}

// After a restore of the datastore to an earlier revision a feed delivers the deletion of the object that the earlier
// state does not have. After a loss without a restore one list of one object is all that it reads.
func TestDatastoreRestored(t *testing.T) {
	for _, x := range []struct {
		name  string
		after int
		want  string
	}{
		{"to an earlier revision", 5, "old"},
		{"not at all", 9, "old young"},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { followsRestore(t, x.after, x.want) })
		})
	}
}

func followsRestore(t *testing.T, after int, want string) {
	server := &restoring{before: 9, after: after}
	config := &rest.Config{Host: "http://api", QPS: -1, Transport: server}
	s, err := OpenREST(t.Context(), Config{}, config, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it has no connection
	has, synced, lost := map[string]bool{}, false, 0
	events := s.Watch(t.Context(), model.KindTier)
	end := time.After(10 * time.Minute)
	for done := false; !done; {
		select {
		case e := <-events:
			switch e.Type {
			case datastore.EventUpdate:
				has[e.Key.Name] = true
			case datastore.EventDelete:
				delete(has, e.Key.Name)
			case datastore.EventLost:
				synced, lost = false, lost+1
			case datastore.EventInSync:
				synced = true
			}
		case <-end:
			done = true
		}
	}
	var names []string
	for _, name := range []string{"old", "young"} {
		if has[name] {
			names = append(names, name)
		}
	}
	if got := strings.Join(names, " "); got != want || !synced || lost == 0 {
		t.Errorf("the feed has %q, in sync %t, after %d losses; want %q, in sync", got, synced, lost, want)
	}
	if len(server.lists) != 1 || server.lists[0] != "limit=1" {
		t.Errorf("lists: %q, want one of one object", server.lists)
	}
}
