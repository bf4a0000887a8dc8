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

// UserAgent is how a program names itself to the API, whose audit log has it. Empty: as the file that runs, with no
// version.
func UserAgent(program, version string) string {
	if version != "" {
		version = "/" + version
	}
	return fmt.Sprintf("%s%s (%s/%s)", cmp.Or(program, filepath.Base(os.Args[0])), version, runtime.GOOS,
		runtime.GOARCH)
}

// naming implements http.RoundTripper: the User-Agent ends with the part of the program that makes the request, if its
// context has one.
type naming struct{ next http.RoundTripper }

func (n naming) RoundTrip(req *http.Request) (*http.Response, error) {
	if part := datastore.Requester(req.Context()); part != "" {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", req.Header.Get("User-Agent")+"/"+part)
	}
	return n.next.RoundTrip(req)
}
