package speaker

import (
	"errors"
	"sync"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// readers are the listings of GoBGP's tables that are under way. All of them go through here: those of this package by
// speakerRun.listPath, those of bgp/gobgpapi by Speaker.ListPath, and those of GoBGP's own API by intercept.
//
// Fault: ListPath reads settings of the server in the goroutine of its caller (Global.UseMultiplePaths, and
// table.SelectionOptions, which is a package variable). StopBgp, and StartBgp of the next server, write them without a
// lock. Shown by TestServerStopsAfterItsReaders, with the race detector if close does not wait. Can go when ListPath
// copies them where it copies the table.
type readers struct {
	closing chan struct{} // closed before the server stops
	once    sync.Once     // of closing

	mu      sync.RWMutex // each listing holds it for reading
	stopped bool
}

// ErrStopping is the error of a listing of routes while the speaker restarts.
var ErrStopping = errors.New("the BGP speaker is restarting: its routes cannot be listed now; try again")

func newReaders() *readers { return &readers{closing: make(chan struct{})} }

// enter begins a listing, and returns the function that ends it. It fails once the server is about to stop.
func (r *readers) enter() (leave func(), err error) {
	r.mu.RLock()
	if r.stopped {
		r.mu.RUnlock()
		return nil, ErrStopping
	}
	return r.mu.RUnlock, nil
}

// close refuses further listings, and returns when none is under way.
func (r *readers) close() {
	r.once.Do(func() { close(r.closing) })
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
}

// intercept makes a listing of a streaming handler. The end of the server does not wait for the caller: it ends the
// stream, and with it a message that waits for the caller.
func (r *readers) intercept(handler grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		leave, err := r.enter()
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		done := make(chan error, 1)
		go func() {
			defer leave()
			done <- handler(srv, stream)
		}()
		select {
		case err := <-done:
			return err
		case <-r.closing:
			return status.Error(codes.Unavailable, ErrStopping.Error())
		}
	}
}

// listPath calls f with the paths that a request selects. f must not list paths.
func (r *speakerRun) listPath(req apiutil.ListPathRequest, f func(gobgp.NLRI, []*apiutil.Path)) error {
	leave, err := r.readers.enter()
	if err != nil {
		return err
	}
	defer leave()
	return r.srv.ListPath(req, f)
}

// ListPath calls f with the paths of a server that Server returned. It fails if that server has been replaced. f must
// not list paths.
func (s *Speaker) ListPath(srv *server.BgpServer, req apiutil.ListPathRequest,
	f func(gobgp.NLRI, []*apiutil.Path)) error {
	run := s.current()
	if run == nil || run.srv != srv {
		return ErrStopping
	}
	return run.listPath(req, f)
}
