package gobgpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v3 "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/apiguard"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane/kernel/sockdiag"
)

const nobody = 65534

// serveGuarded serves the API as manxd does, and returns its address.
func serveGuarded(t *testing.T, s *Service, cfg apiguard.Config) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cfg.Owner = func(c *net.TCPConn) (apiguard.Caller, error) {
		o, err := sockdiag.PeerOwner(nil, c)
		return apiguard.Caller{UID: o.UID, Process: func() (int, string) { return sockdiag.ProcessOf(o.Inode) }},
			err
	}
	cfg.Hint = "only some are served"
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	guard := apiguard.New(cfg)
	g := grpc.NewServer(guard.Options()...)
	s.Register(g)
	go func() { _ = g.Serve(guard.Listener(l)) }()
	t.Cleanup(g.Stop)
	return l.Addr().String()
}

func client(t *testing.T, address string) v3.GobgpApiClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// fixed: otherwise it would grow until everything is on its way to a client that does not read
		grpc.WithInitialWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return v3.NewGobgpApiClient(conn)
}

// newIdleService is the API of a speaker without sessions.
func newIdleService(t *testing.T) *Service {
	t.Helper()
	s := speaker.New(speaker.Config{})
	t.Cleanup(s.Close)
	if err := s.Set(t.Context(), bgp.Desired{Global: bgp.Global{LocalAS: 64512,
		RouterID: netip.MustParseAddr("192.0.2.1")}}); err != nil {
		t.Fatal(err)
	}
	return New(s, zap.NewNop())
}

const callVariable = "MANX_TEST_CALL" // the service that the process of TestCaller calls

// TestCaller is a process of another user: it prints the outcome of one call after the other, for each line that it
// reads.
func TestCaller(t *testing.T) {
	address := os.Getenv(callVariable)
	if address == "" {
		t.Skip("runs as a part of other tests only")
	}
	c := client(t, address)
	for one := make([]byte, 1); ; {
		if _, err := os.Stdin.Read(one); err != nil {
			return
		}
		_, err := c.GetBgp(t.Context(), &v3.GetBgpRequest{})
		if one[0] == 'r' {
			_, err = c.ResetPeer(t.Context(),
				&v3.ResetPeerRequest{Address: os.Getenv("MANX_TEST_PEER"), Soft: true,
					Direction: v3.ResetPeerRequest_OUT})
		}
		fmt.Printf("outcome: %s: %s\n", status.Code(err), strings.ReplaceAll(status.Convert(err).Message(), "\n", " "))
	}
}

// callAs has a user make the calls, one for each letter, and returns the outcomes and the process.
func callAs(t *testing.T, uid uint32, address, calls string, env ...string) (outcomes []string, pid int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestCaller$")
	cmd.Env = append(append(os.Environ(), callVariable+"="+address), env...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stdin = strings.NewReader(calls)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("user %d: %v: %s", uid, err, out)
	}
	for line := range strings.SplitSeq(string(out), "\n") {
		if text, ok := strings.CutPrefix(line, "outcome: "); ok {
			outcomes = append(outcomes, text)
		}
	}
	if len(outcomes) != len(calls) {
		t.Fatalf("user %d: %d outcomes of %d calls: %s", uid, len(outcomes), len(calls), out)
	}
	return outcomes, cmd.Process.Pid
}

func TestOnlyRootAndListedUsersAreServed(t *testing.T) {
	s := newIdleService(t)
	core, logs := observer.New(zapcore.WarnLevel)
	strict := serveGuarded(t, s, apiguard.Config{Log: zap.New(core)})
	open := serveGuarded(t, s, apiguard.Config{Users: []uint32{1234, nobody}})
	for _, x := range []struct {
		uid     uint32
		address string
		want    string
	}{
		{0, strict, "OK"}, {nobody, strict, "PermissionDenied: user ID 65534 is refused: only some are served"},
		{1234, strict, "PermissionDenied"},
		{0, open, "OK"}, {nobody, open, "OK"}, {1234, open, "OK"}, {1235, open, "PermissionDenied"},
	} {
		for _, have := range first(callAs(t, x.uid, x.address, "ggg")) {
			if !strings.HasPrefix(have, x.want) {
				t.Errorf("user %d: %s, want %s", x.uid, have, x.want)
			}
		}
	}
	if n := logs.FilterField(zap.Uint32("uid", nobody)).Len(); n != 1 {
		t.Errorf("%d lines about user %d, want one for all of the refused connections: %v", n, nobody, logs.All())
	}
	if p, err := exec.LookPath("gobgp"); err == nil {
		_, port, _ := net.SplitHostPort(strict)
		for uid, want := range map[uint32]string{0: "64512", nobody: "PermissionDenied"} {
			cmd := exec.Command(p, "-p", port, "global")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
				t.Errorf("gobgp as user %d: %s, want %s", uid, out, want)
			}
		}
	}
}

func first[A, B any](a A, _ B) A { return a }

