package kubernetes

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/transport"
)

const (
	// longestRefusal bounds the size of the remembered responses, in bytes.
	longestRefusal = 64 << 10
	// maxRetryAfter bounds the server's Retry-After: a wrong number must not keep a part of the program from the server
	// for days.
	maxRetryAfter = 5 * time.Minute
)

// throttled implements http.RoundTripper. After a Retry-After response (429, or 5xx, with Retry-After in seconds: RFC
// 9110, 10.2.3), it answers the same request with that response until the time is over, without a request to the
// server. Callers wait themselves, but the successor of a caller whose context ended during the wait does not know of
// it.
//
// A longer wait than maxRetryAfter is shortened, for callers, too.
type throttled struct {
	next http.RoundTripper
	log  *zap.Logger
	*refusals
}

// throttling returns a wrapper for transports that add the part of the program to the User-Agent, and follow
// Retry-After. log may be nil.
func throttling(log *zap.Logger) transport.WrapperFunc {
	if log == nil {
		log = zap.NewNop()
	}
	f := newRefusals()
	return func(base http.RoundTripper) http.RoundTripper { return naming{throttled{base, log, f}} }
}

// retryAfter returns the server's wait, at most maxRetryAfter, and whether it was shortened.
func retryAfter(seconds int) (wait time.Duration, shortened bool) {
	if seconds > int(maxRetryAfter/time.Second) {
		return maxRetryAfter, true
	}
	return time.Duration(seconds) * time.Second, false
}

// refusals are the current Retry-After responses, of all transports to a server.
type refusals struct {
	now func() time.Time

	mu   sync.Mutex
	last map[requestKey]*refusal
}

func newRefusals() *refusals { return &refusals{now: time.Now, last: map[requestKey]*refusal{}} }

// requestKey identifies equal requests of a part of the program. Limits and revisions are not part of it: a list and
// the watch that follows it are equal.
type requestKey struct{ agent, method, path, labels, fields string }

func keyOf(req *http.Request) requestKey {
	q := req.URL.Query()
	return requestKey{req.Header.Get("User-Agent"), req.Method, req.URL.Path, q.Get("labelSelector"),
		q.Get("fieldSelector")}
}

// refusal is a response with Retry-After.
type refusal struct {
	answer http.Response
	body   []byte
	until  time.Time
}

// again returns the response with the remaining time.
func (r *refusal) again(req *http.Request, now time.Time) *http.Response {
	resp := r.answer
	resp.Request, resp.Header = req, r.answer.Header.Clone()
	resp.Header.Set("Retry-After", strconv.Itoa(int((r.until.Sub(now)+time.Second-1)/time.Second)))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
	return &resp
}

func (t throttled) RoundTrip(req *http.Request) (*http.Response, error) {
	key := keyOf(req)
	if r, now := t.find(key); r != nil {
		if req.Body != nil {
			req.Body.Close() //nolint:errcheck // nobody reads it
		}
		return r.again(req, now), nil
	}
	resp, err := t.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < http.StatusInternalServerError {
		return resp, err
	}
	seconds, bad := strconv.Atoi(resp.Header.Get("Retry-After"))
	if bad != nil || seconds <= 0 {
		return resp, nil
	}
	wait, shortened := retryAfter(seconds)
	if shortened {
		t.log.Warn("the Kubernetes API requests a long wait, which is shortened", zap.String("method", req.Method),
			zap.String("path", req.URL.Path), zap.Int("retryAfterSeconds", seconds), zap.Duration("wait", wait))
		resp.Header = resp.Header.Clone()
		resp.Header.Set("Retry-After", strconv.Itoa(int(wait/time.Second)))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestRefusal))
	if err == nil && len(body) < longestRefusal {
		t.note(key, resp, body, wait)
	}
	resp.Body = restored{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
	return resp, nil
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery, which finds the connections.
func (t throttled) WrappedRoundTripper() http.RoundTripper { return t.next }

// restored is a body that can be read again.
type restored struct {
	io.Reader
	io.Closer
}

// find returns the current refusal of a request, nil if there is none.
func (f *refusals) find(key requestKey) (*refusal, time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if r := f.last[key]; r != nil && now.Before(r.until) {
		return r, now
	}
	return nil, now
}

func (f *refusals) note(key requestKey, resp *http.Response, body []byte, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	for k, r := range f.last {
		if !now.Before(r.until) {
			delete(f.last, k)
		}
	}
	f.last[key] = &refusal{answer: *resp, body: body, until: now.Add(wait)}
}
