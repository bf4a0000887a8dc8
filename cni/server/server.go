// Package server serves the requests of CNI plugins on a unix socket, for root of this host only.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore/safefile"
)

const (
	// maxCalls is the limit of concurrent requests, and maxConnections of connections: a node starts some hundred pods
	// at once at most. A client beyond the limit gets the error to try again later.
	maxCalls, maxConnections = 128, 512
	// requestTimeout bounds the read of a request, and answerTimeout the write of a response.
	requestTimeout, answerTimeout = 5 * time.Second, 5 * time.Second
	// callTimeout bounds the service of a request, without the wait for policy, which has a separate timeout.
	callTimeout = 95 * time.Second
)

// Listen opens the socket at a path: mode 0600, with a name that no other user could have taken.
func Listen(path string) (net.Listener, error) { return safefile.Listen(path, 0o600) }

// Server serves a listener.
type Server struct {
	Backend cni.Backend
	Log     *zap.Logger

	calls, connections chan struct{}
	refusals           budget
	seconds            *prometheus.HistogramVec
}

// New returns a Server.
func New(backend cni.Backend, log *zap.Logger) *Server {
	return &Server{Backend: backend, Log: log, calls: make(chan struct{}, maxCalls),
		connections: make(chan struct{}, maxConnections),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "manx_cni_request_seconds",
			Help:    "Time of the requests of CNI plugins, by step and outcome (ok, error).",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60}}, []string{"step", "outcome"})}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(out chan<- *prometheus.Desc) { s.seconds.Describe(out) }

// Collect implements prometheus.Collector.
func (s *Server) Collect(out chan<- prometheus.Metric) { s.seconds.Collect(out) }

// count counts a request.
func (s *Server) count(step cni.Step, r *cni.Response, d time.Duration) {
	if !slices.Contains(cni.Steps, step) {
		step = "unknown"
	}
	outcome := "ok"
	if r.Error != nil {
		outcome = "error"
	}
	s.seconds.WithLabelValues(string(step), outcome).Observe(d.Seconds())
}

// Serve serves requests until ctx ends. It closes the listener, and then waits for the current requests.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var under sync.WaitGroup
	defer under.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return ctx.Err()
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(100 * time.Millisecond) // until descriptors are free again
			continue
		case err != nil:
			_ = l.Close()
			return err
		}
		select {
		case s.connections <- struct{}{}:
			under.Go(func() {
				defer func() { <-s.connections }()
				s.serve(ctx, c.(*net.UnixConn))
			})
		default:
			s.refuse(c, "too many connections: try again later", types.ErrTryAgainLater)
			_ = c.Close()
		}
	}
}

// serve serves the one request of a connection.
func (s *Server) serve(ctx context.Context, c *net.UnixConn) {
	defer c.Close() //nolint:errcheck // nothing is written any more
	if err := authorize(c); err != nil {
		s.refuse(c, err.Error(), types.ErrInternal)
		return
	}
	q := &cni.Request{}
	_ = c.SetReadDeadline(time.Now().Add(requestTimeout))
	if err := cni.ReadFrame(c, q); err != nil {
		s.refuse(c, "the request of the CNI plugin cannot be read: "+err.Error(), types.ErrDecodingFailure)
		return
	}
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	default:
		s.refuse(c, "too many calls at a time: try again later", types.ErrTryAgainLater)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if q.Early {
		q.Begin = func(a *cni.Attachment) { // an error will be that of the response, too
			_ = write(c, &cni.Response{Version: cni.ProtocolVersion, Early: a})
		}
	}
	go hangup(c, cancel)
	began := time.Now()
	answer, err := s.Backend.Call(ctx, q)
	if err != nil {
		answer = failure(err.Error(), types.ErrInternal)
	}
	s.count(q.Step, answer, time.Since(began))
	if err := write(c, answer); err == nil || q.Step != cni.StepAdd || answer.Error != nil {
		return
	}
	// These addresses are unknown to the client, which may have been killed; a repeated ADD would find them, too.
	s.takeBack(ctx, q, answer)
}

// hangup cancels a call when its client disconnects. A client sends nothing after its request.
func hangup(c net.Conn, cancel context.CancelFunc) {
	_ = c.SetReadDeadline(time.Time{})
	var b [1]byte
	_, _ = c.Read(b[:])
	cancel()
}

// takeBack aborts an ADD whose response could not be delivered.
func (s *Server) takeBack(ctx context.Context, q *cni.Request, answer *cni.Response) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	abort := *q
	abort.Step, abort.Attachment = cni.StepAbort, answer.Attachment
	if r, err := s.Backend.Call(ctx, &abort); err != nil || r.Error != nil {
		s.Log.Warn("an ADD whose caller is gone is not undone; the DEL of its container does it",
			zap.String("container", q.ContainerID), zap.Error(err))
	}
}

// authorize returns nil if the peer is a process of root of this host. Root of another user namespace has another user
// ID here.
func authorize(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("the kernel does not report the caller: %w", err)
	}
	if peer.Uid != 0 {
		return fmt.Errorf("user %d may not use this socket: want root", peer.Uid)
	}
	return nil
}

func failure(text string, code uint) *cni.Response {
	return &cni.Response{Version: cni.ProtocolVersion, Error: types.NewError(code, text, "")}
}

// refuse answers a request with an error, and logs it within the budget of the log.
func (s *Server) refuse(c net.Conn, text string, code uint) {
	if s.refusals.spend(time.Now()) {
		s.Log.Warn("CNI call refused", zap.String("reason", text))
	}
	_ = write(c, failure(text, code))
}

// write sends a response. A timeout ends the connection.
func write(c net.Conn, r *cni.Response) error {
	if err := c.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	return cni.WriteFrame(c, r)
}

// budget limits the log lines per minute. The zero value is ready.
type budget struct {
	mu     sync.Mutex
	minute time.Time
	lines  int
}

func (b *budget) spend(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.minute) >= time.Minute {
		b.minute, b.lines = now, 0
	}
	b.lines++
	return b.lines <= 30
}
