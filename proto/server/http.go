package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// livenessTimeout is how long the daemon's parts may take to report their health.
const livenessTimeout = 5 * time.Second

// webHandler is that of ServeWeb.
func (s *Server) webHandler() http.Handler {
	mux := s.healthHandler()
	mux.Handle("GET /metrics", metricsHandler(s.registry))
	return mux
}

func (s *Server) healthHandler() *http.ServeMux {
	mux := http.NewServeMux()
	for _, path := range []string{"/readyz", "/readiness"} {
		mux.HandleFunc("GET "+path, s.readyz)
	}
	for _, path := range []string{"/livez", "/liveness"} {
		mux.HandleFunc("GET "+path, s.livez)
	}
	return mux
}

func metricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ok, checks := s.Ready()
	answer(w, r, ok, "ready", checks)
}

func (s *Server) livez(w http.ResponseWriter, r *http.Request) {
	if c := s.Live(r.Context()); r.Context().Err() == nil {
		answer(w, r, c.OK, "live", []Check{c})
	}
}

// Live fails when a part of the daemon does not answer any more: then only a new process helps. That something is not
// reached yet, or was lost, is no reason to restart. Nor is a change that takes the kernel or the speaker long (see
// reading): a new process would begin with it again. Live returns within five seconds, or when ctx ends.
func (s *Server) Live(ctx context.Context) Check {
	done := make(chan struct{})
	go func() {
		s.Ready() // queries every part
		close(done)
	}()
	timeout := time.NewTimer(s.liveness)
	defer timeout.Stop()
	select {
	case <-done:
		return Check{Name: "process", OK: true, Reason: "all parts answer"}
	case <-ctx.Done():
		return Check{Name: "process", Reason: ctx.Err().Error()}
	case <-timeout.C:
		return Check{Name: "process", Reason: fmt.Sprintf("a part of manxd has not answered for %s", s.liveness)}
	}
}

// answer writes "ok", or one line for each check: "[+]bgp: reason" for a passed one, "[-]bgp: reason" for a failed one.
func answer(w http.ResponseWriter, r *http.Request, ok bool, what string, checks []Check) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	var b strings.Builder
	if _, verbose := r.URL.Query()["verbose"]; verbose || !ok {
		for _, c := range checks {
			sign := "-"
			if c.OK {
				sign = "+"
			}
			fmt.Fprintf(&b, "[%s]%s: %s\n", sign, c.Name, strings.ReplaceAll(c.Reason, "\n", " "))
		}
	}
	if ok {
		b.WriteString("ok\n")
	} else {
		b.WriteString("not " + what + "\n")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(b.String())) // the client has gone if this fails
}
