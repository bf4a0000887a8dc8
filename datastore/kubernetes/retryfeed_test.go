package kubernetes

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// refusing is an API server that answers watches of one resource with 429 and all other watches with a stream.
type refusing struct {
	resource   string
	retryAfter string

	mu sync.Mutex
	at []time.Time // requests for the resource
}

func (s *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	answer := func(code int, header http.Header, body io.ReadCloser) *http.Response {
		return &http.Response{StatusCode: code, Header: header, Body: body, Request: req}
	}
	text := func(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
	asJSON := http.Header{"Content-Type": {asJSON}}
	switch path := req.URL.Path; {
	case path == "/apis":
		return answer(http.StatusOK, asJSON, text(`{"kind":"APIGroupList","groups":[]}`)), nil
	case strings.HasSuffix(path, "/"+s.resource):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.at = append(s.at, time.Now())
		return answer(http.StatusTooManyRequests, http.Header{"Retry-After": {s.retryAfter}}, text("later")), nil
	}
	stream, from := io.Pipe()
	go func() {
		_, _ = io.WriteString(from, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n")
		select {
		case <-req.Context().Done():
		case <-time.After(20 * time.Second): // a lost connection, after which the feed opens the watch again
		}
		from.CloseWithError(io.ErrUnexpectedEOF)
	}()
	return answer(http.StatusOK, asJSON, stream), nil
}

// The feed of a kind comes back five minutes after a 429 with a Retry-After of a day, and no sooner, although the
// server responds for another kind meanwhile. A shorter wait is followed to the second. The feed has its own bound
// where the transport has none.
func TestFeedsFollowRetryAfter(t *testing.T) {
	for _, x := range []struct {
		name       string
		retryAfter string
		wrap       transport.WrapperFunc
		wait       time.Duration
	}{
		{"a day", "86400", nil, maxRetryAfter},
		{"a day, through the transport of manxd", "86400", throttling(nil), maxRetryAfter},
		{"more than a Duration can hold", "9223372036854775807", throttling(nil), maxRetryAfter},
		{"a minute", "60", nil, time.Minute},
		{"a minute, through the transport of manxd", "60", throttling(nil), time.Minute},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { followsRetryAfter(t, x.retryAfter, x.wrap, x.wait) })
		})
	}
}

// followsRetryAfter runs in a bubble of testing/synctest, whose clock moves when all goroutines wait.
func followsRetryAfter(t *testing.T, retryAfter string, wrap transport.WrapperFunc, wait time.Duration) {
	server := &refusing{resource: "ippools", retryAfter: retryAfter}
	config := &rest.Config{Host: "http://api", QPS: -1, Transport: server, WrapTransport: wrap}
	s, err := OpenREST(t.Context(), Config{}, config, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it has no connection
	ctx, cancel := context.WithTimeout(t.Context(), 3*wait+wait/2)
	defer cancel()
	lost, synced := 0, false
	for e := range s.Watch(ctx, model.KindIPPool, model.KindTier) {
		switch {
		case e.Type == datastore.EventLost && slices.Equal(e.Kinds, []model.Kind{model.KindIPPool}):
			lost++
			if !errors.Is(e.Err, datastore.ErrUnavailable) {
				t.Errorf("the loss is explained with %v", e.Err)
			}
		case e.Type == datastore.EventInSync && slices.Equal(e.Kinds, []model.Kind{model.KindTier}):
			synced = true
		}
	}
	if !synced {
		t.Error("the kind that the server does not refuse is not in sync")
	}
	if len(server.at) != 4 || lost != len(server.at) {
		t.Fatalf("%d requests and %d losses, want 4: at once and after each of three waits", len(server.at), lost)
	}
	for i, at := range server.at[1:] {
		// A second of jitter: all nodes have the same Retry-After.
		if waited := at.Sub(server.at[i]); waited < wait || waited > wait+time.Second+time.Millisecond {
			t.Errorf("request %d comes after %v, want %v to a second more", i+2, waited, wait)
		}
	}
}
