package server

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// webConnections bounds the open connections for health and metrics, so that no user of this host can exhaust the
// descriptors of this process.
const webConnections = 256

// ServeWeb serves health and metrics on l until ctx ends; then it ends all connections and closes l.
//
// The paths are /livez, /readyz, Calico's names for them (/liveness and /readiness), and /metrics. ?verbose lists each
// check; a failed answer always does.
func (s *Server) ServeWeb(ctx context.Context, l net.Listener) error {
	return s.serveWeb(ctx, l, s.webHandler())
}

// ServeHealth is ServeWeb without metrics.
func (s *Server) ServeHealth(ctx context.Context, l net.Listener) error {
	return s.serveWeb(ctx, l, s.healthHandler())
}

// ServeProfiles serves the profiles of Go's runtime at /debug/pprof/ until ctx ends, for one minute at most each. The
// arguments of the process are not served: they may have passwords.
func (s *Server) ServeProfiles(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return s.serveWeb(ctx, l, mux)
}

func (s *Server) serveWeb(ctx context.Context, l net.Listener, handler http.Handler) error {
	h := s.newWeb(handler)
	closeAll := func() { _ = h.Close() }
	defer context.AfterFunc(ctx, closeAll)()
	defer closeAll()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newWeb bounds time, size and number of connections. The minute suits a slow scrape; Prometheus usually scrapes once
// in the two minutes that a connection may be idle.
func (s *Server) newWeb(h http.Handler) *http.Server {
	conns := &webConns{most: webConnections, log: s.config.Log}
	return &http.Server{Handler: conns.served(h), ConnState: conns.changed, ConnContext: withConn,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: log.New(&webErrors{log: s.config.Log}, "", 0)}
}

// webErrors logs the errors of an HTTP server, such as handshakes that fail, within a budget.
type webErrors struct {
	log   *zap.Logger
	lines lineBudget
}

// Write implements io.Writer.
func (w *webErrors) Write(text []byte) (int, error) {
	if ok, missed := w.lines.line(time.Now()); ok {
		w.log.Warn("HTTP server: "+strings.TrimSpace(string(text)), zap.Int("not_logged_before", missed))
	}
	return len(text), nil
}

// webConns bounds the connections of an HTTP server. One too many replaces the oldest one of the larger group: those
// that wait for a request, and those whose request is served. So a probe gets in, however many connections of either
// kind others keep, or open meanwhile.
type webConns struct {
	most  int
	log   *zap.Logger
	lines lineBudget

	mu         sync.Mutex
	idle, busy []net.Conn // the oldest first; a request that is not complete yet does not count
}

// connKey is the key of a connection in the context of its requests.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// changed is the ConnState of the server.
func (w *webConns) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if out := w.add(c); out != nil {
			_ = out.Close()
			w.logClosed(out)
		}
	case http.StateIdle:
		w.move(c, &w.idle)
	case http.StateClosed, http.StateHijacked:
		w.move(c, nil)
	}
}

// served records the begin of each request.
func (w *webConns) served(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.move(r.Context().Value(connKey{}).(net.Conn), &w.busy)
		h.ServeHTTP(rw, r)
	})
}

// add takes in a new connection, and returns one that has to go for it, nil if there is room.
func (w *webConns) add(c net.Conn) (out net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.idle)+len(w.busy) >= w.most {
		larger := &w.idle
		if len(w.busy) > len(w.idle) {
			larger = &w.busy
		}
		out = (*larger)[0]
		*larger = slices.Delete(*larger, 0, 1)
	}
	w.idle = append(w.idle, c)
	return out
}

// move makes a connection the last one of a list; nil: it is closed.
func (w *webConns) move(c net.Conn, to *[]net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := func(x net.Conn) bool { return x == c }
	w.idle, w.busy = slices.DeleteFunc(w.idle, same), slices.DeleteFunc(w.busy, same)
	if to != nil {
		*to = append(*to, c)
	}
}

func (w *webConns) logClosed(c net.Conn) {
	if ok, missed := w.lines.line(time.Now()); ok {
		w.log.Warn("HTTP connection closed: there are too many", zap.Stringer("remote", c.RemoteAddr()),
			zap.Int("limit", w.most), zap.Int("not_logged_before", missed))
	}
}
