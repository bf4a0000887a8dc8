package speaker

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/integration/ports"
)

// BGP does not depend on the socket: a file at its path stays, and the sessions come up.
func TestAFileInThePlaceOfTheGobgpSocketStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gobgp.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, d := testSpeaker(t, Config{GobgpSocket: path})
	d.Sessions = []bgp.Session{passive("127.0.1.91")}
	mustSet(t, s, d)
	s.Close()
	if content, err := os.ReadFile(path); err != nil || string(content) != "precious" {
		t.Errorf("the file is now %q, %v", content, err)
	}
}

func TestGobgpSocketReadsOnly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gobgp.sock")
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	killed.SetUnlinkOnClose(false)
	killed.Close()
	s, d := testSpeaker(t, Config{GobgpSocket: path})
	sess := passive("127.0.1.90")
	sess.Password = "hunter2"
	d.Sessions = []bgp.Session{sess}
	mustSet(t, s, d)
	// A new server serves the same socket.
	d.Global.RouterID = ip("10.99.0.9")
	mustSet(t, s, d)

	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode()&os.ModeSocket == 0 {
		t.Fatalf("socket: %v %v, want mode 0600", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, ctx := api.NewGoBgpServiceClient(conn), context.Background()
	g, err := client.GetBgp(ctx, &api.GetBgpRequest{})
	if err != nil || g.GetGlobal().GetRouterId() != "10.99.0.9" {
		t.Fatalf("GetBgp: %v %v", g, err)
	}
	stream, err := client.ListPeer(ctx, &api.ListPeerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	peer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if text := peer.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "127.0.1.90") {
		t.Errorf("ListPeer: %s", text)
	}
	if id := peer.GetPeer().GetState().GetRouterId(); id != "" {
		t.Errorf("router ID of a peer that is down: %q", id)
	}
	for name, call := range map[string]func() error{
		"DeletePeer": func() error {
			_, err := client.DeletePeer(ctx, &api.DeletePeerRequest{Address: "127.0.1.90"})
			return err
		},
		"AddPath":  func() error { _, err := client.AddPath(ctx, &api.AddPathRequest{}); return err },
		"StopBgp":  func() error { _, err := client.StopBgp(ctx, &api.StopBgpRequest{}); return err },
		"SetLevel": func() error { _, err := client.SetLogLevel(ctx, &api.SetLogLevelRequest{}); return err },
		"AddPathStream": func() error {
			st, err := client.AddPathStream(ctx)
			if err != nil {
				return err
			}
			_, err = st.CloseAndRecv()
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "BGPPeer") {
			t.Errorf("%s: %v, want PermissionDenied that names the right way", name, err)
		}
	}
	if _, err := client.ResetPeer(ctx, &api.ResetPeerRequest{Address: "127.0.1.90"}); status.Code(
		err) != codes.FailedPrecondition {
		t.Errorf("hard reset of a session that is down: %v", err)
	}
	if _, err := client.ResetPeer(ctx, &api.ResetPeerRequest{Address: "127.0.1.90", Soft: true,
		Direction: api.ResetPeerRequest_DIRECTION_OUT}); err != nil {
		t.Errorf("soft reset: %v", err)
	}
	s.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there after the end: %v", err)
	}
}

// GoBGP's own API is for root alone, but root's programs have limits, too.
func TestGobgpSocketIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gobgp.sock")
	core, logs := observer.New(zapcore.InfoLevel)
	s, d := testSpeaker(t, Config{GobgpSocket: path, Logger: zap.New(core)})
	d.Sessions = []bgp.Session{passive("127.0.1.94")}
	mustSet(t, s, d)
	connect := func() api.GoBgpServiceClient {
		conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return api.NewGoBgpServiceClient(conn)
	}
	for i := range 17 {
		watch, err := connect().WatchEvent(t.Context(), &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); (i == 16) != (status.Code(err) == codes.ResourceExhausted) {
			t.Errorf("stream number %d: %v", i+1, err)
		}
	}
	for i := range 30 {
		_, err := connect().ResetPeer(t.Context(),
			&api.ResetPeerRequest{Address: "127.0.1.94", Soft: true, Direction: api.ResetPeerRequest_DIRECTION_IN})
		if i < peerResets && err != nil || i == 29 && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("reset number %d: %v", i+1, err)
		}
	}
	lines := logs.FilterMessageSnippet("reset through gobgp.sock").All()
	if len(lines) < peerResets || len(lines) == 30 || lines[0].ContextMap()["pid"] != int64(os.Getpid()) ||
		lines[0].ContextMap()["uid"] != uint32(os.Geteuid()) {
		t.Errorf("log: %v", lines)
	}
}