// TestRefusedConnectionsCostNothing holds many connections of a refused user open, which send nothing or invalid bytes:
// root is served meanwhile, and they are closed.
func TestRefusedConnectionsCostNothing(t *testing.T) {
	s := newIdleService(t)
	address := serveGuarded(t, s, apiguard.Config{})
	before := runtime.NumGoroutine()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHolder$")
	cmd.Env = append(os.Environ(), holdVariable+"="+address)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, address).GetBgp(t.Context(), &v3.GetBgpRequest{}); err != nil {
		t.Errorf("root meanwhile: %v", err)
	}
	out, _ := io.ReadAll(stdout)
	if err := cmd.Wait(); err != nil || !strings.Contains(string(out), "all closed") {
		t.Errorf("%v: %s", err, out)
	}
	if after := runtime.NumGoroutine(); after > before+20 {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

const holdVariable = "MANX_TEST_HOLD"

// TestHolder is the process that holds the connections. It ends when all are closed by the other side.
func TestHolder(t *testing.T) {
	address := os.Getenv(holdVariable)
	if address == "" {
		t.Skip("runs as a part of other tests only")
	}
	var wg sync.WaitGroup
	for i := range 200 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 1:
			_, _ = io.WriteString(conn, strings.Repeat("rubbish", 100))
		case 2:
			_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x01")
		}
		wg.Go(func() {
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("connection %d is still open", i)
			}
			conn.Close()
		})
	}
	wg.Wait()
	fmt.Println("all closed")
}

