package speaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"
)

// Fault: GoBGP's loop that accepts connections ends for good at the first error, such as too many open files. The port
// stays open, and no peer can connect until the next start. Shown by TestAcceptAfterTooManyOpenFiles. Can go when the
// loop goes on after an error.
//
// The speaker waits for the end of the loop and then accepts connections in its place. The sessions, the listening
// socket and its MD5 keys stay. The socket, the end of the loop and the channel for new connections are fields of
// BgpServer and its listeners. GoBGP writes them in StartBgp alone; they are read once, by reflection, after it has
// returned. Their names and types are checked; if they are not as expected, GoBGP's loop is left alone.

// acceptRetry is how long the speaker waits after a failure to accept a connection.
const acceptRetry = time.Second

// listener is a listening socket of GoBGP.
type listener struct {
	socket *net.TCPListener
	loop   *sync.WaitGroup // zero once GoBGP's loop has ended
	conns  chan net.Conn   // the connections that GoBGP takes
}

// listenersOf returns the listeners of a server that has been started, or an error if GoBGP is not built as expected.
func listenersOf(srv *server.BgpServer) ([]listener, error) {
	v := reflect.ValueOf(srv).Elem()
	conns, err := field[chan net.Conn](v, "acceptCh")
	if err != nil {
		return nil, err
	}
	all := v.FieldByName("listeners")
	if !all.IsValid() || all.Kind() != reflect.Slice {
		return nil, fmt.Errorf("%s has no list of listeners", v.Type())
	}
	if _, err := pointee(all.Type().Elem()); err != nil {
		return nil, fmt.Errorf("listeners of %s: %w", v.Type(), err)
	}
	var list []listener
	for i := range all.Len() {
		one := all.Index(i).Elem()
		socket, err := field[*net.TCPListener](one, "l")
		loop, err2 := field[*sync.WaitGroup](one, "stopWg")
		if err = errors.Join(err, err2); err != nil {
			return nil, err
		}
		list = append(list, listener{socket, loop, conns})
	}
	return list, nil
}

// field returns an unexported field of a struct that a pointer leads to.
func field[T any](v reflect.Value, name string) (value T, err error) {
	f := v.FieldByName(name)
	if !f.IsValid() || f.Type() != reflect.TypeFor[T]() {
		return value, fmt.Errorf("%s has no %s of type %s", v.Type(), name, reflect.TypeFor[T]())
	}
	return *(*T)(unsafe.Pointer(f.UnsafeAddr())), nil
}

// keepAccepting has connections accepted until ctx ends, whatever becomes of GoBGP's loops.
func (r *speakerRun) keepAccepting(ctx context.Context) {
	list, err := listenersOf(r.srv)
	if err != nil {
		r.sp.log.Warn("after a failure to accept a connection no peer can connect until the next start: "+
			"this GoBGP keeps its listeners elsewhere", zap.Error(err))
	}
	for _, l := range list {
		go func() {
			l.loop.Wait()
			r.sp.takeOver(ctx, l)
		}()
	}
}

// takeOver accepts connections until the listener is closed.
func (s *Speaker) takeOver(ctx context.Context, l listener) {
	address := l.socket.Addr().String()
	log := s.log.With(zap.String("address", address))
	defer s.accepting.set(address, nil)
	failing := false
	for ctx.Err() == nil {
		conn, err := l.accept(failing)
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if conn != nil {
				_ = conn.Close()
			}
			return
		case err != nil:
			if s.accepting.set(address, err) {
				log.Error("bgp connections of peers are not accepted; trying again each second", zap.Error(err))
			}
			failing = true
			pause(ctx, acceptRetry)
			continue
		case failing:
			failing = false
			s.accepting.set(address, nil)
			log.Info("bgp connections of peers are accepted again")
		}
		if conn == nil {
			continue
		}
		_ = conn.SetKeepAlive(false) // BGP has its own
		select {
		case l.conns <- conn:
		case <-ctx.Done():
			_ = conn.Close()
		}
	}
}

// accept waits for a connection. After a failure it waits for a second at most: no connection and no error says that
// none came, and that the socket works.
func (l listener) accept(failing bool) (*net.TCPConn, error) {
	var deadline time.Time
	if failing {
		deadline = time.Now().Add(acceptRetry)
	}
	if err := l.socket.SetDeadline(deadline); err != nil {
		return nil, err
	}
	conn, err := l.socket.AcceptTCP()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	return conn, err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// accepting has the addresses on which no connections are accepted, with the reasons.
type accepting struct {
	mu     sync.Mutex
	failed map[string]string
}

// set records the last failure, nil for none, and reports whether that is new.
func (a *accepting) set(address string, err error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.failed[address]
	if err == nil {
		delete(a.failed, address)
		return was != ""
	}
	if a.failed == nil {
		a.failed = map[string]string{}
	}
	a.failed[address] = err.Error()
	return was != err.Error()
}

// why returns why connections are not accepted, empty if they are.
func (a *accepting) why() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var reasons []string
	for _, reason := range a.failed {
		reasons = append(reasons, reason)
	}
	if len(reasons) == 0 {
		return ""
	}
	return "connections of BGP peers are not accepted: " + slices.Min(reasons)
}
