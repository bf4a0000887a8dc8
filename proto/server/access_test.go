package server

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// methods returns all registered methods, reflection and health among them.
func methods(s *Server) map[string]grpc.MethodInfo {
	all := map[string]grpc.MethodInfo{}
	for service, info := range s.newServer().GetServiceInfo() {
		for _, m := range info.Methods {
			all["/"+service+"/"+m.Name] = m
		}
	}
	return all
}

// TestEveryMethodHasARole: an added method needs a role, and a removed method has none.
func TestEveryMethodHasARole(t *testing.T) {
	registered := methods(New(Config{Log: zap.NewNop()}))
	if len(registered) < 20 {
		t.Fatalf("only %d methods are registered: %v", len(registered), slices.Sorted(maps.Keys(registered)))
	}
	for m := range registered {
		if r := access[m]; r != RoleRead && r != RoleAdmin && r != RoleLocal {
			t.Errorf("%s has no role: give it one in access", m)
		}
	}
	for m := range access {
		if _, ok := registered[m]; !ok {
			t.Errorf("%s has a role, and is no method of the server", m)
		}
	}
	// A method that only shows an object has a matching name.
	for m, r := range access {
		name := m[strings.LastIndex(m, "/")+1:]
		reads := slices.ContainsFunc([]string{"Get", "List", "Watch", "Check", "Explain", "ServerReflectionInfo"},
			func(p string) bool { return strings.HasPrefix(name, p) })
		if reads != (r == RoleRead) {
			t.Errorf("%s has the role %q", m, r)
		}
	}
}

// TestReadersChangeNothing makes every registered call over TLS in each role. The handlers have nothing to show, and so
// return errors of other kinds, or nothing.
func TestReadersChangeNothing(t *testing.T) {
	x := newRemoteRig(t)
	as := map[Role]*grpc.ClientConn{RoleRead: x.dial("reader"), RoleAdmin: x.dial("admin"), "": x.dial("nobody")}
	for method, info := range methods(x.server) {
		for who, conn := range as {
			code := status.Code(call(t, conn, method, info))
			needs := access[method]
			allowed := needs != RoleLocal && (who == RoleAdmin || who == needs)
			if denied := code == codes.PermissionDenied; denied == allowed {
				t.Errorf("%s by a caller with the role %q: %s", method, who, code)
			}
		}
	}
}

// call makes a call with an empty request, and waits for the first response.
func call(t *testing.T, conn *grpc.ClientConn, method string, info grpc.MethodInfo) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
		grpc.ForceCodec(nothing{}))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(nil); err != nil && !errors.Is(err, io.EOF) { // RecvMsg returns the end of the stream
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(nil)
}

// nothing sends empty messages, and accepts any message.
type nothing struct{}

func (nothing) Marshal(any) ([]byte, error) { return nil, nil }
func (nothing) Unmarshal([]byte, any) error { return nil }
func (nothing) Name() string                { return "proto" }

// TestUnclassedMethodIsRefusedToEverybody, root on the unix socket included.
func TestUnclassedMethodIsRefusedToEverybody(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	s := New(Config{Node: "node-1", Log: zap.New(core)})
	for name, who := range map[string]credentials.AuthInfo{"root": caller{}, "nobody": nil,
		"somebody": credentials.TLSInfo{}} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: who})
		ran := false
		_, err := s.unaryGuard(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/manx.v1.Manx/Explode"},
			func(context.Context, any) (any, error) {
				ran = true
				return nil, nil
			})
		if want := map[string]codes.Code{"root": codes.PermissionDenied}[name]; ran || err == nil || want != 0 &&
			status.Code(err) != want {
			t.Errorf("%s: ran %t, %v", name, ran, err)
		}
		if _, err := s.unaryGuard(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/manx.v1.Manx/GetStatus"},
			func(context.Context, any) (any, error) { return nil, nil }); (err == nil) != (name == "root") {
			t.Errorf("%s, a method with a role: %v", name, err)
		}
	}
	if n := logs.FilterMessage("control call refused").Len(); n != 5 {
		t.Errorf("%d refusals are logged, want 5", n)
	}
}

func TestStrangersCannotFillTheLog(t *testing.T) {
	var b lineBudget
	now := time.Unix(1e9, 0)
	lines := 0
	for range 1000 {
		if ok, _ := b.line(now); ok {
			lines++
		}
	}
	if lines != linesOfStrangers {
		t.Errorf("%d lines in a minute", lines)
	}
	if ok, missed := b.line(now.Add(time.Minute)); !ok || missed != 1000-linesOfStrangers {
		t.Errorf("the next minute: %t, %d left out", ok, missed)
	}
}
