package server

import (
	"context"
	"path"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// Role is the permission that a call requires.
type Role string

const (
	RoleRead  Role = "read"  // shows something and changes nothing
	RoleAdmin Role = "admin" // changes something; each such call is logged
	RoleLocal Role = "local" // a report by a program of this host, on the unix socket alone
)

// access is the role that each method of the server's own services requires; those of parts bring their rows, see
// Service. A method that is missing in both is refused to everybody.
var access = map[string]Role{
	manxv1.Manx_GetStatus_FullMethodName:           RoleRead,
	manxv1.Manx_ListPeers_FullMethodName:           RoleRead,
	manxv1.Manx_GetPeer_FullMethodName:             RoleRead,
	manxv1.Manx_ListPeerRoutes_FullMethodName:      RoleRead,
	manxv1.Manx_ListPeerTransitions_FullMethodName: RoleRead,
	manxv1.Manx_ListRoutes_FullMethodName:          RoleRead,
	manxv1.Manx_ListHostObjects_FullMethodName:     RoleRead,
	manxv1.Manx_ListEndpoints_FullMethodName:       RoleRead,
	manxv1.Manx_ListAddresses_FullMethodName:       RoleRead,
	manxv1.Manx_ListQuarantined_FullMethodName:     RoleRead,
	manxv1.Manx_ListNotices_FullMethodName:         RoleRead,
	manxv1.Manx_ListSettings_FullMethodName:        RoleRead,
	manxv1.Manx_Watch_FullMethodName:               RoleRead,
	manxv1.Manx_GetLogLevel_FullMethodName:         RoleRead,
	manxv1.Manx_WatchDrops_FullMethodName:          RoleRead,
	manxv1.Manx_Explain_FullMethodName:             RoleRead,
	manxv1.Manx_ListPolicies_FullMethodName:        RoleRead,
	manxv1.Manx_GetRuleset_FullMethodName:          RoleRead,
	manxv1.Manx_SetLogLevel_FullMethodName:         RoleAdmin,
	manxv1.Manx_Resync_FullMethodName:              RoleAdmin,
	manxv1.Manx_TraceFlow_FullMethodName:           RoleAdmin, // it adds rules to the kernel for a while
	manxv1.Manx_ResetPeer_FullMethodName:           RoleAdmin,
	manxv1.Manx_ClearPeer_FullMethodName:           RoleAdmin,
	manxv1.Manx_Drain_FullMethodName:               RoleAdmin,
	manxv1.Manx_Undrain_FullMethodName:             RoleAdmin,
	manxv1.Manx_Retry_FullMethodName:               RoleAdmin,
	manxv1.Manx_ReportPolicyWait_FullMethodName:    RoleLocal,

	grpc_health_v1.Health_Check_FullMethodName: RoleRead,
	grpc_health_v1.Health_List_FullMethodName:  RoleRead,
	grpc_health_v1.Health_Watch_FullMethodName: RoleRead,

	grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName:      RoleRead,
	grpc_reflection_v1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: RoleRead,
}

// identity is who makes a call, as far as the connection proves it.
type identity interface {
	// allows returns nil if calls that require a role may be made, or a status error that names the missing permission.
	allows(Role) error
	// fields are for the log.
	fields() []zap.Field
}

// unaryGuard lets a call through to its handler if its caller may make it, and logs it if it changes something.
func (s *Server) unaryGuard(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	next grpc.UnaryHandler) (answer any, err error) {
	who, err := s.authorize(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	answer, err = next(ctx, request)
	s.logChange(who, info.FullMethod, request, started, err)
	return answer, err
}

// streamGuard is unaryGuard for streams.
func (s *Server) streamGuard(handler any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler) error {
	if handler == nil { // of no service that was there when the server began to listen
		if err := s.added.known(info.FullMethod); err != nil {
			return err
		}
	}
	who, err := s.authorize(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	started, recorded := time.Now(), &recordedStream{ServerStream: stream}
	err = next(handler, recorded)
	s.logChange(who, info.FullMethod, recorded.request, started, err)
	return err
}

// recordedStream keeps the request that opened a stream.
type recordedStream struct {
	grpc.ServerStream
	request any
}

func (h *recordedStream) RecvMsg(m any) error {
	err := h.ServerStream.RecvMsg(m)
	if err == nil && h.request == nil {
		h.request = m
	}
	return err
}

// authorize returns the caller of a method, or a status error that names the missing permission.
func (s *Server) authorize(ctx context.Context, method string) (identity, error) {
	who := callerOf(ctx)
	err := status.Error(codes.Unauthenticated, "the connection does not identify the caller")
	if who != nil {
		needs, known := s.role(method)
		if err = who.allows(needs); !known {
			err = status.Errorf(codes.PermissionDenied, "%s has no role that could make the call", path.Base(method))
		}
	}
	if err != nil {
		fields := []zap.Field{zap.String("call", method), zap.String("reason", status.Convert(err).Message())}
		if who != nil {
			fields = append(fields, who.fields()...)
		}
		s.refused("control call refused", fields...)
		return nil, err
	}
	return who, nil
}

// callerOf returns the caller of a call, nil if the connection has none.
func callerOf(ctx context.Context) identity {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	who, _ := p.AuthInfo.(identity)
	return who
}

func callerFields(ctx context.Context) []zap.Field {
	if who := callerOf(ctx); who != nil {
		return who.fields()
	}
	return nil
}

// logChange logs a call that changes something, whether it succeeded or not.
func (s *Server) logChange(who identity, method string, request any, started time.Time, err error) {
	if needs, _ := s.role(method); needs != RoleAdmin {
		return
	}
	fields := append(who.fields(), zap.String("call", method), zap.String("object", s.objectOf(request)),
		zap.Any("request", request),
		zap.Stringer("code", status.Code(err)), zap.Duration("took", time.Since(started)))
	if err != nil {
		fields = append(fields, zap.Error(err))
	}
	s.config.Log.Info("control call", fields...)
}

// objectOf names the object that a request would change.
func (s *Server) objectOf(request any) string {
	switch r := request.(type) {
	case *manxv1.ResetPeerRequest:
		return "peer/" + r.GetPeer()
	case *manxv1.ClearPeerRequest:
		return "peer/" + r.GetPeer()
	}
	return "node/" + s.config.Node
}

// refused logs a refused call. The caller must not be able to fill the log with it.
func (s *Server) refused(message string, fields ...zap.Field) {
	if ok, missed := s.strangers.line(time.Now()); ok {
		s.config.Log.Warn(message, append(fields, zap.Int("not_logged_before", missed))...)
	}
}

// linesOfStrangers bounds how many lines about refused calls are logged in a minute.
const linesOfStrangers = 30

// lineBudget counts lines of the log. The zero value is ready.
type lineBudget struct {
	mu            sync.Mutex
	minute        time.Time
	lines, missed int
}

// line reports whether one more may be written, and how many were left out before it.
func (b *lineBudget) line(now time.Time) (ok bool, missed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.minute) >= time.Minute {
		b.minute, b.lines = now, 0
	}
	if b.lines >= linesOfStrangers {
		b.missed++
		return false, 0
	}
	b.lines++
	missed, b.missed = b.missed, 0
	return true, missed
}
