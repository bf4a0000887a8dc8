package server

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Checker has conditions of readiness.
type Checker interface{ Checks() []Check }

// Noticer has something that a person should know.
type Noticer interface{ Notices() []Notice }

// Service has gRPC services of its own. Roles has a row for each of their methods, by its full name; a method without
// one is refused to everybody.
type Service interface {
	Register(grpc.ServiceRegistrar)
	Roles() map[string]Role
}

// Add has the server show x as each of Checker, Noticer, prometheus.Collector and Service that it implements, also
// after the server has begun to listen. It panics if a service or a metric exists already, which is a mistake of the
// program.
func (s *Server) Add(x any) {
	if c, ok := x.(prometheus.Collector); ok {
		s.registry.MustRegister(c)
	}
	if service, ok := x.(Service); ok {
		s.added.add(service)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = append(s.shown[:len(s.shown):len(s.shown)], x)
}

// all lists everything that the server shows, in the order in which it was added.
func (s *Server) all() []any {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.shown
}

// role returns the role that a method requires, false if nobody may call it.
func (s *Server) role(method string) (Role, bool) {
	if r, ok := access[method]; ok {
		return r, true
	}
	return s.added.role(method)
}

// addedServices are the gRPC services of the added parts. gRPC takes none once it listens, so their calls come as those
// of unknown services, which call handles. It is safe for concurrent use.
type addedServices struct {
	mu       sync.RWMutex
	services map[string]addedService
}

type addedService struct {
	desc  *grpc.ServiceDesc
	impl  any
	roles map[string]Role // by full method
}

// add takes in a service. Its rows of roles count for its own methods alone.
func (a *addedServices) add(service Service) {
	roles := service.Roles()
	service.Register(registrar(func(desc *grpc.ServiceDesc, impl any) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if _, ok := a.services[desc.ServiceName]; ok || ownService(desc.ServiceName) {
			panic(fmt.Sprintf("the service %s is there already", desc.ServiceName))
		}
		if a.services == nil {
			a.services = map[string]addedService{}
		}
		own := map[string]Role{}
		for method, r := range roles {
			if strings.HasPrefix(method, "/"+desc.ServiceName+"/") {
				own[method] = r
			}
		}
		a.services[desc.ServiceName] = addedService{desc, impl, own}
	}))
}

// ownService reports whether a service is one of those that the server has from the beginning.
func ownService(name string) bool {
	for method := range access {
		if strings.HasPrefix(method, "/"+name+"/") {
			return true
		}
	}
	return false
}

// registrar is a grpc.ServiceRegistrar.
type registrar func(*grpc.ServiceDesc, any)

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) { r(desc, impl) }

func (a *addedServices) find(method string) (s addedService, name string) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.services[service], name
}

func (a *addedServices) role(method string) (Role, bool) {
	s, _ := a.find(method)
	r, ok := s.roles[method]
	return r, ok
}

// handler returns the handler of a method, nil if there is none.
func (a *addedServices) handler(method string) func(grpc.ServerStream) error {
	s, name := a.find(method)
	if s.desc == nil {
		return nil
	}
	for _, m := range s.desc.Methods {
		if m.MethodName == name {
			return func(stream grpc.ServerStream) error { return answerOne(stream, s.impl, m.Handler) }
		}
	}
	for _, m := range s.desc.Streams {
		if m.StreamName == name {
			return func(stream grpc.ServerStream) error { return m.Handler(s.impl, stream) }
		}
	}
	return nil
}

// answerOne answers a call that is no stream.
func answerOne(stream grpc.ServerStream, impl any,
	handle func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error)) error {
	answer, err := handle(impl, stream.Context(), stream.RecvMsg, nil)
	if err != nil {
		return err
	}
	return stream.SendMsg(answer)
}

// known fails as gRPC does for an unknown method, in its words.
func (a *addedServices) known(method string) error {
	if a.handler(method) != nil {
		return nil
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if s, _ := a.find(method); s.desc != nil || ownService(service) {
		return status.Errorf(codes.Unimplemented, "unknown method %v for service %v", name, service)
	}
	return status.Errorf(codes.Unimplemented, "unknown service %v", service)
}

// call is the grpc.StreamHandler of methods that were added.
func (a *addedServices) call(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if err := a.known(method); err != nil {
		return err
	}
	return a.handler(method)(stream)
}

// listing is a gRPC server that lists the added services among its own, for reflection.
type listing struct {
	*grpc.Server
	added *addedServices
}

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (l listing) GetServiceInfo() map[string]grpc.ServiceInfo {
	all := l.Server.GetServiceInfo()
	l.added.mu.RLock()
	defer l.added.mu.RUnlock()
	for name, s := range l.added.services {
		info := grpc.ServiceInfo{Metadata: s.desc.Metadata}
		for _, m := range s.desc.Methods {
			info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.MethodName})
		}
		for _, m := range s.desc.Streams {
			info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.StreamName,
				IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams})
		}
		all[name] = info
	}
	return all
}
