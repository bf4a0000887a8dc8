package caliconode

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// felix are the names of the process of calico-node that programs the kernel, in its image and from its own package.
var felix = []string{"calico-node", "calico-felix"}

// felixHealth is Felix's default address for health, which is not set by default, and is in all manifests of Calico.
const felixHealth = "http://127.0.0.1:9099/liveness"

// Active names an active calico-node on this host, also one without BGP; empty for none. Without the host's processes,
// as in a container, it finds one without BGP by its answers about health.
func Active(ctx context.Context) string {
	return cmp.Or(BGPDaemon(ctx), process("/proc"), healthy(ctx, felixHealth))
}

// process names a process of Felix in this network namespace; empty for none, or none that this user may see.
func process(proc string) string {
	own, _ := os.Readlink(filepath.Join(proc, "self/ns/net"))
	names, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/comm"))
	for _, path := range names {
		name, _ := os.ReadFile(path)
		at, err := os.Readlink(filepath.Join(filepath.Dir(path), "ns/net"))
		if err == nil && at == own && slices.Contains(felix, strings.TrimSpace(string(name))) {
			return "the process " + filepath.Base(filepath.Dir(path)) + ", " + strings.TrimSpace(string(name))
		}
	}
	return ""
}

// healthy names Felix if it answers about its health, good or bad; empty if it does not.
func healthy(ctx context.Context, url string) string {
	ctx, cancel := context.WithTimeout(ctx, socketTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request) // neither by a proxy nor elsewhere
	if err != nil {
		return ""
	}
	_ = answer.Body.Close()
	if slices.Contains([]int{http.StatusOK, http.StatusNoContent, http.StatusServiceUnavailable}, answer.StatusCode) {
		return "Felix, which answers at " + url
	}
	return ""
}
