package birdsock

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
)

var update = flag.Bool("update", false, "write the golden file")

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)

func ptr[T any](v T) *T { return &v }

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// testServer has a mesh peer that is up, a node peer that is down, one of each family and some routes.
func testServer(ipv6 bool) *Server {
	sessions := []speaker.SessionStatus{
		{Session: bgp.Session{Address: ip("10.0.0.2"), Port: 179, Type: bgp.SessionMesh, LocalAS: 64512, PeerAS: 64512},
			State: "Established", Phase: speaker.PhaseEstablished, Since: start.Add(time.Minute),
			PeerRouterID: ip("10.0.0.2"),
			HoldTime:     240 * time.Second, Keepalive: 80 * time.Second, LocalAddress: ip("10.0.0.1"),
			Capabilities: []string{"route-refresh", "4-octet-as"},
			Counters:     speaker.Counters{Received: 3, Accepted: 2, Advertised: 1}},
		{Session: bgp.Session{Address: ip("10.0.0.9"), Port: 1179, Type: bgp.SessionNode, LocalAS: 64512,
			PeerAS: 65000},
			State: "Active", Phase: speaker.PhaseFailed, Since: start, Reason: "connection refused\nby 10.0.0.9",
			LastError: "connection refused by 10.0.0.9"},
		{Session: bgp.Session{Address: ip("fd00::2"), Port: 179, Type: bgp.SessionGlobal, LocalAS: 64512,
			PeerAS: 65000}, State: "Idle", Phase: speaker.PhaseConnecting, Since: start},
	}
	table := []*speaker.TablePath{
		{Prefix: netip.MustParsePrefix("10.1.0.0/26"), NextHop: netip.IPv4Unspecified(), Best: true, Since: start,
			Origin: "IGP", LocalPref: ptr(uint32(2147482623))},
		{Prefix: netip.MustParsePrefix("10.1.0.64/26"), Peer: ip("10.0.0.2"), NextHop: ip("10.0.0.2"), Best: true,
			Since: start, Origin: "IGP", LocalPref: ptr(uint32(2147482623)),
			Communities: []uint32{65000<<16 | 1}, LargeCommunities: [][3]uint32{{1, 2, 3}},
			Extended: []bgp.ExtendedCommunity{{0, 2, 0xfc, 0, 0, 0, 0, 100}, {0x41, 3, 192, 0, 2, 1, 0, 7},
				{2, 9, 0, 1, 0, 0, 0, 9}, {3, 0x0c, 0, 0, 0, 0, 0, 8}}},
		{Prefix: netip.MustParsePrefix("10.1.0.64/26"), Peer: ip("10.0.0.9"), NextHop: ip("10.0.0.3"), Since: start,
			Origin: "Incomplete", ASPath: []uint32{65000, 65001},
			MED: ptr(uint32(100)), OriginatorID: ip("10.0.0.3"), ClusterList: []netip.Addr{ip("1.1.1.1")}},
	}
	return &Server{IPv6: ipv6, Log: zap.NewNop(), now: func() time.Time { return start.Add(time.Hour) }, Source: Source{
		Version: "v1", Started: start,
		Desired: func() (bgp.Desired, time.Time) {
			return bgp.Desired{Global: bgp.Global{RouterID: ip("10.0.0.1")}}, start
		},
		Sessions: func() []speaker.SessionStatus { return sessions },
		Session:  func(netip.Addr) (speaker.SessionStatus, bool) { return speaker.SessionStatus{}, false },
		Table: func(v6 bool) ([]*speaker.TablePath, error) {
			if v6 {
				return nil, errors.New("the BGP speaker is not running yet")
			}
			return table, nil
		},
		InterfaceOf: func(a netip.Addr) string { return "eth0" },
	}}
}

func (s *Server) query(request string) string {
	var b strings.Builder
	out := &reply{w: bufio.NewWriter(&b)}
	s.answer(request, out)
	out.w.Flush()
	return b.String()
}

func TestAnswers(t *testing.T) {
	var got strings.Builder
	for _, q := range []string{"show status", "show protocols", "show protocols all", `show protocols all "Mesh*"`,
		"show protocols Nope",
		"show route", "show route all", "show route for 10.1.0.70", "show route 10.1.0.0/26 all",
		"show route protocol Node_10_0_0_9_port_1179",
		"show route protocol Nope", "show route primary", "show route count", "show route stats",
		"show route for 192.0.2.1", "show route where net",
		"show", "", "restrict", "echo all", "configure", "disable Mesh_10_0_0_2", "show memory"} {
		got.WriteString(">>> " + q + "\n" + testServer(false).query(q))
	}
	got.WriteString(">>> IPv6: show protocols\n" + testServer(true).query("show protocols") + ">>> IPv6: show route\n" +
		testServer(true).query("show route"))
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
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v, %v", info, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- testServer(false).Serve(ctx, l) }()
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("second Listen: %v", err)
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
	l, err = Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
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
		if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), x.want) ||
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

func FuzzQuestions(f *testing.F) {
	f.Add("show route for")
	f.Add(`show protocols "[`)
	f.Fuzz(func(t *testing.T, q string) {
		if a := testServer(false).query(q); !strings.HasSuffix(a, "\n") || len(a) < 6 {
			t.Errorf("%q gives %q", q, a)
		}
	})
}
