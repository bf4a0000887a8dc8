package server

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func TestBeforeAnythingRunsTheServerAnswers(t *testing.T) {
	noLeak(t)
	r := newRig(t)
	st, err := r.client.GetStatus(r.context(), &manxv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if st.GetNode() != "node-1" || st.GetReady() || len(st.GetChecks()) != 3 || st.GetVersion().GetGobgp() != "v4" {
		t.Errorf("status is %v", st)
	}
	for _, c := range st.GetChecks() {
		if c.GetOk() || !strings.Contains(c.GetReason(), "manxd is starting") {
			t.Errorf("check is %v", c)
		}
	}
	if p, err := r.client.ListPeers(r.context(), &manxv1.ListPeersRequest{}); err != nil || len(p.GetPeers()) > 0 {
		t.Errorf("peers are %v, %v", p, err)
	}
	if _, err := r.client.Resync(r.context(), &manxv1.ResyncRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("resync: %v", err)
	}
}

func TestStatusSumsUp(t *testing.T) {
	noLeak(t)
	r := newRig(t)
	r.start()
	r.source.Desired = func() bgp.Desired {
		return bgp.Desired{
			Global: bgp.Global{LocalAS: 64512, RouterID: netip.MustParseAddr("10.1.0.1")},
			Conflicts: []bgp.Conflict{{Address: netip.MustParseAddr("192.0.2.9"), Kept: "BGPPeer/a",
				Dropped: []string{"BGPPeer/b"}, Reason: "two AS numbers"}},
			Notices: []bgp.Notice{{Object: "BGPPeer/c", Reason: "spec.password is missing"}},
		}
	}
	r.source.Addresses = func() []AddressCandidate {
		return []AddressCandidate{{Address: netip.MustParsePrefix("10.1.0.1/24"), Interface: "eth0",
			Method: "first-found", Chosen: true, Reason: "first"}}
	}
	r.show()
	bad := object(t, model.KindBGPPeer, "", "broken\xff", `{"spec":{}}`)
	r.store(node(t), pod(t, "web", "cali1", "10.65.0.1/32"), pod(t, "gone", "cali9", "10.65.0.2/32"), bad)
	r.bgp.set(session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up"))
	r.bgp.set(session("192.0.2.2", bgp.SessionMesh, speaker.PhaseFailed, "Active", "connection refused"))
	r.bgp.finish()

	var st *manxv1.GetStatusResponse
	eventually(t, func() (complaint string) {
		var err error
		if st, err = r.client.GetStatus(r.context(), &manxv1.GetStatusRequest{}); err != nil {
			return err.Error()
		}
		if !st.GetReady() || st.GetRoutes()["applied"] != 1 || st.GetRoutes()["blocked"] != 1 {
			return st.String()
		}
		return ""
	})
	if st.GetIpv4() != "10.1.0.1/24" || st.GetAsNumber() != 64512 || st.GetRouterId() != "10.1.0.1" {
		t.Errorf("identity in %v", st)
	}
	if st.GetPeers()["Established"] != 1 || st.GetPeers()["Active"] != 1 {
		t.Errorf("peers are %v", st.GetPeers())
	}
	if st.GetEndpoints()["applied"] != 1 || st.GetEndpoints()["blocked"] != 1 {
		t.Errorf("endpoints are %v", st.GetEndpoints())
	}
	if d := st.GetDatastore(); !d.GetInSync() || !d.GetConnected() || d.GetObjects() != 3 || d.GetQuarantined() != 1 ||
		d.GetRevision() != 9 {
		t.Errorf("datastore is %v", d)
	}
	if st.GetNotices() != 2 {
		t.Errorf("%d notices", st.GetNotices())
	}

	quarantined, err := r.client.ListQuarantined(r.context(), &manxv1.ListQuarantinedRequest{})
	if err != nil || len(quarantined.GetObjects()) != 1 || quarantined.GetObjects()[0].GetName() != "broken\uFFFD" ||
		quarantined.GetObjects()[0].GetReason() == "" {
		t.Errorf("quarantined: %v, %v", quarantined, err)
	}
	addresses, err := r.client.ListAddresses(r.context(), &manxv1.ListAddressesRequest{})
	if err != nil || len(addresses.GetAddresses()) != 1 || addresses.GetAddresses()[0].GetFamily() != "IPv4" ||
		!addresses.GetAddresses()[0].GetChosen() {
		t.Errorf("addresses: %v, %v", addresses, err)
	}
	objects, err := r.client.ListHostObjects(r.context(), &manxv1.ListHostObjectsRequest{Target: "sysctl"})
	if i := slices.IndexFunc(objects.GetObjects(), func(x *manxv1.HostObject) bool {
		return x.GetName() == "sysctl net/ipv4/ip_forward" && x.GetDesired() == "1" && x.GetTarget() == "sysctl"
	}); err != nil || i < 0 || objects.GetObjects()[i].GetPhase() != "applied" {
		t.Errorf("host objects: %v, %v", objects, err)
	}
	notices, err := r.client.ListNotices(r.context(), &manxv1.ListNoticesRequest{})
	if err != nil || len(notices.GetNotices()) != 2 || notices.GetNotices()[0].GetText() != "BGPPeer/a is kept, "+
		"BGPPeer/b dropped: two AS numbers" {
		t.Errorf("notices: %v, %v", notices, err)
	}
	endpoints, err := r.client.ListEndpoints(r.context(), &manxv1.ListEndpointsRequest{})
	if err != nil || len(endpoints.GetEndpoints()) != 2 {
		t.Fatalf("endpoints: %v, %v", endpoints, err)
	}
	if gone := endpoints.GetEndpoints()[0]; gone.GetName() != "gone" || gone.GetPhase() != "blocked" ||
		!strings.Contains(gone.GetReason(), "cali9") {
		t.Errorf("endpoint without a device: %v", gone)
	}
}

func TestRoutesAreFiltered(t *testing.T) {
	r := newRig(t)
	r.start()
	r.store(node(t), pod(t, "web", "cali1", "10.65.0.1/32"), pod(t, "gone", "cali9", "10.66.0.2/32"))
	r.agent.Learn([]locrib.Route{{Prefix: netip.MustParsePrefix("10.65.1.0/26"),
		Paths: []locrib.Path{{NextHop: netip.MustParseAddr("10.1.0.7")}}, Metric: 1024}})
	prefixes := func(q *manxv1.ListRoutesRequest) []string {
		response, err := r.client.ListRoutes(r.context(), q)
		if err != nil {
			t.Fatal(err)
		}
		list := []string{}
		for _, x := range response.GetRoutes() {
			list = append(list, x.GetPrefix()+" "+x.GetPhase())
		}
		return list
	}
	all := []string{"10.65.0.1/32 applied", "10.65.1.0/26 applied", "10.66.0.2/32 blocked"}
	eventually(t, func() string {
		if got := prefixes(&manxv1.ListRoutesRequest{}); !slices.Equal(got, all) {
			return strings.Join(got, ", ")
		}
		return ""
	})
	for _, test := range []struct {
		name  string
		query *manxv1.ListRoutesRequest
		want  []string
	}{
		{"inside a prefix", &manxv1.ListRoutesRequest{Within: "10.65.0.0/16"}, all[:2]},
		{"a longer prefix does not contain a shorter one", &manxv1.ListRoutesRequest{Within: "10.65.1.0/27"},
			[]string{}},
		{"phase", &manxv1.ListRoutesRequest{Phases: []string{"blocked", "failed"}}, all[2:]},
		{"source", &manxv1.ListRoutesRequest{Sources: []string{"bgp"}}, all[1:2]},
		{"all of it", &manxv1.ListRoutesRequest{Within: "10.0.0.0/8", Sources: []string{"workload"},
			Phases: []string{"applied"}}, all[:1]},
	} {
		if got := prefixes(test.query); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	if _, err := r.client.ListRoutes(r.context(), &manxv1.ListRoutesRequest{Within: "10.65/16"}); status.Code(
		err) != codes.InvalidArgument {
		t.Errorf("an invalid prefix: %v", err)
	}
	row, err := r.client.ListRoutes(r.context(), &manxv1.ListRoutesRequest{Sources: []string{"bgp"}})
	if err != nil {
		t.Fatal(err)
	}
	if x := row.GetRoutes()[0]; !strings.Contains(x.GetDesired(), "via 10.1.0.7") ||
		!slices.Equal(x.GetActual(), []string{x.GetDesired()}) || !slices.Equal(x.GetNextHops(), []string{"10.1.0.7"}) {
		t.Errorf("learned route is %v", x)
	}
}

func TestPeerInFull(t *testing.T) {
	r := newRig(t)
	r.start()
	st := session("2001:db8::1", bgp.SessionNode, speaker.PhaseEstablished, "Established", "up")
	st.Counters = speaker.Counters{Received: 5, Accepted: 4, Advertised: 3}
	st.HoldTime, st.PeerRouterID, st.Session.Password = 240*time.Second, netip.MustParseAddr("9.9.9.9"), "secret"
	r.bgp.set(st)
	response, err := r.client.GetPeer(r.context(), &manxv1.GetPeerRequest{Address: "2001:DB8::1"})
	if err != nil {
		t.Fatal(err)
	}
	p := response.GetPeer()
	if p.GetPrefixes().GetAdvertised() != 3 || p.GetNegotiated().GetHoldSeconds() != 240 ||
		p.GetNegotiated().GetFamily() != "IPv6" ||
		p.GetEstablishedUnixMs() != since.UnixMilli() || p.GetNegotiated().GetRouterId() != "9.9.9.9" {
		t.Errorf("peer is %v", p)
	}
	// A list does not count advertised prefixes, and must not report zero.
	list, err := r.client.ListPeers(r.context(), &manxv1.ListPeersRequest{})
	if err != nil || len(list.GetPeers()) != 1 || list.GetPeers()[0].GetPrefixes().GetReceived() != 5 ||
		list.GetPeers()[0].GetPrefixes().Advertised != nil {
		t.Errorf("list %v, %v", list, err)
	}
	if strings.Contains(response.String(), "secret") {
		t.Errorf("the password is served: %v", response)
	}
	if _, err := r.client.GetPeer(r.context(), &manxv1.GetPeerRequest{Address: "192.0.2.77"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("a peer that is not there: %v", err)
	}
	if _, err := r.client.GetPeer(r.context(), &manxv1.GetPeerRequest{Address: "tor"}); status.Code(
		err) != codes.InvalidArgument {
		t.Errorf("an invalid address: %v", err)
	}
}

func TestHealthHasAServiceForEachPart(t *testing.T) {
	noLeak(t)
	r := newRig(t)
	health := grpc_health_v1.NewHealthClient(r.conn)
	watch, err := health.Watch(r.context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("at first: %v, %v", first, err)
	}
	r.start()
	r.store(node(t))
	is := func(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
		response, err := health.Check(r.context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return response.GetStatus()
	}
	eventually(t, func() string {
		if is("datastore") != grpc_health_v1.HealthCheckResponse_SERVING ||
			is("dataplane") != grpc_health_v1.HealthCheckResponse_SERVING {
			return "datastore or dataplane is not serving"
		}
		return ""
	})
	if is("bgp") != grpc_health_v1.HealthCheckResponse_NOT_SERVING ||
		is("") != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Error("bgp serves although it waits for peers")
	}
	r.bgp.finish()
	if next, err := watch.Recv(); err != nil || next.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("when BGP is done: %v, %v", next, err)
	}
	if _, err := health.Check(r.context(), &grpc_health_v1.HealthCheckRequest{Service: "pigeon"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
	if list, err := health.List(r.context(), &grpc_health_v1.HealthListRequest{}); err != nil ||
		len(list.GetStatuses()) != 4 {
		t.Errorf("list: %v, %v", list, err)
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	noLeak(t)
	r := newRig(t)
	names := r.services()
	for _, want := range []string{"manx.v1.Manx", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("services are %v, want %s among them", names, want)
		}
	}
}

func TestWatchSendsAllThenEachChange(t *testing.T) {
	noLeak(t)
	r := newRig(t)
	r.start()
	r.bgp.set(session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseConnecting, "Connect", "on its way"))
	stream, err := r.client.Watch(r.context(), &manxv1.WatchRequest{Peers: true, Routes: true})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *manxv1.WatchResponse {
		t.Helper()
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	if e := next(); e.GetPeer().GetAddress() != "192.0.2.1" || e.GetPeer().GetState() != "Connect" {
		t.Errorf("first event is %v", e)
	}
	if e := next(); !e.GetSynced() {
		t.Errorf("second event is %v", e)
	}
	r.bgp.set(session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up"))
	if e := next(); e.GetPeer().GetState() != "Established" {
		t.Errorf("after the session came up: %v", e)
	}
	r.bgp.drop("192.0.2.1")
	if e := next(); e.GetPeerGone() != "192.0.2.1" {
		t.Errorf("after the session is not wanted any more: %v", e)
	}
	r.store(node(t), pod(t, "web", "cali1", "10.65.0.1/32"))
	for e := next(); e.GetRoute().GetPhase() != "applied"; e = next() {
		if e.GetRoute().GetPrefix() != "10.65.0.1/32" {
			t.Fatalf("after a pod came: %v", e)
		}
	}
	r.tables.Apply(deleted("shop", "web"))
	r.agent.SetState(dataplane.State{Reader: r.tables.Snapshot(), All: true, DatastoreSynced: true, BGPSynced: true})
	for e := next(); e.GetRouteGone() != "10.65.0.1/32"; e = next() {
		if e.GetRoute().GetPrefix() != "10.65.0.1/32" {
			t.Fatalf("after the pod went: %v", e)
		}
	}
}

func TestChangesAreLoggedWithTheCaller(t *testing.T) {
	r := newRig(t)
	response, err := r.client.SetLogLevel(r.context(), &manxv1.SetLogLevelRequest{Level: "debug"})
	if err != nil || response.GetPrevious() != "info" || r.level.Level() != zap.DebugLevel {
		t.Fatalf("set: %v, %v; level is %s", response, err, r.level)
	}
	if level, err := r.client.GetLogLevel(r.context(), &manxv1.GetLogLevelRequest{}); err != nil ||
		level.GetLevel() != "debug" {
		t.Errorf("get: %v, %v", level, err)
	}
	if _, err := r.client.SetLogLevel(r.context(), &manxv1.SetLogLevelRequest{Level: "fatal"}); status.Code(
		err) != codes.InvalidArgument {
		t.Errorf("a level that would end the daemon: %v", err)
	}
	entries := r.logs.FilterMessage("control call").All()
	if len(entries) != 2 {
		t.Fatalf("%d calls are logged, want the two that change something: %v", len(entries), entries)
	}
	got := entries[0].ContextMap()
	if got["caller_pid"] != int32(os.Getpid()) || got["caller_uid"] != uint32(os.Getuid()) ||
		got["caller_name"] == "" ||
		got["call"] != "/manx.v1.Manx/SetLogLevel" || got["code"] != "OK" {
		t.Errorf("logged is %v", got)
	}
	if got := entries[1].ContextMap(); got["code"] != "InvalidArgument" || got["error"] == nil {
		t.Errorf("logged of the refused call is %v", got)
	}
}
