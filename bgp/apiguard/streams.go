package apiguard

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Limits of one connection. gRPC keeps at most 64 KiB and one message for each stream that is not read.
const (
	maxRequest    = 64 << 10
	maxHeaders    = 16 << 10
	window        = 64 << 10
	callsAtOnce   = 16
	handshakeTime = 5 * time.Second
	idleTime      = 5 * time.Minute // without a call
	probeAfter    = 30 * time.Second
	probeTime     = 10 * time.Second
)

// Limits returns the options of a gRPC server that bound the cost of a connection.
func Limits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(callsAtOnce),
		grpc.ConnectionTimeout(handshakeTime), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.ReadBufferSize(8 << 10), grpc.WriteBufferSize(16 << 10),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, Time: probeAfter,
			Timeout: probeTime}),
	}
}

// Streams that one user, and all but root together, may have open, and how long a message may wait for its reader.
const (
	streamsEach   = 16
	streamsOthers = 32
	sendTime      = 10 * time.Second
)

// Streams bounds streaming calls: their number, and how long they wait for a slow reader.
type Streams struct {
	slots    *Slots
	sendTime time.Duration
}

// NewStreams makes the bounds of one service.
func NewStreams() *Streams { return &Streams{NewSlots(streamsEach, streamsOthers), sendTime} }

// Intercept is the grpc.StreamServerInterceptor. A stream whose message waits too long ends with ResourceExhausted.
func (s *Streams) Intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	uid := CallerOf(stream.Context()).UID
	release, ok := s.slots.Take(uid)
	if !ok {
		return tooMany(uid, "streaming calls", streamsEach, streamsOthers)
	}
	timed := &timedStream{ServerStream: stream, limit: s.sendTime, slow: make(chan struct{})}
	timed.giveUp = sync.OnceFunc(func() { close(timed.slow) })
	done := make(chan error, 1)
	go func() {
		defer release() // when the memory of the call is free, not only when it is answered
		done <- handler(srv, timed)
	}()
	select {
	case err := <-done:
		return err
	case <-timed.slow: // our return ends the context of the stream, and with it the Send that waits
		return status.Errorf(codes.ResourceExhausted, "cut off: the caller did not read for %s", s.sendTime)
	}
}

// timedStream notices when a message waits for too long.
type timedStream struct {
	grpc.ServerStream
	limit  time.Duration
	slow   chan struct{}
	giveUp func()
}

// SendMsg sends a message. It waits until the reader has room for it.
func (s *timedStream) SendMsg(m any) error {
	timer := time.AfterFunc(s.limit, s.giveUp)
	defer timer.Stop()
	return s.ServerStream.SendMsg(m)
}
