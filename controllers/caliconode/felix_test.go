package caliconode

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// A process counts in this network namespace alone: in another one it belongs to a cluster of its own.
func TestProcess(t *testing.T) {
	for _, c := range []struct{ name, namespace, want string }{
		{"calico-node", "net:[1]", "the process 7, calico-node"},
		{"calico-felix", "net:[1]", "the process 7, calico-felix"},
		{"calico-node", "net:[2]", ""},
		{"calico-typha", "net:[1]", ""},
		{"manxd", "net:[1]", ""},
	} {
		proc := t.TempDir()
		for pid, namespace := range map[string]string{"self": "net:[1]", "7": c.namespace} {
			err := os.MkdirAll(filepath.Join(proc, pid, "ns"), 0o755)
			if err = errors.Join(err, os.Symlink(namespace, filepath.Join(proc, pid, "ns/net"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(proc, "7/comm"), []byte(c.name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := process(proc); got != c.want {
			t.Errorf("%s in %s: %q, want %q", c.name, c.namespace, got, c.want)
		}
	}
}

// Felix answers 200 or 204 if it is live, and 503 if it is not.
func TestHealthy(t *testing.T) {
	for status, want := range map[int]bool{200: true, 204: true, 503: true, 404: false, 302: false} {
		answer := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		s := httptest.NewServer(http.HandlerFunc(answer))
		if got := healthy(t.Context(), s.URL+"/liveness"); got != "" != want {
			t.Errorf("%d: %q", status, got)
		}
		s.Close()
	}
	if got := healthy(t.Context(), "http://127.0.0.1:1/liveness"); got != "" {
		t.Errorf("nothing listens: %q", got)
	}
}
