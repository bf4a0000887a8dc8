package kubernetes

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"

	"github.com/manxnet/manx/datastore"
)

// UserAgent returns a program's name for the API's audit log. If program is empty it is that of the executable, without
// a version.
func UserAgent(program, version string) string {
	if version != "" {
		version = "/" + version
	}
	return fmt.Sprintf("%s%s (%s/%s)", cmp.Or(program, filepath.Base(os.Args[0])), version, runtime.GOOS,
		runtime.GOARCH)
}

// naming implements http.RoundTripper: it appends the requesting part of the program, if the context has one, to the
// User-Agent.
type naming struct{ next http.RoundTripper }

func (n naming) RoundTrip(req *http.Request) (*http.Response, error) {
	if part := datastore.Requester(req.Context()); part != "" {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", req.Header.Get("User-Agent")+"/"+part)
	}
	return n.next.RoundTrip(req)
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery, which finds the connections.
func (n naming) WrappedRoundTripper() http.RoundTripper { return n.next }
