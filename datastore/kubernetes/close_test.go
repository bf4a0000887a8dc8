package kubernetes

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// connections counts the open connections of a server.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

func (c *connections) record(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed {
		delete(c.open, conn)
	} else {
		c.open[conn] = true
	}
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// A closed client leaves no connection behind, nor one with credentials that were replaced. Otherwise connections stay
// for client-go's idle time, which is 90 seconds.
func TestCloseEndsIdleConnections(t *testing.T) {
	var token atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", asJSON)
		fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1"}`) //nolint:errcheck // a test's response
	}))
	open := connections{open: map[net.Conn]bool{}}
	server.Config.ConnState = open.record
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "token")
	rotate := func(to string) {
		t.Helper()
		token.Store(to)
		if err := os.WriteFile(file, []byte(to), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rotate("first")
	config, err := Config{Endpoint: server.URL, TokenFile: file, Insecure: true}.REST()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newClient(config)
	if err != nil {
		t.Fatal(err)
	}
	request := func() {
		t.Helper()
		if _, err := c.groups(t.Context()); err != nil {
			t.Fatal(err)
		}
		watch, err := c.stream(t.Context(), request{verb: http.MethodGet, path: "/apis", accept: asJSON})
		if err != nil {
			t.Fatal(err)
		}
		if err := watch.Close(); err != nil {
			t.Fatal(err)
		}
	}
	request()
	for _, next := range []string{"second", "third"} {
		rotate(next)
		request()
	}
	if open.count() == 0 {
		t.Fatal("the server sees no connection")
	}
	c.close()
	for end := time.Now().Add(time.Minute); open.count() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are open after the client was closed", open.count())
		}
	}
}
