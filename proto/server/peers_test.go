package server

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane/locrib"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// agreedStatus is a session whose two ends have the same settings.
func agreedStatus() speaker.SessionStatus {
	st := session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up")
	st.Session.HoldSeconds, st.Session.KeepaliveSeconds, st.Session.RestartSeconds = 240, 80, 120
	st.Session.Source, st.LocalAddress = netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.9")
	st.HoldTime, st.Keepalive, st.RestartTime = 240*time.Second, 80*time.Second, 120*time.Second
	st.Counters.At = since
	st.Families, st.Capabilities = []string{"ipv4-unicast"}, []string{"4-octet AS", "route refresh"}
	st.AddPathReceive, st.AddPathSend, st.GracefulRestart = true, true, true
	return st
}

func TestDifferencesBetweenWantedAndNegotiated(t *testing.T) {
	if d := differences(agreedStatus()); len(d) > 0 {
		t.Errorf("both ends want the same, but differences are %q", d)
	}
	for _, c := range []struct {
		name   string
		change func(*speaker.SessionStatus)
		want   string // the only difference; empty for none
	}{
		{"lower hold time", func(s *speaker.SessionStatus) { s.HoldTime, s.Keepalive = 90*time.Second, 30*time.Second },
			"hold time 90 s instead of 240 s"},
		{"no hold time", func(s *speaker.SessionStatus) { s.HoldTime, s.Keepalive = 0, 0 }, "no hold time"},
		{"timers not read yet", func(s *speaker.SessionStatus) {
			s.HoldTime, s.Keepalive, s.Counters.At = 0, 0,
				time.Time{}
		}, ""},
		{"other keepalive", func(s *speaker.SessionStatus) { s.Keepalive = 10 * time.Second },
			"keepalives every 10 s instead of 80 s"},
		{"other source", func(s *speaker.SessionStatus) { s.LocalAddress = netip.MustParseAddr("192.0.2.8") },
			"local address 192.0.2.8, not 192.0.2.9"},
		{"without the family", func(s *speaker.SessionStatus) { s.Families = nil }, "did not announce ipv4-unicast"},
		{"further family", func(s *speaker.SessionStatus) { s.Families = append(s.Families, "ipv6-unicast") },
			"also offers ipv6-unicast"},
		{"one path in", func(s *speaker.SessionStatus) { s.AddPathReceive = false }, "sends only its best path"},
		{"one path out", func(s *speaker.SessionStatus) { s.AddPathSend = false }, "takes only one path"},
		{"no graceful restart", func(s *speaker.SessionStatus) { s.GracefulRestart = false },
			"does not restart gracefully for ipv4-unicast"},
		{"no route refresh", func(s *speaker.SessionStatus) { s.Capabilities = []string{"4-octet AS"} },
			"no route refresh"},
		{"2-octet AS", func(s *speaker.SessionStatus) { s.Capabilities = []string{"route refresh"} }, "up to 65535"},
		{"down", func(s *speaker.SessionStatus) { s.Phase, s.Families = speaker.PhaseFailed, nil }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := agreedStatus()
			c.change(&st)
			d := differences(st)
			if c.want == "" && len(d) == 0 || c.want != "" && len(d) == 1 && strings.Contains(d[0], c.want) {
				return
			}
			t.Errorf("differences are %q, want one with %q", d, c.want)
		})
	}
}