// fill adds routes 10.x.y.z/32 from n on to the speaker's table.
func fill(t *testing.T, s *Service, from, n int) {
	t.Helper()
	var list []*apiutil.Path
	for i := from; i < from+n; i++ {
		nlri, err := gobgp.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8),
			byte(i)}), 32))
		if err != nil {
			t.Fatal(err)
		}
		hop, err := gobgp.NewPathAttributeNextHop(netip.MustParseAddr("192.0.2.9"))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &apiutil.Path{Family: gobgp.RF_IPv4_UC, Nlri: nlri, Attrs: []gobgp.PathAttributeInterface{
			gobgp.NewPathAttributeOrigin(0), hop, gobgp.NewPathAttributeCommunities([]uint32{1, 2, 3})}})
	}
	for part := range slices.Chunk(list, 1000) {
		if _, err := s.speaker.Server().AddPath(apiutil.AddPathRequest{Paths: part}); err != nil {
			t.Fatal(err)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

const mib = 1 << 20

// TestListingsComeInPages reads a table of several pages to its end, in order.
func TestListingsComeInPages(t *testing.T) {
	s := newIdleService(t)
	s.tables.page = 100
	fill(t, s, 0, 1234)
	c := client(t, serveGuarded(t, s, apiguard.Config{}))
	stream, err := c.ListPath(t.Context(), &v3.ListPathRequest{Family: &v3.Family{Afi: v3.Family_AFI_IP,
		Safi: v3.Family_SAFI_UNICAST}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1234 {
		r, err := stream.Recv()
		if want := fmt.Sprintf("10.0.%d.%d/32", i>>8, i&255); err != nil || r.Destination.Prefix != want ||
			len(r.Destination.Paths) != 1 {
			t.Fatalf("number %d: %v, %v; want %s", i, r, err, want)
		}
	}
	if r, err := stream.Recv(); err != io.EOF {
		t.Errorf("after the last: %v, %v", r, err)
	}
}

// TestUnreadListings opens 20 listings of a big table and reads none.
func TestUnreadListings(t *testing.T) {
	s := newIdleService(t)
	s.tables.page = 4096
	fill(t, s, 0, 30_000)
	address := serveGuarded(t, s, apiguard.Config{})
	before := heap()
	request := &v3.ListPathRequest{Family: &v3.Family{Afi: v3.Family_AFI_IP, Safi: v3.Family_SAFI_UNICAST},
		SortType: v3.ListPathRequest_PREFIX}
	for range 20 {
		if _, err := client(t, address).ListPath(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	// Each listing under way waits for its reader.
	await(t, "listings at work", func() bool { return s.tables.slots.Busy() == listingsEach })
	time.Sleep(2 * time.Second) // nothing more happens: it is the memory that counts
	if grown := int64(heap()) - int64(before); grown > 40*mib {
		t.Errorf("the heap has grown by %d MiB", grown/mib)
	} else {
		t.Logf("the heap has grown by %d KiB", grown/1024)
	}
}

func await(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout while waiting for %s", what)
		}
	}
}

// TestSlowReadersAreCutOff has a listing and a watch that are not read: both end, and a late reader gets the reason.
func TestSlowReadersAreCutOff(t *testing.T) {
	s := newIdleService(t)
	fill(t, s, 0, 5000)
	c := client(t, serveGuarded(t, s, apiguard.Config{SendTime: 300 * time.Millisecond}))
	listing, err := c.ListPath(t.Context(), &v3.ListPathRequest{Family: &v3.Family{Afi: v3.Family_AFI_IP,
		Safi: v3.Family_SAFI_UNICAST}})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := c.WatchEvent(t.Context(), watchBest(true))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the calls to begin", func() bool { return s.tables.slots.Busy() > 0 })
	await(t, "the calls to end", func() bool { return s.tables.slots.Busy() == 0 })
	cut := func(name string, recv func() error) {
		t.Helper()
		for err = nil; err == nil; err = recv() {
		}
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "did not read") {
			t.Errorf("%s: %v, want that it was cut off", name, err)
		}
	}
	cut("listing", func() error { _, err := listing.Recv(); return err })
	cut("watch", func() error { _, err := watch.Recv(); return err })
}

func watchBest(init bool) *v3.WatchEventRequest {
	return &v3.WatchEventRequest{Table: &v3.WatchEventRequest_Table{Filters: []*v3.WatchEventRequest_Table_Filter{
		{Type: v3.WatchEventRequest_Table_Filter_BEST, Init: init}}}}
}

// TestUnreadWatch changes routes again and again under an unread watch.
func TestUnreadWatch(t *testing.T) {
	s := newIdleService(t)
	fill(t, s, 0, 2000)
	c := client(t, serveGuarded(t, s, apiguard.Config{SendTime: time.Hour}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := c.WatchEvent(ctx, watchBest(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil { // it runs
		t.Fatal(err)
	}
	fill(t, s, 0, 50_000)
	before := heap()
	fill(t, s, 0, 50_000)
	fill(t, s, 0, 50_000)
	if grown := int64(heap()) - int64(before); grown > 16*mib {
		t.Errorf("the heap has grown by %d MiB", grown/mib)
	} else {
		t.Logf("the heap has grown by %d KiB", grown/1024)
	}
	for err = nil; err == nil; _, err = watch.Recv() {
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "behind") {
		t.Errorf("%v, want that it is too far behind", err)
	}
}

// TestCaps opens one connection, and one watch, more than a user may have.
func TestCaps(t *testing.T) {
	s := newIdleService(t)
	address := serveGuarded(t, s, apiguard.Config{})
	peers := &v3.WatchEventRequest{Peer: &v3.WatchEventRequest_Peer{}}
	for i := range watchesEach + 1 {
		watch, err := client(t, address).WatchEvent(t.Context(), peers)
		if err != nil {
			t.Fatal(err)
		}
		_, err = watch.Recv()
		if more := i == watchesEach; more != (status.Code(err) == codes.ResourceExhausted) || !more && err != nil {
			t.Errorf("watch number %d: %v", i+1, err)
		}
	}
	var err error
	for i := range 20 {
		if _, err = client(t, address).GetBgp(t.Context(), &v3.GetBgpRequest{}); err != nil && i+watchesEach < 15 {
			t.Errorf("connection number %d: %v", i+watchesEach+2, err)
		}
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "too many connections") {
		t.Errorf("one connection too many: %v", err)
	}
	if got := first(callAs(t, nobody, serveGuarded(t, s, apiguard.Config{Users: []uint32{nobody}}),
		"g")); got[0] != "OK: " {
		t.Errorf("another user: %v", got)
	}
}

// TestSoftResetsAreLimited runs a program that resets a session again and again.
func TestSoftResetsAreLimited(t *testing.T) {
	scene := newScene(t)
	scene.start(t)
	clis := scene.clis(t) // before the resets: the limit recovers while the programs are built
	core, logs := observer.New(zapcore.InfoLevel)
	s := New(scene.speaker, zap.New(core))
	address := serveGuarded(t, s, apiguard.Config{Users: []uint32{nobody}})
	outcomes, pid := callAs(t, nobody, address, strings.Repeat("r", 200), "MANX_TEST_PEER="+scene.peer4.String())
	done := 0
	for _, o := range outcomes {
		switch {
		case strings.HasPrefix(o, "OK"):
			done++
		case !strings.HasPrefix(o, "ResourceExhausted") || !strings.Contains(o, "try again in"):
			t.Errorf("outcome %q", o)
		}
	}
	if done < 6 || done > 100 {
		t.Errorf("%d of 200 resets are done, want 6 in a row and some more", done)
	}
	lines := logs.FilterMessageSnippet("softly reset").All()
	if len(lines) != done {
		t.Errorf("%d lines about %d resets", len(lines), done)
	}
	if f := lines[0].ContextMap(); f["uid"] != uint32(nobody) || f["pid"] != int64(pid) || f["process"] == "" ||
		f["peer"] != scene.peer4.String() {
		t.Errorf("the line has %v, want user %d, process %d and peer %s", f, nobody, pid, scene.peer4)
	}
	// The limit holds on GoBGP's own socket, too.
	for _, c := range clis {
		if c.name == "v4.8" {
			if out, err := c.command("neighbor", scene.peer4.String(), "softresetin").CombinedOutput(); err == nil ||
				!strings.Contains(string(out), "try again in") {
				t.Errorf("%s: %v: %s", c.name, err, out)
			}
		}
	}
}
