package server

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health is the standard health service: "" for the whole node, and one service for each check.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	server *Server
}

func (h *health) statuses() map[string]grpc_health_v1.HealthCheckResponse_ServingStatus {
	serving := func(ok bool) grpc_health_v1.HealthCheckResponse_ServingStatus {
		if ok {
			return grpc_health_v1.HealthCheckResponse_SERVING
		}
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	ready, checks := h.server.Ready()
	all := map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{"": serving(ready)}
	for _, c := range checks {
		all[c.Name] = serving(c.OK)
	}
	return all
}

// names lists the checks.
func (h *health) names() string {
	_, checks := h.server.Ready()
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = strconv.Quote(c.Name)
	}
	return strings.Join(names, ", ")
}

// Check implements grpc_health_v1.HealthServer.
func (h *health) Check(
	_ context.Context, r *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	st, ok := h.statuses()[r.GetService()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "service = %q: want %s or none", r.GetService(), h.names())
	}
	return &grpc_health_v1.HealthCheckResponse{Status: st}, nil
}

// List implements grpc_health_v1.HealthServer.
func (h *health) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	r := &grpc_health_v1.HealthListResponse{Statuses: map[string]*grpc_health_v1.HealthCheckResponse{}}
	for name, st := range h.statuses() {
		r.Statuses[name] = &grpc_health_v1.HealthCheckResponse{Status: st}
	}
	return r, nil
}

// Watch implements grpc_health_v1.HealthServer: it sends the status now and whenever it has changed.
func (h *health) Watch(
	r *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse],
) error {
	tick := time.NewTicker(h.server.config.Poll)
	defer tick.Stop()
	last := grpc_health_v1.HealthCheckResponse_ServingStatus(-1)
	for {
		st, ok := h.statuses()[r.GetService()]
		if !ok {
			st = grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
		}
		if st != last {
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			last = st
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}
