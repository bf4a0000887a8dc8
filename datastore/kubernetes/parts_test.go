package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// podServer is an API server of pods without streaming lists. Its parts are "own", the pods of node-1, and
// "others".
type podServer struct {
	mu      sync.Mutex
	queries []string                  // about pods
	watches map[string]*io.PipeWriter // by part
	pods    map[string][]corev1.Pod   // by part, as lists have them
	hold    map[string]chan struct{}  // by part: its lists wait for it
}

// partOfQuery returns the part that a request selects.
func partOfQuery(selector string) string {
	switch {
	case strings.HasPrefix(selector, "spec.nodeName=node-1,"):
		return "own"
	case strings.HasPrefix(selector, "spec.nodeName!=node-1,"):
		return "others"
	}
	return "all"
}

func podAt(node, name string, revision int) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: fmt.Sprint(revision)},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{PodIP: "10.0.0.1"}}
}

func (s *podServer) RoundTrip(req *http.Request) (*http.Response, error) {
	answer := func(typ string, body io.ReadCloser) *http.Response {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {typ}}, Request: req,
			Body: body}
	}
	query := req.URL.Query()
	switch {
	case req.URL.Path == "/apis":
		return answer(asJSON, io.NopCloser(strings.NewReader(`{"kind":"APIGroupList","groups":[]}`))), nil
	case req.URL.Path == "/version":
		return answer(asJSON, io.NopCloser(strings.NewReader(`{}`))), nil
	case query.Has("sendInitialEvents"):
		resp := answer(asJSON, io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure",`+
			`"code":422,"reason":"Invalid","message":"sendInitialEvents is forbidden for watch"}`)))
		resp.StatusCode = http.StatusUnprocessableEntity
		return resp, nil
	}
	part := partOfQuery(query.Get("fieldSelector"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if query.Has("watch") {
		stream, from := io.Pipe()
		s.watches[part] = from
		context.AfterFunc(req.Context(), func() { from.CloseWithError(io.ErrUnexpectedEOF) })
		s.queries = append(s.queries, part+" watch "+query.Get("resourceVersion"))
		return answer(asProtobuf, stream), nil
	}
	s.queries = append(s.queries, part+" list")
	if hold := s.hold[part]; hold != nil {
		s.mu.Unlock()
		<-hold
		s.mu.Lock()
	}
	list := &corev1.PodList{Items: s.pods[part]}
	list.ResourceVersion = "100"
	inner, err := list.Marshal()
	if err != nil {
		return nil, err
	}
	outer := &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Raw: inner}
	text, err := outer.Marshal()
	return answer(asProtobuf, io.NopCloser(bytes.NewReader(append(slices.Clone(magic), text...)))), err
}

// send sends an event on the watch of a part.
func (s *podServer) send(t *testing.T, part string, event []byte) {
	t.Helper()
	s.mu.Lock()
	w := s.watches[part]
	s.mu.Unlock()
	if _, err := w.Write(event); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// TestHistoryOfOnePartIsForgotten: that the watch of one part must be read again does not concern the other one, whose
// changes reach the readers meanwhile.
func TestHistoryOfOnePartIsForgotten(t *testing.T) {
	for _, c := range [][4]string{{"others", "node-2", "own", "node-1"}, {"own", "node-1", "others", "node-2"}} {
		t.Run(c[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { forgets(t, c[0], c[1], c[2], c[3]) })
		})
	}
}

// forgets lets the history of one part, with the pods of a node, be forgotten, while the other part continues.
func forgets(t *testing.T, part, node, other, otherNode string) {
	server := &podServer{watches: map[string]*io.PipeWriter{}, hold: map[string]chan struct{}{},
		pods: map[string][]corev1.Pod{part: {podAt(node, "kept", 10), podAt(node, "gone", 11)},
			other: {podAt(otherNode, "old", 12)}}}
	s, err := OpenREST(t.Context(), Config{Node: "node-1"}, &rest.Config{Host: "http://api", QPS: -1,
		Transport: server}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it has no connection
	tables := datastore.NewTables(zap.NewNop(), "node-1")
	go func() { _ = tables.Run(t.Context(), s, model.KindWorkloadEndpoint) }()
	synctest.Wait()
	check := func(inSync bool, want ...string) {
		t.Helper()
		var have []string
		for o := range tables.Snapshot().All(model.KindWorkloadEndpoint) {
			have = append(have, fmt.Sprintf("%s=%d", o.Workload().Pod, o.Revision))
		}
		slices.Sort(have)
		if now := tables.Snapshot().InSync(); now != inSync || !slices.Equal(have, want) {
			t.Errorf("in sync %t: %q, want %t: %q", now, have, inSync, want)
		}
	}
	check(true, "gone=11", "kept=10", "old=12")

	held := make(chan struct{})
	server.mu.Lock()
	server.hold[part], server.queries = held, nil
	server.pods[part] = []corev1.Pod{podAt(node, "kept", 10), podAt(node, "new", 90)}
	server.mu.Unlock()
	server.send(t, part, eventOf(t, "ERROR", &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}))
	time.Sleep(10 * time.Second) // the list is requested meanwhile
	changed, added := podAt(otherNode, "old", 130), podAt(otherNode, "young", 131)
	changed.Labels = map[string]string{"a": "b"}
	server.send(t, other, eventOf(t, "MODIFIED", &changed))
	server.send(t, other, eventOf(t, "ADDED", &added))
	check(false, "gone=11", "kept=10", "old=130", "young=131")
	close(held)
	synctest.Wait()
	check(true, "kept=10", "new=90", "old=130", "young=131")
	server.mu.Lock()
	defer server.mu.Unlock()
	if want := []string{part + " list", part + " watch 100"}; !slices.Equal(server.queries, want) {
		t.Errorf("requested %q, want %q", server.queries, want)
	}
}
