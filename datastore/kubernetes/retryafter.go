package kubernetes

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/transport"
)

// longestRefusal bounds the answers that are remembered, in bytes.
const longestRefusal = 64 << 10

// patient implements http.RoundTripper. When the server says to come again later (429, or 5xx, with Retry-After in
// seconds: RFC 9110, 10.2.3), whoever comes for the same before that time gets that answer again, and the server is
// spared. Callers wait on their own, but a caller whose context ends while it waits is followed by another one that
// does not know.
type patient struct {
	next http.RoundTripper
	*refusals
}

// polite makes ways to the server that say who they are, and that come again when they were told to.
func polite() transport.WrapperFunc {
	f := newRefusals()
	return func(base http.RoundTripper) http.RoundTripper { return naming{patient{base, f}} }
}

// refusals are what the server said to come again for, by all ways to it.
type refusals struct {
	now func() time.Time

	mu   sync.Mutex
	last map[errand]*refusal
}

func newRefusals() *refusals { return &refusals{now: time.Now, last: map[errand]*refusal{}} }

// errand is who wants what. How much of it, and from where on, is not part of it: a list and the watch that follows it
// are the same.
type errand struct{ agent, method, path, labels, fields string }

func errandOf(req *http.Request) errand {
	q := req.URL.Query()
	return errand{req.Header.Get("User-Agent"), req.Method, req.URL.Path, q.Get("labelSelector"),
		q.Get("fieldSelector")}
}

// refusal is an answer that says when to come again.
type refusal struct {
	answer http.Response
	body   []byte
	until  time.Time
}

// again is the answer as it would be now.
func (r *refusal) again(req *http.Request, now time.Time) *http.Response {
	resp := r.answer
	resp.Request, resp.Header = req, r.answer.Header.Clone()
	resp.Header.Set("Retry-After", strconv.Itoa(int((r.until.Sub(now)+time.Second-1)/time.Second)))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
	return &resp
}

func (p patient) RoundTrip(req *http.Request) (*http.Response, error) {
	e := errandOf(req)
	if r, now := p.find(e); r != nil {
		if req.Body != nil {
			req.Body.Close() //nolint:errcheck // nobody reads it
		}
		return r.again(req, now), nil
	}
	resp, err := p.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < http.StatusInternalServerError {
		return resp, err
	}
	seconds, bad := strconv.Atoi(resp.Header.Get("Retry-After"))
	if bad != nil || seconds <= 0 {
		return resp, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestRefusal))
	if err == nil && len(body) < longestRefusal {
		p.note(e, resp, body, time.Duration(seconds)*time.Second)
	}
	resp.Body = restored{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
	return resp, nil
}

// restored is a body that can be read although it was read already.
type restored struct {
	io.Reader
	io.Closer
}

// find returns the refusal that still holds for an errand, nil if there is none.
func (f *refusals) find(e errand) (*refusal, time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if r := f.last[e]; r != nil && now.Before(r.until) {
		return r, now
	}
	return nil, now
}

func (f *refusals) note(e errand, resp *http.Response, body []byte, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	for e, r := range f.last {
		if !now.Before(r.until) {
			delete(f.last, e)
		}
	}
	f.last[e] = &refusal{answer: *resp, body: body, until: now.Add(wait)}
}
