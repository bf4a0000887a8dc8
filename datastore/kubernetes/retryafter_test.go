package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/datastore"
)

// fixedResponse is a server that returns the same response to every request, and counts the requests.
type fixedResponse struct {
	code       int
	retryAfter string
	requests   []string
}

func (a *fixedResponse) RoundTrip(req *http.Request) (*http.Response, error) {
	a.requests = append(a.requests, req.Header.Get("User-Agent")+" "+req.Method+" "+req.URL.RequestURI())
	h := http.Header{}
	if a.retryAfter != "" {
		h.Set("Retry-After", a.retryAfter)
	}
	return &http.Response{StatusCode: a.code, Header: h, Body: io.NopCloser(strings.NewReader("reason " +
		fmt.Sprint(len(a.requests)))), Request: req}, nil
}

// A request that the server has deferred does not reach it before that time, even if the caller has forgotten the
// response. All other requests reach it.
func TestRetryAfterHolds(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, x := range []struct {
		name       string
		code       int
		retryAfter string
		after      time.Duration // the second request
		requester  string
		method     string
		path       string
		reaches    bool
		wait       string // Retry-After of the answer
	}{
		{name: "at once", code: 429, retryAfter: "3", wait: "3"},
		{name: "after a part of the time", code: 429, retryAfter: "3", after: 1100 * time.Millisecond, wait: "2"},
		{name: "a moment before", code: 503, retryAfter: "3", after: 2999 * time.Millisecond, wait: "1"},
		{name: "when the time is over", code: 429, retryAfter: "3", after: 3 * time.Second, reaches: true, wait: "3"},
		{name: "the watch after the list", code: 429, retryAfter: "3",
			path: "/api/v1/pods?watch=true&resourceVersion=7&fieldSelector=x%3D1", wait: "3"},
		{name: "another selection", code: 429, retryAfter: "3", path: "/api/v1/pods?fieldSelector=x%3D2", reaches: true,
			wait: "3"},
		{name: "another path", code: 429, retryAfter: "3", path: "/api/v1/nodes", reaches: true, wait: "3"},
		{name: "another method", code: 429, retryAfter: "3", method: "POST", reaches: true, wait: "3"},
		{name: "another part of the program", code: 429, retryAfter: "3", requester: "controllers", reaches: true,
			wait: "3"},
		{name: "a day, before the longest wait is over", code: 429, retryAfter: "86400", after: 299 * time.Second,
			wait: "1"},
		{name: "a day, after the longest wait", code: 503, retryAfter: "86400", after: 5 * time.Minute, reaches: true,
			wait: "300"},
		{name: "more than a time can hold", code: 429, retryAfter: "9223372036854775807", wait: "300"},
		{name: "no time is said", code: 503, reaches: true},
		{name: "a date", code: 503, retryAfter: "Fri, 31 Dec 1999 23:59:59 GMT", reaches: true,
			wait: "Fri, 31 Dec 1999 23:59:59 GMT"},
		{name: "no time at all", code: 429, retryAfter: "0", reaches: true, wait: "0"},
		{name: "a negative time", code: 429, retryAfter: "-5", reaches: true, wait: "-5"},
		{name: "no refusal", code: 200, retryAfter: "3", reaches: true, wait: "3"},
		{name: "a refusal of another kind", code: 403, retryAfter: "3", reaches: true, wait: "3"},
	} {
		server := &fixedResponse{code: x.code, retryAfter: x.retryAfter}
		at := now
		refusals := newRefusals()
		refusals.now = func() time.Time { return at }
		transport := naming{throttled{server, zap.NewNop(), refusals}}
		send := func(requester, method, path string) (*http.Response, string) {
			t.Helper()
			ctx := context.Background()
			if requester != "" {
				ctx = datastore.WithRequester(ctx, requester)
			}
			req, err := http.NewRequestWithContext(ctx, method, "https://api"+path, strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("User-Agent", "manxd/1")
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != x.code {
				t.Errorf("%s: answer %d (%v)", x.name, resp.StatusCode, err)
			}
			return resp, string(body)
		}
		const first = "/api/v1/pods?limit=500&fieldSelector=x%3D1"
		if _, body := send("", "GET", first); body != "reason 1" {
			t.Errorf("%s: the first answer is %q", x.name, body)
		}
		at = at.Add(x.after)
		resp, body := send(x.requester, cmp.Or(x.method, "GET"), cmp.Or(x.path, first))
		if reached := len(server.requests) == 2; reached != x.reaches || reached != (body == "reason 2") {
			t.Errorf("%s: reaches the server: %v (%q), want %v", x.name, reached, body, x.reaches)
		}
		if got := resp.Header.Get("Retry-After"); got != x.wait {
			t.Errorf("%s: Retry-After is %q, want %q", x.name, got, x.wait)
		}
		if x.requester != "" && !strings.HasPrefix(server.requests[1], "manxd/1/"+x.requester+" ") {
			t.Errorf("%s: %q has another User-Agent", x.name, server.requests[1])
		}
	}
}

// Expired deferrals are removed. A response that is too long is passed on whole and not kept.
func TestRefusalsAreForgotten(t *testing.T) {
	now := time.Unix(1000, 0)
	refusals := newRefusals()
	refusals.now = func() time.Time { return now }
	transport := throttled{&fixedResponse{code: 429, retryAfter: "1"}, zap.NewNop(), refusals}
	for i := range 1000 {
		req, _ := http.NewRequest(http.MethodGet, fmt.Sprintf("https://api/x/%d", i), nil)
		if _, err := transport.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		now = now.Add(100 * time.Millisecond)
	}
	if n := len(refusals.last); n > 11 {
		t.Errorf("%d refusals are kept", n)
	}
	long := strings.Repeat("x", 3*longestRefusal)
	transport.next = roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"9"}},
			Body: io.NopCloser(strings.NewReader(long))}, nil
	})
	for range 2 {
		req, _ := http.NewRequest(http.MethodGet, "https://api/long", nil)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != long {
			t.Errorf("%d bytes came (%v), want %d", len(body), err, len(long))
		}
	}
	if refusals.last[requestKey{"", "GET", "/long", "", ""}] != nil {
		t.Error("a long answer is kept")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A wait above the bound is also shortened for a caller that waits itself. It is logged once for each response of the
// server.
func TestLongRetryAfterIsShortened(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	server := &fixedResponse{code: 429, retryAfter: "86400"}
	wrap := throttling(zap.New(core))
	for range 3 {
		req, err := http.NewRequest(http.MethodGet, "https://api/api/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := wrap(server).RoundTrip(req)
		if err != nil || resp.Header.Get("Retry-After") != "300" {
			t.Errorf("Retry-After is %q (%v)", resp.Header.Get("Retry-After"), err)
		}
	}
	if all := logs.All(); len(all) != 1 || all[0].ContextMap()["retryAfterSeconds"] != int64(86400) {
		t.Errorf("logged: %+v", all)
	}
}
