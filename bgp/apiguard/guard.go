package apiguard

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Caller is the owner of the connection that a call came over.
type Caller struct {
	UID uint32
	// Process returns the caller's process, 0 if it is not found. Nil: processes cannot be looked up.
	Process func() (pid int, name string)
}

// AuthType names the way the caller is known.
func (Caller) AuthType() string { return "socket owner" }

// Fields are the caller as it is logged.
func (c Caller) Fields() []zap.Field {
	fields := []zap.Field{zap.Uint32("uid", c.UID)}
	if c.Process == nil {
		return fields
	}
	if pid, name := c.Process(); pid != 0 {
		fields = append(fields, zap.Int("pid", pid), zap.String("process", name))
	}
	return fields
}

// CallerOf returns the caller of a guarded service. On other services, such as one on a unix socket that only root can
// open, it is root.
func CallerOf(ctx context.Context) Caller {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(Caller); ok {
			return c
		}
	}
	return Caller{}
}

// Config names the users that are admitted.
type Config struct {
	Users []uint32 // root is always admitted
	// Owner returns the owner of a connection, as the kernel reports it. An error: the owner is not known for certain.
	Owner func(*net.TCPConn) (Caller, error)
	Hint  string // for who is refused: how to be admitted
	Log   *zap.Logger
	// SendTime limits how long a message waits for its reader; default 10 s.
	SendTime time.Duration
}

// Connections that one user, and all but root together, may have open.
const (
	connectionsEach   = 16
	connectionsOthers = 32
)

// Guard admits connections of some users alone.
type Guard struct {
	cfg         Config
	connections *Slots
	streams     *Streams
	answers     chan struct{} // one for each refused connection that is being answered
	refused     atomic.Uint64 // since the last line in the log
	loggedAt    atomic.Int64
}

// New makes a guard.
func New(cfg Config) *Guard {
	g := &Guard{
		cfg: cfg, connections: NewSlots(connectionsEach, connectionsOthers), streams: NewStreams(),
		answers: make(chan struct{}, answersAtOnce),
	}
	if cfg.SendTime > 0 {
		g.streams.sendTime = cfg.SendTime
	}
	return g
}

// Listener passes on the admitted connections of l. A refused caller gets a gRPC status in answer to its first call;
// none of its data reaches the service.
func (g *Guard) Listener(l net.Listener) net.Listener { return &listener{l, g} }

// Options returns the options of the service's gRPC server.
func (g *Guard) Options() []grpc.ServerOption {
	return append(Limits(), grpc.Creds(callerCredentials{insecure.NewCredentials()}),
		grpc.StreamInterceptor(g.streams.Intercept))
}

type listener struct {
	net.Listener
	guard *Guard
}

// sendBuffer bounds the octets that the kernel buffers for a client that does not read.
const sendBuffer = 256 << 10

// Accept returns the next connection that is admitted.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		admitted, err := l.guard.admit(c)
		if err == nil {
			return admitted, nil
		}
		l.guard.refuse(c, status.Convert(err))
	}
}

// admit identifies the caller of a connection. It fails closed.
func (g *Guard) admit(c net.Conn) (net.Conn, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, status.Errorf(codes.PermissionDenied, "%T is no TCP connection", c)
	}
	caller, err := g.cfg.Owner(tcp)
	if err != nil {
		g.note(zap.Error(err))
		return nil, status.Errorf(codes.PermissionDenied,
			"refused: the kernel does not report which user made this connection; %s", g.cfg.Hint)
	}
	if caller.UID != 0 && !slices.Contains(g.cfg.Users, caller.UID) {
		g.note(zap.Uint32("uid", caller.UID))
		return nil, status.Errorf(codes.PermissionDenied, "user ID %d is refused: %s", caller.UID, g.cfg.Hint)
	}
	release, ok := g.connections.Take(caller.UID)
	if !ok {
		g.note(zap.Uint32("uid", caller.UID), zap.String("reason", "too many connections"))
		return nil, tooMany(caller.UID, "connections", connectionsEach, connectionsOthers)
	}
	_ = tcp.SetWriteBuffer(sendBuffer)
	return &conn{Conn: c, caller: caller, release: release}, nil
}

// tooMany is the status of who has taken all of its slots.
func tooMany(uid uint32, what string, each, others int) error {
	return status.Errorf(codes.ResourceExhausted,
		"user ID %d has too many %s: at most %d, and %d for all users but root",
		uid, what, each, others)
}

// noteEvery is the least interval between log entries about refused connections.
const noteEvery = 10 * time.Second

func (g *Guard) note(fields ...zap.Field) {
	n, now, last := g.refused.Add(1), time.Now().UnixNano(), g.loggedAt.Load()
	if now-last < int64(noteEvery) || !g.loggedAt.CompareAndSwap(last, now) {
		return
	}
	g.refused.Add(-n)
	g.cfg.Log.Warn("connection refused", append(fields, zap.Uint64("refused", n))...)
}

// conn is a connection that is admitted.
type conn struct {
	net.Conn
	caller  Caller
	release func()
}

// Close ends the connection.
func (c *conn) Close() error {
	c.release()
	return c.Conn.Close()
}

// callerCredentials passes the caller of a connection on to its calls.
type callerCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake returns the connection as it is.
func (callerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	admitted, ok := c.(*conn)
	if !ok {
		return nil, nil, fmt.Errorf("connection from %s did not come through the guard", c.RemoteAddr())
	}
	return c, admitted.caller, nil
}

// Clone returns the same credentials.
func (c callerCredentials) Clone() credentials.TransportCredentials { return c }
