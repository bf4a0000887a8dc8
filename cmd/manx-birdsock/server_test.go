package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

var update = flag.Bool("update", false, "write the golden file")

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)

// manxd is a daemon with a mesh peer that is up, a node peer that is down, one of each family and some routes.
type manxd struct{ manxv1.UnimplementedManxServer }

func (manxd) GetStatus(context.Context, *manxv1.GetStatusRequest) (*manxv1.GetStatusResponse, error) {
	return &manxv1.GetStatusResponse{RouterId: "10.0.0.1", StartedUnixMs: start.UnixMilli()}, nil
}

func (manxd) ListPeers(context.Context, *manxv1.ListPeersRequest) (*manxv1.ListPeersResponse, error) {
	return &manxv1.ListPeersResponse{Peers: []*manxv1.Peer{
		{Address: "10.0.0.2", Port: 179, Type: "mesh", LocalAs: 64512, PeerAs: 64512, State: "Established",
			Phase: established, SinceUnixMs: start.Add(time.Minute).UnixMilli(),
			Negotiated: &manxv1.Negotiated{RouterId: "10.0.0.2", HoldSeconds: 240, KeepaliveSeconds: 80,
				LocalAddress: "10.0.0.1", Capabilities: []string{"route-refresh", "4-octet-as"}},
			Prefixes: &manxv1.PeerPrefixes{Received: 3, Accepted: 2}},
		{Address: "10.0.0.9", Port: 1179, Type: "node", LocalAs: 64512, PeerAs: 65000, State: "Active", Phase: "Failed",
			SinceUnixMs: start.UnixMilli(), Reason: "connection refused\nby 10.0.0.9",
			LastError: "connection refused by 10.0.0.9"},
		{Address: "fd00::2", Port: 179, Type: "global", LocalAs: 64512, PeerAs: 65000, State: "Idle",
			Phase: "Connecting", SinceUnixMs: start.UnixMilli()},
	}}, nil
}

// GetPeer has the number that a list lacks.
func (m manxd) GetPeer(ctx context.Context, r *manxv1.GetPeerRequest) (*manxv1.GetPeerResponse, error) {
	all, _ := m.ListPeers(ctx, nil)
	for _, p := range all.GetPeers() {
		if p.GetAddress() == r.GetAddress() && p.Prefixes != nil {
			p.Prefixes.Advertised = proto.Uint64(1)
			return &manxv1.GetPeerResponse{Peer: p}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "it has just gone")
}

func (manxd) ListPeerRoutes(r *manxv1.ListPeerRoutesRequest,
	stream grpc.ServerStreamingServer[manxv1.ListPeerRoutesResponse]) error {
	if r.GetDirection() != "table" || r.GetFamily() != "IPv4" {
		return status.Error(codes.Unavailable, "the BGP speaker is not running yet")
	}
	since := start.UnixMilli()
	return stream.Send(&manxv1.ListPeerRoutesResponse{Routes: []*manxv1.PeerRoute{
		{Prefix: "10.1.0.0/26", NextHop: "0.0.0.0", Best: proto.Bool(true), SinceUnixMs: since, Origin: "IGP",
			LocalPref: proto.Uint32(2147482623)},
		{Prefix: "10.1.0.64/26", Peer: "10.0.0.2", NextHop: "10.0.0.2", Best: proto.Bool(true), SinceUnixMs: since,
			Origin: "IGP", LocalPref: proto.Uint32(2147482623), Communities: []string{"65000:1"},
			LargeCommunities: []string{"1:2:3"},
			ExtendedCommunities: []string{"rt:64512:100", "0x4103c00002010007", "0x0209000100000009",
				"0x030c000000000008"}},
		{Prefix: "10.1.0.64/26", Peer: "10.0.0.9", NextHop: "10.0.0.3", SinceUnixMs: since, Origin: "Incomplete",
			AsPath: []uint32{65000, 65001}, Med: proto.Uint32(100), OriginatorId: proto.String("10.0.0.3"),
			ClusterList: []string{"1.1.1.1"}},
	}})
}

// serveManxd serves a daemon, and returns its socket.
func serveManxd(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "manxd.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	s := grpc.NewServer()
	manxv1.RegisterManxServer(s, manxd{})
	go s.Serve(l) //nolint:errcheck // until Stop
	tb.Cleanup(s.Stop)
	return path
}

// testServer answers from the daemon behind a socket.
func testServer(tb testing.TB, socket string, ipv6 bool) *server {
	tb.Helper()
	conn, err := dial(socket)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return &server{manx: manxv1.NewManxClient(conn), version: "v1", ipv6: ipv6, reading: make(chan struct{}, 1),
		now: func() time.Time { return start.Add(time.Hour) }}
}

func (s *server) query(request string) string {
	var b strings.Builder
	out := &reply{w: bufio.NewWriter(&b)}
	s.answer(context.Background(), request, out)
	out.w.Flush()
	return b.String()
}

func TestAnswers(t *testing.T) {
	var got strings.Builder
	socket := serveManxd(t)
	s4, s6 := testServer(t, socket, false), testServer(t, socket, true)
	for _, q := range []string{"show status", "show protocols", "show protocols all", `show protocols all "Mesh*"`,
		"show protocols Nope",
		"show route", "show route all", "show route for 10.1.0.70", "show route 10.1.0.0/26 all",
		"show route protocol Node_10_0_0_9_port_1179",
		"show route protocol Nope", "show route primary", "show route count", "show route stats",
		"show route for 192.0.2.1", "show route where net",
		"show", "", "restrict", "echo all", "configure", "disable Mesh_10_0_0_2", "show memory"} {
		got.WriteString(">>> " + q + "\n" + s4.query(q))
	}
	got.WriteString(">>> IPv6: show protocols\n" + s6.query("show protocols") + ">>> IPv6: show route\n" +
		s6.query("show route"))
	golden := filepath.Join("testdata", "answers.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("answers differ from %s:\n%s", golden, got.String())
	}
}

func TestSocketOfALivingProcessIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "bird.ctl")
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode of the socket: %v, %v", info, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- testServer(t, "", false).serve(ctx, l) }()
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("second listen: %v", err)
	}
	cancel()
	<-done
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	crashed, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	crashed.SetUnlinkOnClose(false)
	crashed.Close()
	l, err = listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// A file in the place of one socket does not keep the other from its clients.