// GoBGP copies a table for each listing, and holds the copy until its reader has all of it.
func TestGobgpSocketListsAFewAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gobgp.sock")
	s, d := testSpeaker(t, Config{GobgpSocket: path})
	for i := range 5000 {
		d.Originated = append(d.Originated, bgp.Origin{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7,
			byte(i >> 8), byte(i)}), 32), LocalPref: 100})
	}
	mustSet(t, s, d)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10)) // fixed: it would grow otherwise until the whole table is on its way
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list := func() (first func() error, cancel context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := api.NewGoBgpServiceClient(conn).ListPath(ctx,
			&api.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL,
				Family: &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}})
		if err != nil {
			t.Fatal(err)
		}
		return func() error { _, err := stream.Recv(); return err }, cancel
	}
	var ends []context.CancelFunc
	for range listsAtOnce {
		first, cancel := list()
		ends = append(ends, cancel)
		if err := first(); err != nil {
			t.Fatal(err)
		}
	}
	first, cancel := list()
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- first() }()
	select {
	case err := <-got:
		t.Fatalf("one listing more than there may be is served: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	for _, end := range ends {
		end()
	}
	if err := <-got; err != nil {
		t.Errorf("the listing that waited: %v", err)
	}
}

func TestResetLimit(t *testing.T) {
	var l ResetLimit
	now := time.Now()
	allow := func(peer string, n int) (uint64, error) { return l.Allow(ip(peer), n, now) }
	for i := range peerResets {
		if _, err := allow("10.0.0.1", 1); err != nil {
			t.Errorf("number %d: %v", i, err)
		}
	}
	for range 3 {
		if _, err := allow("10.0.0.1", 1); err == nil || !strings.Contains(err.Error(),
			"one session: 6 in a row, then one in 10s; try again in 11s") {
			t.Errorf("one too many: %v", err)
		}
	}
	if refused, err := allow("10.0.0.2", 2); err != nil || refused != 3 { // refused resets do not count for others
		t.Errorf("another peer: %d, %v", refused, err)
	}
	now = now.Add(peerResetEvery)
	if _, err := allow("10.0.0.1", 1); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	for i := range resetsAtOnce {
		_, _ = allow(fmt.Sprintf("10.0.1.%d", i), 1)
	}
	if _, err := allow("10.0.2.1", 1); err == nil || !strings.Contains(err.Error(), "all sessions together") {
		t.Errorf("all too many: %v", err)
	}
}

func TestLogHasNoPasswords(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	s, d := testSpeaker(t, Config{Logger: zap.New(core)})
	sess := passive("127.0.1.91")
	for _, password := range []string{"hunter2", "hunter3", ""} {
		sess.Password = password
		d.Sessions = []bgp.Session{sess}
		mustSet(t, s, d)
	}
	d.Sessions = nil
	mustSet(t, s, d)
	if logs.Len() < 5 {
		t.Fatalf("%d log entries only", logs.Len())
	}
	enc := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	for _, e := range logs.All() {
		b, err := enc.EncodeEntry(e.Entry, e.Context)
		if err != nil || strings.Contains(b.String(), "hunter") {
			t.Errorf("log entry %s, %v", b, err)
		}
	}
}

func TestListenerInUse(t *testing.T) {
	t.Parallel()
	first, d := testSpeaker(t, Config{})
	mustSet(t, first, d)
	second, _ := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.92")}
	err := second.Set(t.Context(), d)
	if err == nil || !strings.Contains(err.Error(), "another BGP speaker") {
		t.Fatalf("Set: %v", err)
	}
	if st := second.Sessions(); len(st) != 1 || st[0].Phase != PhaseFailed ||
		!strings.Contains(st[0].Reason, "another BGP speaker") {
		t.Errorf("status %+v", st)
	}
	if ok, reason := second.Ready(); ok || !strings.Contains(reason, "another BGP speaker") {
		t.Errorf("ready %v: %s", ok, reason)
	}
	d.Global.ListenPort = ports.Free(t, "127.0.0.1")
	mustSet(t, second, d) // the next Set tries again
	if st := second.Sessions(); st[0].Phase != PhaseWaiting {
		t.Errorf("status %+v", st)
	}
}

func TestGlobalIsChecked(t *testing.T) {
	for want, g := range map[string]bgp.Global{
		"local AS is 0": {RouterID: ip("1.1.1.1")},
		"router ID":     {LocalAS: 1},
		"not an IPv4":   {LocalAS: 1, RouterID: ip("::1")},
	} {
		s, _ := testSpeaker(t, Config{})
		if err := s.Set(t.Context(), bgp.Desired{Global: g}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", g, err, want)
		}
		if s.Server() != nil {
			t.Error("a server without Set")
		}
	}
}
