package main_test

import (
	"context"
	"flag"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
	"github.com/manxnet/manx/proto/server"
)

var updateGolden = flag.Bool("update", false, "write the golden files instead of comparing")

// golden compares the output of a command with a file. Read the difference before you commit an update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name+".golden")
	if *updateGolden {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: printed\n%s\nwant\n%s", name, got, want)
	}
}

// playedDaemon returns the responses for the tests of the output.
type playedDaemon struct {
	manxv1.UnimplementedManxServer
	mu            sync.Mutex // of the following fields, in tests and while a request is answered
	status        *manxv1.GetStatusResponse
	peers         []*manxv1.Peer
	endpoints     []*manxv1.Endpoint
	routeRequests chan *manxv1.ListRoutesRequest

	peerRouteRequests chan *manxv1.ListPeerRoutesRequest
	dropRequests      chan *manxv1.WatchDropsRequest
	many              int // routes, if not 0
	retried           *manxv1.RetryResponse
}

// change changes the daemon's later responses.
func (d *playedDaemon) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// cloneResponse returns a copy: the original may change before it is sent.
func (d *playedDaemon) cloneResponse(
	ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	response, err := handle(ctx, r)
	if err != nil {
		return nil, err
	}
	return proto.Clone(response.(proto.Message)), nil
}

func (d *playedDaemon) GetStatus(context.Context, *manxv1.GetStatusRequest) (*manxv1.GetStatusResponse, error) {
	return d.status, nil
}

func (d *playedDaemon) ListPeers(_ context.Context, r *manxv1.ListPeersRequest) (*manxv1.ListPeersResponse, error) {
	all := &manxv1.ListPeersResponse{Peers: d.peers}
	if r.GetRequestedBy() == "" {
		return all, nil
	}
	found := &manxv1.ListPeersResponse{}
	for _, p := range d.peers {
		if slices.Contains(p.GetRequestedBy(), r.GetRequestedBy()) {
			found.Peers = append(found.Peers, p)
		}
	}
	if r.GetRequestedBy() == "BGPPeer/tor-1" || r.GetRequestedBy() == "BGPPeer/tor-9" {
		found.Conflicts = []*manxv1.PeerConflict{
			{Address: "192.0.2.1", Kept: "BGPPeer/tor-1", Dropped: []string{"BGPPeer/tor-9"},
				Reason: "both want AS numbers of their own for one address"}}
	}
	return found, nil
}

func (d *playedDaemon) ListPeerRoutes(
	r *manxv1.ListPeerRoutesRequest, stream grpc.ServerStreamingServer[manxv1.ListPeerRoutesResponse],
) error {
	d.peerRouteRequests <- r
	if r.GetPeer() == "nothing" {
		return nil
	}
	for _, p := range []*manxv1.PeerRoute{
		{Prefix: "10.65.1.0/26", Peer: "10.0.0.2", Direction: "in", Accepted: true, Rule: "default: no filter",
			NextHop: "10.0.0.2", Origin: "IGP", LocalPref: proto.Uint32(2147482623)},
		{Prefix: "172.16.0.0/12", Peer: "10.0.0.2", Direction: "in", Rule: "BGPFilter/f1 importV4[0]",
			NextHop: "10.0.0.2", Origin: "Incomplete", AsPath: []uint32{65001, 65002},
			Med: proto.Uint32(0), Communities: []string{"65001:7"}, LargeCommunities: []string{"65001:1:2"},
			ExtendedCommunities: []string{"rt:65001:9"}},
	} { // in two responses
		if err := stream.Send(&manxv1.ListPeerRoutesResponse{Routes: []*manxv1.PeerRoute{p}}); err != nil {
			return err
		}
	}
	return nil
}