func TestOneSocketIsEnough(t *testing.T) {
	folder := t.TempDir()
	path, path6 := filepath.Join(folder, "bird.ctl"), filepath.Join(folder, "bird6.ctl")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- run(ctx, path, "") }()
	for _, err := os.Stat(path6); err != nil; _, err = os.Stat(path6) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(path6, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), path, ""); err == nil {
		t.Error("no socket is served, and there is no error")
	}
}

// A file at the path of the socket, left by mistake or by another user, stays, and the reason names it.
func TestOnlyASocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"file", func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
			"is no socket but a regular file"},
		{"empty folder", func(path string) error { return os.Mkdir(path, 0o755) }, "is no socket but a folder"},
		{"link", func(path string) error { return os.Symlink(precious, path) }, "is no socket but a symbolic link"},
		{"dangling link", func(path string) error { return os.Symlink(path+"-missing", path) },
			"is no socket but a symbolic link"},
	} {
		path := filepath.Join(dir, x.name)
		if err := x.make(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		if _, err := listen(path); err == nil || !strings.Contains(err.Error(), x.want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: it was removed or replaced: %v", x.name, err)
		}
	}
	if content, err := os.ReadFile(precious); err != nil || string(content) != "precious" {
		t.Errorf("the file is now %q, %v", content, err)
	}
}

// While manxd does not run, clients get the reason; once it runs, they get answers on the same connection.
func TestManxdComesLater(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "bird.ctl")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- run(ctx, path, filepath.Join(folder, "manxd.sock")) }()
	var c net.Conn
	for c == nil {
		c, _ = net.Dial("unix", path)
		time.Sleep(time.Millisecond)
	}
	answers := bufio.NewScanner(c)
	next := func() string {
		answers.Scan()
		return answers.Text()
	}
	if hello := next(); !strings.HasPrefix(hello, "0001 BIRD 1.6.8 (Manx ") {
		t.Errorf("the greeting is %q", hello)
	}
	ask := func() string {
		if _, err := c.Write([]byte("show status\n")); err != nil {
			t.Fatal(err)
		}
		return next()
	}
	if a := ask(); !strings.HasPrefix(a, "8000 ") || !strings.Contains(a, "no such file") {
		t.Errorf("without manxd: %q", a)
	}
	if err := os.Symlink(serveManxd(t), filepath.Join(folder, "manxd.sock")); err != nil {
		t.Fatal(err)
	}
	for a := ask(); !strings.HasPrefix(a, "1000-BIRD 1.6.8"); a = ask() {
		if !strings.HasPrefix(a, "8000 ") {
			t.Fatalf("with manxd: %q", a)
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
	for _, name := range []string{"bird.ctl", "bird6.ctl"} {
		if _, err := os.Lstat(filepath.Join(folder, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind: %v", name, err)
		}
	}
}

func FuzzQuestions(f *testing.F) {
	f.Add("show route for")
	f.Add(`show protocols "[`)
	s := testServer(f, serveManxd(f), false)
	f.Fuzz(func(t *testing.T, q string) {
		if a := s.query(q); !strings.HasSuffix(a, "\n") || len(a) < 6 {
			t.Errorf("%q gives %q", q, a)
		}
	})
}
