package kubernetes

import (
	"net/http"
	"strconv"
	"strings"
)

// counting reports requests and the codes of their responses. A watch counts when it begins.
type counting struct {
	next    http.RoundTripper
	request func(verb, code string)
}

func (c counting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(req)
	verb, code := strings.ToLower(req.Method), "error"
	if watch, _ := strconv.ParseBool(req.URL.Query().Get("watch")); watch {
		verb = "watch"
	}
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	c.request(verb, code)
	return resp, err
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery, which finds the connections.
func (c counting) WrappedRoundTripper() http.RoundTripper { return c.next }