func (d *playedDaemon) GetPeer(_ context.Context, r *manxv1.GetPeerRequest) (*manxv1.GetPeerResponse, error) {
	for _, p := range d.peers {
		if p.GetAddress() == r.GetAddress() {
			p = proto.CloneOf(p)
			if p.Prefixes != nil {
				p.Prefixes.Advertised = proto.Uint64(1) // lists omit it
			}
			return &manxv1.GetPeerResponse{Peer: p}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no session with %s", r.GetAddress())
}

func (d *playedDaemon) ListPeerTransitions(
	_ context.Context, r *manxv1.ListPeerTransitionsRequest,
) (*manxv1.ListPeerTransitionsResponse, error) {
	const at = 1772600767000
	all := &manxv1.ListPeerTransitionsResponse{}
	for _, x := range []*manxv1.PeerTransition{
		{AtUnixMs: at, Address: "192.0.2.1", From: "Connecting", To: "Established", LastedMs: 2100, Bfd: "Up",
			Reason: "established with AS 64513, router ID 192.0.2.1", RequestedBy: []string{"BGPPeer/tor-1"}},
		{AtUnixMs: at + 3_600_000, Address: "192.0.2.1", From: "Established", To: "Failed", LastedMs: 3_600_000,
			Flaps: 1, Routes: "kept", Bfd: "Down", Reason: "the connection was lost", RequestedBy: []string{
				"BGPPeer/tor-1"}},
	} {
		if r.GetPeer() == "" || r.GetPeer() == "tor-1" || r.GetPeer() == x.GetAddress() {
			all.Transitions = append(all.Transitions, x)
		}
	}
	return all, nil
}

func (d *playedDaemon) ListRoutes(_ context.Context, r *manxv1.ListRoutesRequest) (*manxv1.ListRoutesResponse, error) {
	d.routeRequests <- r
	if d.many > 0 {
		many := &manxv1.ListRoutesResponse{}
		for range d.many {
			many.Routes = append(many.Routes, &manxv1.Route{Prefix: "10.65.0.1/32", Phase: "applied",
				Desired: "10.65.0.1/32 via 10.0.0.1 dev eth0 proto bird metric 1024"})
		}
		return many, nil
	}
	return &manxv1.ListRoutesResponse{Routes: []*manxv1.Route{
		{Prefix: "10.65.0.0/26", Source: "block", Desired: "blackhole 10.65.0.0/26 proto bird",
			Actual: []string{"blackhole 10.65.0.0/26 proto bird"}, Phase: "applied"},
		{Prefix: "10.65.0.1/32", Source: "workload", Endpoint: "shop/web",
			Desired: "10.65.0.1/32 dev cali1 proto 80 scope link metric 1024",
			Actual:  []string{"10.65.0.1/32 dev cali9 proto 80 scope link metric 1024"}, Phase: "failed",
			Reason: "change route: operation not permitted"},
		{Prefix: "10.65.1.0/26", Source: "bgp", Phase: "blocked", Reason: "next hop 10.9.9.9 cannot be reached"},
		{Prefix: "10.65.2.0/26", Actual: []string{"10.65.2.0/26 via 10.0.0.9 dev eth0 proto bird"}, Phase: "leftover",
			Reason: "left by an earlier run"},
	}}, nil
}

// Watch ends after its last event.
func (d *playedDaemon) Watch(r *manxv1.WatchRequest, stream grpc.ServerStreamingServer[manxv1.WatchResponse]) error {
	var peer *manxv1.Peer
	var status *manxv1.GetStatusResponse
	d.change(func() { peer, status = proto.CloneOf(d.peers[1]), proto.CloneOf(d.status) })
	status.Datastore.Kinds = nil
	if off := status.GetBgpOff(); off != "" && r.GetPeers() {
		return noBGP(off)
	}
	for _, e := range []*manxv1.WatchResponse{
		{Event: &manxv1.WatchResponse_Peer{Peer: peer}},
		{Event: &manxv1.WatchResponse_Synced{Synced: true}},
		{Event: &manxv1.WatchResponse_Route{Route: &manxv1.Route{Prefix: "10.65.1.0/26", Phase: "blocked",
			Reason: "next hop 10.9.9.9 cannot be reached"}}},
		{Event: &manxv1.WatchResponse_RouteGone{RouteGone: "10.65.1.0/26"}},
		{Event: &manxv1.WatchResponse_PeerGone{PeerGone: "192.0.2.1"}},
		{Event: &manxv1.WatchResponse_Status{Status: status}},
	} {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func noBGP(off string) error { return status.Error(codes.FailedPrecondition, off) }

// On a node without BGP the routes are watched, and sessions alone are refused.
func TestWatchWithoutBGP(t *testing.T) {
	s, d := newPlayedDaemon(t)
	d.change(func() { d.status.BgpOff = "BGP is off (here)" })
	r := s.runWithDaemon("watch")
	if r.code != 0 || r.err != "BGP is off (here): there are no sessions, only routes\n" ||
		!strings.Contains(r.out, "route 10.65.1.0/26") {
		t.Errorf("exit code %d, %q, %q", r.code, r.err, r.out)
	}
	s.runWithDaemon("watch", "--peers").want(t, 1, "", "BGP is off (here)")
}

func (d *playedDaemon) ListNotices(context.Context, *manxv1.ListNoticesRequest) (*manxv1.ListNoticesResponse, error) {
	return &manxv1.ListNoticesResponse{Notices: []*manxv1.Notice{
		{Topic: "bgp", Subject: "BGPPeer/tor-2", Text: "spec.password is missing"}}}, nil
}

func (d *playedDaemon) ListAddresses(
	context.Context, *manxv1.ListAddressesRequest,
) (*manxv1.ListAddressesResponse, error) {
	return &manxv1.ListAddressesResponse{Addresses: []*manxv1.AddressCandidate{
		{Family: "IPv4", Address: "172.17.0.1/16", Interface: "docker0", Method: "first-found",
			Reason: "skipped: the interface is one of Docker's"},
		{Family: "IPv4", Address: "10.0.0.1/24", Interface: "eth0", Method: "first-found", Chosen: true,
			Reason: "first valid address"},
	}}, nil
}

func (d *playedDaemon) ListHostObjects(
	_ context.Context, q *manxv1.ListHostObjectsRequest,
) (*manxv1.ListHostObjectsResponse, error) {
	r := &manxv1.ListHostObjectsResponse{Objects: []*manxv1.HostObject{
		{Target: "device", Name: "mtu tunl0", Phase: "failed", Reason: "set the MTU: operation not permitted",
			Desired: "1480", Actual: "1500"},
		{Target: "sysctl", Name: "sysctl net/ipv4/ip_forward", Phase: "applied", Desired: "1", Actual: "1"},
	}}
	if q.GetTarget() != "" {
		r.Objects = slices.DeleteFunc(r.Objects, func(x *manxv1.HostObject) bool {
			return x.GetTarget() != q.GetTarget()
		})
	}
	return r, nil
}

func (d *playedDaemon) ListQuarantined(
	context.Context, *manxv1.ListQuarantinedRequest,
) (*manxv1.ListQuarantinedResponse, error) {
	return &manxv1.ListQuarantinedResponse{Objects: []*manxv1.QuarantinedObject{
		{Kind: "BGPPeer", Name: "broken", Reason: "unexpected end of JSON input"}}}, nil
}

func (d *playedDaemon) ListEndpoints(
	context.Context, *manxv1.ListEndpointsRequest,
) (*manxv1.ListEndpointsResponse, error) {
	return &manxv1.ListEndpointsResponse{Endpoints: d.endpoints}, nil
}

// newPlayedDaemon returns a healthy node with four sessions, one of which is up. Its times are so far in the past that
// the output does not depend on the clock of the test.
func newPlayedDaemon(t *testing.T) (shell, *playedDaemon) {
	t.Helper()
	const since = 1772600767000 // 2026-03-04 05:06:07 UTC
	d := &playedDaemon{
		routeRequests:     make(chan *manxv1.ListRoutesRequest, 1),
		peerRouteRequests: make(chan *manxv1.ListPeerRoutesRequest, 1),
		dropRequests:      make(chan *manxv1.WatchDropsRequest, 2),
		status: &manxv1.GetStatusResponse{
			Node: "node-1", Ipv4: "10.0.0.1/24", AsNumber: 64512, RouterId: "10.0.0.1", StartedUnixMs: since,
			Ready:   true,
			Version: &manxv1.Version{Manx: "v1.0.0", Commit: "abc", Gobgp: "v4.8.0", Go: "1.26"},
			Datastore: &manxv1.DatastoreStatus{Type: "embedded", Connected: true, InSync: true, Revision: 4711,
				Objects: 42, Quarantined: 1, Kinds: []*manxv1.KindStatus{
					{Kind: "IPPool", Source: "https://10.0.0.9:2379", SinceUnixMs: since, AnsweredUnixMs: since,
						Objects: 2, Revision: 4700, Reason: "connection refused"},
					{Kind: "Node", Source: "https://10.0.0.9:2379", InSync: true, SinceUnixMs: since,
						AnsweredUnixMs: since, Objects: 40, Quarantined: 1, Revision: 4711},
				}},
			Checks:    []*manxv1.Check{{Name: "datastore", Ok: true, Reason: "in sync"}},
			Peers:     map[string]uint32{"Established": 1, "Active": 2, "Connect": 1},
			Routes:    map[string]uint32{"applied": 12, "blocked": 1},
			Endpoints: map[string]uint32{"applied": 2}, Notices: 1,
		},
		peers: []*manxv1.Peer{
			{Address: "10.0.0.2", Port: 179, Type: "mesh", PeerAs: 64512, LocalAs: 64512, State: "Established",
				Phase: "Established", Reason: "routes are exchanged",
				SinceUnixMs: since, EstablishedUnixMs: since, RequestedBy: []string{"BGPConfiguration/default"},
				Source: "10.0.0.1", Password: "none", Flaps: 1,
				LastError: "hold timer expired", LastErrorAtUnixMs: since, Prefixes: &manxv1.PeerPrefixes{
					Received: 3, Accepted: 2},
				Negotiated: &manxv1.Negotiated{HoldSeconds: 240, KeepaliveSeconds: 80, RouterId: "10.0.0.2",
					Family: "IPv4", Capabilities: []string{"4-byte AS", "route refresh"}, GracefulRestart: true,
					RestartSeconds: 120}},
			{Address: "192.0.2.1", Port: 1179, Type: "global", PeerAs: 64513, LocalAs: 64512, State: "Active",
				Phase: "Failed", Reason: "connection refused by 192.0.2.1: nothing listens on port 1179",
				SinceUnixMs: since, RequestedBy: []string{"BGPPeer/tor-1"}},
			{Address: "2001:db8::1", Port: 1179, Type: "node", PeerAs: 64514, LocalAs: 64512, State: "Active",
				Phase: "Waiting", Reason: "waiting for 2001:db8::1 to connect: this side is passive",
				SinceUnixMs: since, Passive: true},
		},
	}
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(d.cloneResponse))
	manxv1.RegisterManxServer(g, d)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return shell{t, []string{"MANX_TEST_SOCKET=" + socket}}, d
}

// runWithDaemon runs a command on the played daemon.
func (s shell) runWithDaemon(args ...string) result {
	socket := strings.TrimPrefix(s.env[0], "MANX_TEST_SOCKET=")
	return s.run(append(args, "--socket", socket)...)
}

// WatchDrops ends after its last event.
func (d *playedDaemon) WatchDrops(r *manxv1.WatchDropsRequest, stream grpc.ServerStreamingServer[manxv1.Drop]) error {
	d.dropRequests <- r
	for _, e := range []*manxv1.Drop{
		{TimeUnixMs: 1000, Action: "log", Rule: "NetworkPolicy/shop/web ingress 1", Source: "10.65.0.1",
			SourcePort: 4000, Destination: "10.65.0.2", DestinationPort: 80,
			Protocol: "tcp", IcmpType: -1, IcmpCode: -1, In: "cali1", Out: "cali2", SourceEndpoint: "shop/db",
			DestinationEndpoint: "shop/web", Packets: 1},
		{TimeUnixMs: 2000, Action: "drop", Rule: "end of tier default", Source: "fd00::1", Destination: "fd00::2",
			Protocol: "icmpv6", IcmpType: 128, Packets: 7, Suppressed: 3},
	} {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return nil
}

// ages are times before now, in days: the test's clock goes on.
var ages = regexp.MustCompile(`\b\d+d\b`)

var clocks = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d`)

// wideAges takes the padding out, too: it depends on the length of the ages.
func wideAges(text string) string {
	return strings.Join(tableLines(ages.ReplaceAllString(text, "AGE")), "\n") + "\n"
}

func TestOutputOfQuestionsToTheDaemon(t *testing.T) {
	s, d := newPlayedDaemon(t)
	for name, args := range map[string][]string{
		"node-status-json": {"node", "status", "-o", "json"}, "node-status": {"node", "status"},
		"node-addresses":      {"node", "addresses"},
		"node-addresses-json": {"node", "addresses", "-o", "json"}, "node-problems": {"node", "problems"},
		"routes": {"routes"}, "history": {"history"}, "history-json": {"history", "peer", "tor-1", "-o", "json"},
		"hostobjects": {"get", "hostobjects"}, "hostobjects-wide": {"get", "hostobjects", "sysctl", "-o", "wide"},
		"status": {"status"}, "status-json": {"status", "-o", "json"}, "status-yaml": {"status", "-o", "yaml"},
	} {
		r := s.runWithDaemon(args...)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s: exit code %d, %s", name, r.code, r.err)
		}
		golden(t, name, ages.ReplaceAllString(r.out, "AGE"))
		if name == "routes" {
			<-d.routeRequests
		}
	}
	golden(t, "status-wide", wideAges(s.runWithDaemon("status", "-o", "wide").out))
	golden(t, "node-status-wide", wideAges(s.runWithDaemon("node", "status", "-o", "wide").out))
	watched := s.runWithDaemon("watch")
	golden(t, "watch", clocks.ReplaceAllString(watched.out, "CLOCK"))
	golden(t, "watch-json", s.runWithDaemon("watch", "-o", "json").out)
	drops := s.runWithDaemon("drops", "--action", "log", "--rule=web", "--port=80", "--net=10.0.0.0/8",
		"--endpoint=shop")
	golden(t, "drops", clocks.ReplaceAllString(drops.out, "CLOCK"))
	want := &manxv1.WatchDropsRequest{Action: "log", Rule: "web", Port: 80, Net: "10.0.0.0/8", Endpoint: "shop"}
	if got := <-d.dropRequests; !proto.Equal(got, want) {
		t.Errorf("requested %v, want %v", got, want)
	}
	golden(t, "drops-json", s.runWithDaemon("drops", "-o", "json").out)
	s.runWithDaemon("history", "peer", "10.0.0.2").want(t, 0, "", "No changes so far.")
	s.runWithDaemon("node", "endpoints").want(t, 0, "", "This node has no workload endpoints.")
}

func TestRoutesPassesFiltersOn(t *testing.T) {
	s, d := newPlayedDaemon(t)
	s.runWithDaemon("routes", "--within", "10.65.0.0/16", "--phase", "failed,blocked", "--source", "bgp",
		"--no-headers")
	if q := <-d.routeRequests; q.GetWithin() != "10.65.0.0/16" || len(q.GetPhases()) != 2 ||
		q.GetPhases()[1] != "blocked" ||
		q.GetSources()[0] != "bgp" {
		t.Errorf("requested %v", q)
	}
	for _, p := range []reconcile.Phase{reconcile.Pending, reconcile.Applied, reconcile.Failed, reconcile.Blocked,
		reconcile.Leftover, reconcile.Removing} {
		s.runWithDaemon("routes", "--phase", string(p), "--source", string(route.SourceBGP), "--source",
			string(route.SourceBlock), "--source", string(route.SourceWorkload), "--source", string(route.SourceStatic),
			"--source", string(route.SourceIPAM))
		select {
		case <-d.routeRequests:
		default:
			t.Errorf("phase %s, or a source, is not known", p)
		}
	}
	s.runWithDaemon("routes", "--within", "10.65").want(t, 2, "", "--within \"10.65\": want a prefix")
	s.runWithDaemon("routes", "--phase", "failed,broken").want(t, 2, "",
		"--phase \"broken\": want pending, applied, failed, "+
			"blocked, leftover or removing")
	s.runWithDaemon("routes", "--source", "kernel").want(t, 2, "", "--source \"kernel\": want bgp, ipam, "+
		"block, workload or static")
}

// A full routing table exceeds gRPC's default limit of 4 MB by far.
func TestManyRoutes(t *testing.T) {
	s, d := newPlayedDaemon(t)
	d.change(func() { d.many = 100_000 })
	r := s.runWithDaemon("routes", "--no-headers")
	if n := strings.Count(r.out, "\n"); r.code != 0 || n != d.many {
		t.Errorf("%d routes are printed, exit code %d, %s", n, r.code, r.err)
	}
}

func TestStatusIsUnhealthyWhen(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*manxv1.GetStatusResponse)
		health string
	}{
		{"a check of readiness fails", func(s *manxv1.GetStatusResponse) {
			s.Ready, s.Checks = false, []*manxv1.Check{{Name: "bgp", Reason: "waiting for 10.0.0.2"}}
		}, "bgp: waiting for 10.0.0.2"},
		{"routes failed", func(s *manxv1.GetStatusResponse) { s.Routes["failed"] = 2 }, "2 routes failed"},
		{"endpoints failed", func(s *manxv1.GetStatusResponse) { s.Endpoints["failed"] = 1 },
			"1 workload endpoint failed"},
		{"no session is up", func(s *manxv1.GetStatusResponse) { s.Peers = map[string]uint32{"Active": 3} },
			"none of 3 BGP sessions is up"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, d := newPlayedDaemon(t)
			s.t = t
			d.change(func() { test.change(d.status) })
			r := s.runWithDaemon("status")
			if r.code != 4 || !strings.Contains(r.out, "Health:     "+test.health) || r.err != "" {
				t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
			}
			if r := s.runWithDaemon("status", "-o", "json"); r.code != 4 {
				t.Errorf("exit code with JSON is %d", r.code)
			}
		})
	}
}

// The output from the real server before any other part of manxd runs, while the daemon waits for its datastore.
func TestAgainstTheRealServer(t *testing.T) {
	level := zap.NewAtomicLevel()
	srv := server.New(server.Config{Node: "node-1", Version: server.Version{Manx: "v1", Commit: "c", GoBGP: "v4.8.0",
		Go: "1.26"}, Log: zap.NewNop(), Level: level})
	socket := filepath.Join(t.TempDir(), "manxd.sock")
	s := shell{t, []string{"MANX_TEST_SOCKET=" + socket}}
	s.runWithDaemon("status").want(t, 4, "", "manxd cannot be reached at "+socket+": there is no such socket: is "+
		"manxd running "+
		"on this host?")
	s.runWithDaemon("node", "status").want(t, 1, "", "there is no such socket")

	l, err := server.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	defer func() { cancel(); <-done }()

	if r := s.runWithDaemon("status"); r.code != 4 ||
		!strings.Contains(r.out, "Health:     datastore: not connected yet: manxd is starting\n") {
		t.Errorf("status: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	// Unknown values are not printed as zero.
	for _, command := range [][]string{{"status"}, {"node", "status"}} {
		if out := s.runWithDaemon(command...).out; !strings.Contains(out, "node-1") || strings.Contains(out, "AS 0") ||
			strings.Contains(out, "router ID") {
			t.Errorf("%v:\n%s", command, out)
		}
	}
	s.runWithDaemon("loglevel").want(t, 0, "info\n")
	s.runWithDaemon("loglevel", "debug").want(t, 0, "log level is debug, was info\n")
	s.runWithDaemon("loglevel", "loud").want(t, 2, "", `log level "loud": want debug, info, warn or error`)
	s.runWithDaemon("resync").want(t, 1, "", "manxd is starting: the dataplane does not run yet")
	s.runWithDaemon("routes").want(t, 0, "", "No routes found.")
	if out := s.runWithDaemon("version").out; !strings.Contains(out, "Client: dev (commit unknown, Go ") ||
		!strings.Contains(out, "Daemon: v1 (commit c, Go 1.26)\nGoBGP:  v4.8.0\n") {
		t.Errorf("version:\n%s", out)
	}
	if out := s.runWithDaemon("version", "-o", "json").out; !strings.Contains(out, `"gobgp": "v4.8.0"`) {
		t.Errorf("version -o json:\n%s", out)
	}
	if r := s.run("version", "--client"); r.code != 0 || strings.Contains(r.out, "Daemon") {
		t.Errorf("version --client: %d\n%s", r.code, r.out)
	}
}