func TestConflictIsTellingBothObjects(t *testing.T) {
	r := newRig(t)
	r.start()
	r.source.Desired = func() bgp.Desired {
		return bgp.Desired{
			Conflicts: []bgp.Conflict{{Address: netip.MustParseAddr("192.0.2.1"), Kept: "BGPPeer/x",
				Dropped: []string{"BGPPeer/y"}, Reason: "two AS numbers"}},
			Notices: []bgp.Notice{{Object: "BGPPeer/x", Reason: "spec.password is missing"},
				{Object: "BGPPeer/z", Reason: "no such filter"}},
		}
	}
	r.show()
	st := agreedStatus()
	st.LastError, st.LastErrorBy, st.LastErrorAt, st.NextAttempt = "refused", speaker.DirectionReceived, since,
		since.Add(time.Second)
	r.bgp.set(st)
	r.bgp.set(session("192.0.2.2", bgp.SessionMesh, speaker.PhaseFailed, "Active", "connection refused"))

	const conflict = "BGPPeer/x is kept, BGPPeer/y dropped: two AS numbers"
	one, err := r.client.GetPeer(r.context(), &manxv1.GetPeerRequest{Address: "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	p := one.GetPeer()
	if !slices.Equal(p.GetConflicts(), []string{conflict}) ||
		!slices.Equal(p.GetNotices(), []string{"BGPPeer/x: spec.password is missing"}) {
		t.Errorf("conflicts %q, notices %q", p.GetConflicts(), p.GetNotices())
	}
	if p.GetLastErrorBy() != "received" || p.GetNextAttemptUnixMs() != since.Add(time.Second).UnixMilli() ||
		p.GetWanted().GetHoldSeconds() != 240 || p.Prefixes.Advertised == nil {
		t.Errorf("peer is %v", p)
	}
	for object, want := range map[string][3]int{"": {2, 1, 2}, "BGPPeer/x": {2, 1, 1}, "BGPPeer/y": {0, 1, 0},
		"BGPPeer/z": {0, 0, 1}} {
		l, err := r.client.ListPeers(r.context(), &manxv1.ListPeersRequest{RequestedBy: object})
		if got := [3]int{len(l.GetPeers()), len(l.GetConflicts()), len(l.GetNotices())}; err != nil || got != want {
			t.Errorf("%q has %v sessions, conflicts and notices, want %v (%v)", object, got, want, err)
		}
	}
}

// The history of a peer is found by its address and by the object that configured it then.
func TestPeerTransitions(t *testing.T) {
	r := newRig(t)
	if _, err := r.client.ListPeerTransitions(r.context(), &manxv1.ListPeerTransitionsRequest{}); status.Code(err) !=
		codes.Unavailable {
		t.Errorf("before BGP runs: %v", err)
	}
	r.start()
	gone, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	r.bgp.history = []speaker.Transition{
		{At: since, Address: gone, RequestedBy: []string{"BGPPeer/x"}, From: speaker.PhaseEstablished,
			To: speaker.PhaseFailed, Lasted: time.Minute, Reason: "hold timer expired", Flaps: 3, Routes: "kept",
			BFD: "Down"},
		{At: since, Address: there, RequestedBy: []string{"BGPPeer/y"}, To: speaker.PhaseFailed}}
	r.bgp.set(session("192.0.2.3", bgp.SessionMesh, speaker.PhaseConnecting, "Idle", ""))
	for peer, want := range map[string]int{"": 2, "x": 1, "192.0.2.1": 1, "::ffff:192.0.2.1": 1, "y": 1,
		"192.0.2.3": 0} {
		got, err := r.client.ListPeerTransitions(r.context(), &manxv1.ListPeerTransitionsRequest{Peer: peer})
		if err != nil || len(got.GetTransitions()) != want {
			t.Errorf("%q: %v, %v, want %d", peer, got, err, want)
		}
	}
	for _, peer := range []string{"z", "192.0.2.4"} {
		_, err := r.client.ListPeerTransitions(r.context(), &manxv1.ListPeerTransitionsRequest{Peer: peer})
		if status.Code(err) != codes.NotFound {
			t.Errorf("%q: %v", peer, err)
		}
	}
	all, err := r.client.ListPeerTransitions(r.context(), &manxv1.ListPeerTransitionsRequest{Peer: "x"})
	want := &manxv1.PeerTransition{AtUnixMs: since.UnixMilli(), Address: "192.0.2.1",
		RequestedBy: []string{"BGPPeer/x"}, From: "Established", To: "Failed", LastedMs: 60_000,
		Reason: "hold timer expired", Flaps: 3, Routes: "kept", Bfd: "Down"}
	if err != nil || !proto.Equal(all.GetTransitions()[0], want) {
		t.Errorf("transition is %v, want %v (%v)", all, want, err)
	}
}

func evaluated(prefix string, accept bool, rule string) speaker.EvaluatedPath {
	p := netip.MustParsePrefix(prefix)
	return speaker.EvaluatedPath{
		TablePath: &speaker.TablePath{Prefix: p, NextHop: netip.MustParseAddr("10.0.0.9"), Origin: "IGP",
			ASPath: []uint32{65000}, Communities: []uint32{65000<<16 | 7}, LargeCommunities: [][3]uint32{{1, 2, 3}},
			Extended: []bgp.ExtendedCommunity{{0, 2, 0xfc, 0, 0, 0, 0, 7}}},
		Verdict: bgp.Verdict{Accept: accept, Rule: rule},
	}
}

func TestRoutesOfAPeer(t *testing.T) {
	r := newRig(t)
	if _, err := manxv1.PeerRoutes(r.context(), r.client, &manxv1.ListPeerRoutesRequest{
		Direction: "rejected"}); status.Code(err) != codes.Unavailable {
		t.Errorf("before BGP runs: %v", err)
	}
	r.start()
	r.store(node(t), pod(t, "web", "cali1", "10.65.0.1/32"))
	for _, ok := r.agent.RouteTo(netip.MustParseAddr("10.65.0.1")); !ok; {
		_, ok = r.agent.RouteTo(netip.MustParseAddr("10.65.0.1"))
	}
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	r.bgp.received = map[netip.Addr][]speaker.EvaluatedPath{
		one: {evaluated("10.1.0.0/16", true, "default"), evaluated("10.2.0.0/16", false, "BGPFilter/f importV4[0]"),
			evaluated("10.3.0.0/16", true, "default"), evaluated("10.65.0.1/32", true, "default"),
			evaluated("10.65.0.2/32", true, "default")},
		two: {evaluated("10.0.0.0/16", false, "BGPFilter/g importV4[1]")},
	}
	r.bgp.sent = map[netip.Addr][]speaker.EvaluatedPath{
		one: {evaluated("10.8.0.0/26", true, "own"), evaluated("10.9.0.0/26", false, "not inside a pool")}}
	r.bgp.refused = []fib.Rejection{{Prefix: netip.MustParsePrefix("10.3.0.0/16"), Path: locrib.Path{Peer: one},
		Reason: "the next hop is this node"}}
	r.bgp.set(agreedStatus())
	mesh := session("192.0.2.2", bgp.SessionMesh, speaker.PhaseEstablished, "Established", "up")
	mesh.Session.From = []string{"BGPConfiguration/default"}
	r.bgp.set(mesh)
	const ofPod = "in 10.65.0.1/32 false the address belongs to workload shop/web of this node, whose route " +
		"precedes this one"
	for _, c := range []struct {
		direction, peer string
		want            []string
		code            codes.Code
	}{
		{"advertised", "192.0.2.1", []string{"out 10.8.0.0/26 true own"}, codes.OK},
		{"advertised", "x", []string{"out 10.8.0.0/26 true own"}, codes.OK},
		{"received", "192.0.2.1", []string{"in 10.1.0.0/16 true default",
			"in 10.2.0.0/16 false BGPFilter/f importV4[0]", "in 10.3.0.0/16 false the next hop is this node",
			ofPod, "in 10.65.0.2/32 true default"}, codes.OK},
		{"rejected", "x", []string{"in 10.2.0.0/16 false BGPFilter/f importV4[0]",
			"in 10.3.0.0/16 false the next hop is this node", ofPod, "out 10.9.0.0/26 false not inside a pool"},
			codes.OK},
		{"rejected", "", []string{"in 10.0.0.0/16 false BGPFilter/g importV4[1]",
			"in 10.2.0.0/16 false BGPFilter/f importV4[0]", "in 10.3.0.0/16 false the next hop is this node", ofPod},
			codes.OK},
		{"received", "192.0.2.3", nil, codes.NotFound},
		{"received", "nobody", nil, codes.NotFound},
		{"received", "", nil, codes.NotFound},
		{"sideways", "x", nil, codes.InvalidArgument},
	} {
		a, err := manxv1.PeerRoutes(r.context(), r.client, &manxv1.ListPeerRoutesRequest{Direction: c.direction,
			Peer: c.peer})
		var got []string
		for _, x := range a.GetRoutes() {
			got = append(got, strings.Join([]string{x.GetDirection(), x.GetPrefix(),
				map[bool]string{true: "true", false: "false"}[x.GetAccepted()], x.GetRule()}, " "))
		}
		if !slices.Equal(got, c.want) || status.Code(err) != c.code {
			t.Errorf("%s %s: %v\n%q\nwant\n%q", c.direction, c.peer, err, got, c.want)
		}
	}
	a, err := manxv1.PeerRoutes(r.context(), r.client,
		&manxv1.ListPeerRoutesRequest{Direction: "advertised", Peer: "x"})
	if err != nil {
		t.Fatal(err)
	}
	x := a.GetRoutes()[0]
	if x.GetNextHop() != "10.0.0.9" || !slices.Equal(x.GetCommunities(), []string{"65000:7"}) ||
		!slices.Equal(x.GetLargeCommunities(), []string{"1:2:3"}) ||
		!slices.Equal(x.GetExtendedCommunities(), []string{"rt:64512:7"}) ||
		!slices.Equal(x.GetAsPath(), []uint32{65000}) {
		t.Errorf("attributes are %v", x)
	}
}

func TestTable(t *testing.T) {
	r := newRig(t)
	r.start()
	r.bgp.set(agreedStatus())
	peer := netip.MustParseAddr("192.0.2.1")
	own, learned, other := evaluated("10.8.0.0/26", true, "").TablePath, evaluated("10.1.0.0/16", true, "").TablePath,
		evaluated("fd00::/64", true, "").TablePath
	own.Best, own.NextHop = true, netip.IPv4Unspecified()
	learned.Peer, learned.OriginatorID, learned.ClusterList = peer, netip.MustParseAddr("192.0.2.7"),
		[]netip.Addr{netip.MustParseAddr("192.0.2.8")}
	r.bgp.table = map[bool][]*speaker.TablePath{false: {learned, own}, true: {other}}
	for _, c := range []struct {
		family, peer string
		want         []string
	}{
		{"", "", []string{"10.1.0.0/16", "10.8.0.0/26", "fd00::/64"}},
		{"IPv4", "", []string{"10.1.0.0/16", "10.8.0.0/26"}},
		{"IPv6", "", []string{"fd00::/64"}},
		{"", "192.0.2.1", []string{"10.1.0.0/16"}},
	} {
		a, err := manxv1.PeerRoutes(r.context(), r.client, &manxv1.ListPeerRoutesRequest{Direction: "table",
			Family: c.family, Peer: c.peer})
		var got []string
		for _, x := range a.GetRoutes() {
			got = append(got, x.GetPrefix())
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s of %q: %v, %q, want %q", c.family, c.peer, err, got, c.want)
		}
	}
	a, err := manxv1.PeerRoutes(r.context(), r.client, &manxv1.ListPeerRoutesRequest{Direction: "table",
		Family: "IPv4"})
	if err != nil {
		t.Fatal(err)
	}
	if x := a.GetRoutes()[0]; x.GetBest() || x.GetPeer() != "192.0.2.1" || x.GetOriginatorId() != "192.0.2.7" ||
		!slices.Equal(x.GetClusterList(), []string{"192.0.2.8"}) || x.GetDirection() != "" || !x.GetAccepted() {
		t.Errorf("the learned route is %v", x)
	}
	if x := a.GetRoutes()[1]; !x.GetBest() || x.GetPeer() != "" || x.GetOriginatorId() != "" {
		t.Errorf("the route of this node is %v", x)
	}
}

// Routes come in pieces, so that nobody holds all of very many at once; none is lost where two pieces meet.
func TestManyRoutesOfAPeer(t *testing.T) {
	r := newRig(t)
	r.start()
	r.bgp.set(agreedStatus())
	peer := netip.MustParseAddr("192.0.2.1")
	var want []string
	r.bgp.received = map[netip.Addr][]speaker.EvaluatedPath{}
	for i := range 2*routesPerResponse + 1 {
		want = append(want, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
		r.bgp.received[peer] = append(r.bgp.received[peer], evaluated(want[i], true, "default"))
	}
	stream, err := r.client.ListPeerRoutes(r.context(), &manxv1.ListPeerRoutesRequest{Direction: "received", Peer: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var sizes []int
	for {
		some, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(some.GetRoutes()))
		for _, x := range some.GetRoutes() {
			got = append(got, x.GetPrefix())
		}
	}
	if !slices.Equal(got, want) || !slices.Equal(sizes, []int{routesPerResponse, routesPerResponse, 1}) {
		t.Errorf("%d routes in %v", len(got), sizes)
	}
}

// Callers that do not read hold few lists, and not for long.
func TestListsThatNobodyReads(t *testing.T) {
	r := newRig(t)
	r.server.BGP.sendWithin = 2 * time.Second
	r.start()
	r.bgp.set(agreedStatus())
	peer := netip.MustParseAddr("192.0.2.1")
	many := make([]speaker.EvaluatedPath, 100*routesPerResponse) // more than the buffers of gRPC take
	for i := range many {
		many[i] = evaluated("10.0.0.0/24", true, "default")
	}
	r.bgp.received = map[netip.Addr][]speaker.EvaluatedPath{peer: many}
	request := &manxv1.ListPeerRoutesRequest{Direction: "received", Peer: "x"}
	var idle []grpc.ServerStreamingClient[manxv1.ListPeerRoutesResponse]
	for deadline := time.Now().Add(30 * time.Second); len(r.server.BGP.lists) < mostLists; {
		if time.Now().After(deadline) {
			t.Fatal("the lists are not bounded")
		}
		stream, err := r.client.ListPeerRoutes(r.context(), request)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, stream)
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := manxv1.PeerRoutes(r.context(), r.client, request); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one list too many: %v", err)
	}
	for deadline := time.Now().Add(30 * time.Second); len(r.server.BGP.lists) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a list that nobody reads never ends")
		}
	}
	for _, stream := range idle {
		for {
			_, err := stream.Recv()
			if c := status.Code(err); err != nil && c != codes.DeadlineExceeded && c != codes.ResourceExhausted {
				t.Errorf("a list that was not read: %v", err)
			}
			if err != nil {
				break
			}
		}
	}
}
