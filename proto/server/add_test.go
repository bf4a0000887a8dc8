package server

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// lamp is a part with everything that can be added.
type lamp struct {
	prometheus.Collector
	roles map[string]Role
	name  string // of the service
}

func newLamp() *lamp {
	return &lamp{name: "test.Lamp", Collector: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "manx_lamp"},
		func() float64 { return 7 }),
		roles: map[string]Role{"/test.Lamp/Look": RoleRead, "/test.Lamp/Switch": RoleAdmin,
			"/test.Lamp/Blink":    RoleRead,
			"/manx.v1.Manx/Drain": RoleRead, "/other.Service/Call": RoleRead}}
}

func (l *lamp) Checks() []Check { return []Check{{Name: "lamp", Reason: "dark"}} }
func (l *lamp) Notices() []Notice {
	return []Notice{{Topic: "daemon", Subject: "lamp", Text: "is dark"}}
}
func (l *lamp) Roles() map[string]Role { return l.roles }

func (l *lamp) Register(r grpc.ServiceRegistrar) {
	one := func(_ any, _ context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if err := read(new(emptypb.Empty)); err != nil {
			return nil, err
		}
		return wrapperspb.String("dark"), nil
	}
	r.RegisterService(&grpc.ServiceDesc{ServiceName: l.name, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Look", Handler: one}, {MethodName: "Switch", Handler: one},
			{MethodName: "Secret", Handler: one}},
		Streams: []grpc.StreamDesc{{StreamName: "Blink", ServerStreams: true, Handler: serveBlink}},
	}, l)
}

func serveBlink(_ any, s grpc.ServerStream) error {
	if err := s.RecvMsg(new(emptypb.Empty)); err != nil {
		return err
	}
	for _, text := range []string{"on", "off"} {
		if err := s.SendMsg(wrapperspb.String(text)); err != nil {
			return err
		}
	}
	return nil
}

// A part added while the server listens is shown like one from the beginning.
func TestAdd(t *testing.T) {
	noLeak(t)
	r := newRig(t)
	get := r.web()
	invoke := func(method string) (string, error) {
		response := new(wrapperspb.StringValue)
		err := r.conn.Invoke(r.context(), method, new(emptypb.Empty), response)
		return response.GetValue(), err
	}
	if _, err := invoke("/test.Lamp/Look"); status.Code(err) != codes.Unimplemented {
		t.Errorf("before: %v", err)
	}
	r.server.Add(newLamp())
	for method, want := range map[string]codes.Code{"/test.Lamp/Look": codes.OK, "/test.Lamp/Switch": codes.OK,
		"/test.Lamp/Secret": codes.PermissionDenied, "/test.Lamp/None": codes.Unimplemented,
		"/other.Service/Call": codes.Unimplemented, "/manx.v1.Manx/None": codes.Unimplemented} {
		if response, err := invoke(method); status.Code(err) != want || err == nil && response != "dark" {
			t.Errorf("%s: %q, %v, want %s", method, response, err, want)
		}
	}
	for method, want := range map[string]string{"/test.Lamp/None": "unknown method None for service test.Lamp",
		"/manx.v1.Manx/None":  "unknown method None for service manx.v1.Manx",
		"/other.Service/Call": "unknown service other.Service"} {
		if _, err := invoke(method); status.Convert(err).Message() != want {
			t.Errorf("%s: %v, want %s", method, err, want)
		}
	}
	stream, err := r.conn.NewStream(r.context(), &grpc.StreamDesc{ServerStreams: true}, "/test.Lamp/Blink")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(new(emptypb.Empty)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"on", "off"} {
		got := new(wrapperspb.StringValue)
		if err := stream.RecvMsg(got); err != nil || got.GetValue() != want {
			t.Errorf("stream: %v, %v", got, err)
		}
	}
	if log := r.logs.FilterMessage("control call").All(); len(log) != 1 ||
		log[0].ContextMap()["call"] != "/test.Lamp/Switch" {
		t.Errorf("the log of changes is %v", log)
	}
	if role, _ := r.server.role("/manx.v1.Manx/Drain"); role != RoleAdmin {
		t.Errorf("a row of another service has changed what Drain needs to %q", role)
	}
	if _, body := get("/readyz"); !strings.Contains(body, "[-]lamp: dark\n") {
		t.Errorf("readyz: %s", body)
	}
	if _, body := get("/metrics"); !strings.Contains(body, "\nmanx_lamp 7\n") ||
		!strings.Contains(body, `manx_ready{check="lamp"} 0`) {
		t.Errorf("metrics: %s", body)
	}
	if names := r.services(); !slices.Contains(names, "test.Lamp") || !slices.Contains(names, "manx.v1.Manx") {
		t.Errorf("reflection lists %q", names)
	}
}

// services are those that reflection lists.
func (r *rig) services() (names []string) {
	r.t.Helper()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(r.conn).ServerReflectionInfo(r.context())
	if err != nil {
		r.t.Fatal(err)
	}
	list := &grpc_reflection_v1.ServerReflectionRequest_ListServices{}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: list}); err != nil {
		r.t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range response.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names
}

// A reader with a certificate may call methods with the role read, and no more, also of added services.
func TestAddedServiceForReaders(t *testing.T) {
	x := newRemoteRig(t)
	x.server.Add(newLamp())
	conn := x.dial("reader")
	for method, want := range map[string]codes.Code{"/test.Lamp/Look": codes.OK,
		"/test.Lamp/Switch": codes.PermissionDenied, "/test.Lamp/Secret": codes.PermissionDenied} {
		err := conn.Invoke(t.Context(), method, new(emptypb.Empty), new(wrapperspb.StringValue))
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %s", method, err, want)
		}
	}
}

func TestServicesCannotBeReplaced(t *testing.T) {
	for _, name := range []string{"manx.v1.Manx", "grpc.health.v1.Health", "test.Lamp"} {
		s := New(Config{})
		if name == "test.Lamp" {
			s.Add(&lamp{name: name, Collector: newLamp()})
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was replaced", name)
				}
			}()
			second := newLamp()
			second.name = name
			second.Collector = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "manx_other"},
				func() float64 { return 0 })
			s.Add(second)
		}()
	}
}
