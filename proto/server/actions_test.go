package server

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func TestResetPeer(t *testing.T) {
	r := newRig(t)
	if _, err := r.client.ResetPeer(r.context(),
		&manxv1.ResetPeerRequest{Peer: "192.0.2.1", Kind: "soft"}); status.Code(err) != codes.Unavailable {
		t.Errorf("before BGP runs: %v", err)
	}
	r.start()
	st := session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up")
	st.Session.From = []string{"BGPPeer/tor-1"}
	r.bgp.set(st)
	r.bgp.set(session("2001:db8::1", bgp.SessionMesh, speaker.PhaseFailed, "Active", "no"))
	for _, c := range []struct {
		peer, kind string
		fails      error
		code       codes.Code
		text       string
		did        []string
	}{
		{"192.0.2.1", "soft-in", nil, codes.OK, "", []string{"192.0.2.1 0"}},
		{"192.0.2.1", "soft-out", nil, codes.OK, "", []string{"192.0.2.1 1"}},
		{"::ffff:192.0.2.1", "soft", nil, codes.OK, "", []string{"192.0.2.1 0", "192.0.2.1 1"}},
		{"tor-1", "hard", nil, codes.OK, "", []string{"192.0.2.1 2"}},
		{"192.0.2.1", "hard", fmt.Errorf("bgp session with 192.0.2.1 is %w", speaker.ErrNotEstablished),
			codes.FailedPrecondition, "not established", []string{"192.0.2.1 2"}},
		{"192.0.2.1", "soft", fmt.Errorf("bgp session with 192.0.2.1: %w; try again in 3s", speaker.ErrTooOften),
			codes.ResourceExhausted, "try again in 3s", []string{"192.0.2.1 0"}},
		{"192.0.2.9", "soft", nil, codes.NotFound, "The sessions are with 192.0.2.1, 2001:db8::1", nil},
		{"tor-2", "soft", nil, codes.NotFound, "The sessions are with 192.0.2.1, 2001:db8::1", nil},
		{"", "soft", nil, codes.NotFound, "The sessions are with", nil},
		{"192.0.2.1", "", nil, codes.InvalidArgument, `kind = "": want soft-in, soft-out, soft or hard`, nil},
		{"192.0.2.1", "harder", nil, codes.InvalidArgument, "want soft-in", nil},
	} {
		r.bgp.resets, r.bgp.resetErr = nil, c.fails
		response, err := r.client.ResetPeer(r.context(), &manxv1.ResetPeerRequest{Peer: c.peer, Kind: c.kind})
		if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.text) || err == nil &&
			response.GetPeer() != "192.0.2.1" {
			t.Errorf("%s %s: %v, %v", c.peer, c.kind, response, err)
		}
		if !slices.Equal(r.bgp.resets, c.did) {
			t.Errorf("%s %s: did %v, want %v", c.peer, c.kind, r.bgp.resets, c.did)
		}
	}
	entries := r.logs.FilterMessage("control call").All()
	if f := entries[1].ContextMap(); f["object"] != "peer/192.0.2.1" ||
		f["call"] != manxv1.Manx_ResetPeer_FullMethodName || f["caller_uid"] == nil || f["code"] != "OK" {
		t.Errorf("logged: %v", f)
	}
	if f := entries[len(entries)-1].ContextMap(); f["code"] != "InvalidArgument" ||
		!strings.Contains(fmt.Sprint(f["error"]), "harder") {
		t.Errorf("logged of a call that failed: %v", f)
	}
}

func TestManySessionsAreNotAllNamed(t *testing.T) {
	r := newRig(t)
	r.start()
	for i := range 25 {
		r.bgp.set(session(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String(), bgp.SessionMesh, speaker.PhaseFailed,
			"Active", "no"))
	}
	if _, err := r.client.ClearPeer(r.context(), &manxv1.ClearPeerRequest{Peer: "nobody"}); err == nil ||
		!strings.Contains(err.Error(), " and 5 more") {
		t.Errorf("error %v", err)
	}
}

func TestClearPeer(t *testing.T) {
	r := newRig(t)
	r.start()
	st := session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up")
	st.Flaps, st.Restarts = 5, 2
	r.bgp.set(st)
	for _, want := range []*manxv1.ClearPeerResponse{{Peer: "192.0.2.1", Flaps: 5, Restarts: 2}, {Peer: "192.0.2.1"}} {
		if got, err := r.client.ClearPeer(r.context(), &manxv1.ClearPeerRequest{Peer: "192.0.2.1"}); err != nil ||
			!proto.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
}

// TestDrainAndUndrain end in the annotations that "manxctl node drain" writes.
func TestDrainAndUndrain(t *testing.T) {
	r := newRig(t)
	if _, err := r.client.Drain(r.context(), &manxv1.DrainRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("before there is a datastore: %v", err)
	}
	r.start()
	r.withStore()
	annotations := func() map[string]string {
		o, err := r.source.Store.Get(t.Context(), model.ResourceKey(model.KindNode, "node-1"))
		if err != nil {
			t.Fatal(err)
		}
		return o.Value.(*model.Node).Annotations
	}
	for _, bad := range []*manxv1.DrainRequest{{Node: "node-2"}, {TimeoutMs: proto.Int64(-1)},
		{TimeoutMs: proto.Int64(1 << 62)}} {
		if _, err := r.client.Drain(r.context(), bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if a := annotations(); a[model.AnnotationDrain] != "" {
		t.Fatalf("a refused call changed the Node: %v", a)
	}
	if got, err := r.client.Drain(r.context(), &manxv1.DrainRequest{Node: "node-1"}); err != nil ||
		got.GetBefore() != "" {
		t.Fatalf("drain: %v, %v", got, err)
	}
	first := annotations()
	if first[model.AnnotationDrain] == "" || first[model.AnnotationDrainTimeout] != "1m0s" {
		t.Errorf("annotations: %v", first)
	}
	if got, err := r.client.Drain(r.context(), &manxv1.DrainRequest{TimeoutMs: proto.Int64(0)}); err != nil ||
		got.GetBefore() != "draining" {
		t.Errorf("drain again: %v, %v", got, err)
	}
	if a := annotations(); a[model.AnnotationDrain] != first[model.AnnotationDrain] ||
		a[model.AnnotationDrainTimeout] != "0s" {
		t.Errorf("annotations: %v", a)
	}
	if got, err := r.client.Undrain(r.context(), &manxv1.UndrainRequest{}); err != nil ||
		got.GetBefore() != "draining" {
		t.Errorf("undrain: %v, %v", got, err)
	}
	if a := annotations(); a[model.AnnotationDrain] != "" || a[model.AnnotationDrainTimeout] != "" {
		t.Errorf("annotations: %v", a)
	}
	if _, err := r.client.Undrain(r.context(),
		&manxv1.UndrainRequest{Node: "node-2"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another node: %v", err)
	}
}

// TestDrainAndUndrainPeers: addresses and names of BGPPeers end in an annotation; the error of a wrong name lists the
// peers.
func TestDrainAndUndrainPeers(t *testing.T) {
	r := newRig(t)
	drain := func(names ...string) (*manxv1.DrainResponse, error) {
		return r.client.Drain(r.context(), &manxv1.DrainRequest{Peers: names})
	}
	if _, err := drain("192.0.2.1"); status.Code(err) != codes.Unavailable {
		t.Errorf("before BGP runs: %v", err)
	}
	r.start()
	r.source.Desired = func() bgp.Desired {
		return bgp.Desired{Sessions: []bgp.Session{
			{Address: netip.MustParseAddr("192.0.2.1"), From: []string{"BGPPeer/tor-1"}},
			{Address: netip.MustParseAddr("2001:db8::1"), From: []string{"BGPPeer/tor-1"}},
			{Address: netip.MustParseAddr("192.0.2.2"), Type: bgp.SessionMesh,
				From: []string{"BGPConfiguration/default"}},
			{Address: netip.MustParseAddr("192.0.2.3"), From: []string{"BGPPeer/pods"}, Workload: "cali1"}}}
	}
	r.withStore()
	annotation := func() string {
		o, err := r.source.Store.Get(t.Context(), model.ResourceKey(model.KindNode, "node-1"))
		if err != nil {
			t.Fatal(err)
		}
		return o.Value.(*model.Node).Annotations[model.AnnotationDrainPeers]
	}
	const peers = "the peers are 192.0.2.1 (tor-1), 2001:db8::1 (tor-1), 192.0.2.2 (mesh)"
	for _, wrong := range []string{"tor-2", "192.0.2.9", "pods", "192.0.2.3", "default", ""} {
		if _, err := drain("tor-1", wrong); status.Code(err) != codes.NotFound ||
			!strings.Contains(err.Error(), fmt.Sprintf("there is no peer %q: %s", wrong, peers)) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, err := r.client.Drain(r.context(), &manxv1.DrainRequest{Peers: []string{"tor-1"},
		TimeoutMs: proto.Int64(0)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a timeout: %v", err)
	}
	if a := annotation(); a != "" {
		t.Fatalf("a refused call changed the Node: %q", a)
	}
	got, err := drain("tor-1")
	if err != nil || got.GetBefore() != "" || !slices.Equal(got.GetPeers(), []string{"192.0.2.1", "2001:db8::1"}) ||
		annotation() != "192.0.2.1,2001:db8::1" {
		t.Errorf("drain: %v, %v, annotation %q", got, err, annotation())
	}
	if got, err = drain("::ffff:192.0.2.2", "192.0.2.1"); err != nil || got.GetBefore() != "" ||
		annotation() != "192.0.2.1,192.0.2.2,2001:db8::1" {
		t.Errorf("drain: %v, %v, annotation %q", got, err, annotation())
	}
	if got, err = drain("192.0.2.2"); err != nil || got.GetBefore() != "draining" {
		t.Errorf("drain again: %v, %v", got, err)
	}
	for _, c := range []struct{ name, before, left string }{
		{"tor-1", "draining", "192.0.2.2"}, {"192.0.2.2", "draining", ""}, {"192.0.2.2", "", ""},
	} {
		got, err := r.client.Undrain(r.context(), &manxv1.UndrainRequest{Peers: []string{c.name}})
		if err != nil || got.GetBefore() != c.before || annotation() != c.left {
			t.Errorf("undrain %s: %v, %v, annotation %q, want %q", c.name, got, err, annotation(), c.left)
		}
	}
	if _, err := r.client.Undrain(r.context(), &manxv1.UndrainRequest{Peers: []string{"tor-2"}}); err == nil ||
		!strings.Contains(err.Error(), peers) {
		t.Errorf("undrain of no peer: %v", err)
	}
}

// withStore gives the daemon an etcd that holds its Node.
func (r *rig) withStore() {
	r.t.Helper()
	store, err := etcd.Open(r.context(), etcd.Config{Endpoints: []string{etcdtest.Start(r.t).Endpoint}}, zap.NewNop())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { store.Close() })
	if _, err := store.Create(r.context(), model.NewObject(model.ResourceKey(model.KindNode, "node-1"),
		new(model.Node))); err != nil {
		r.t.Fatal(err)
	}
	r.source.Store = store
	r.show()
}

// TestRetry: a refused object is retried at once, not when it is due. An object that still fails is reported.
func TestRetry(t *testing.T) {
	r := newRig(t)
	if _, err := r.client.Retry(r.context(), &manxv1.RetryRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("before anything runs: %v", err)
	}
	r.start()
	r.withStore()
	if _, err := r.client.Retry(r.context(), &manxv1.RetryRequest{}); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), dataplane.ErrNotStarted.Error()) {
		t.Errorf("before there is a state: %v", err)
	}
	r.source.Policy = &rules{}
	r.show()
	r.store(node(t), object(t, model.KindBGPPeer, "", "broken", `{"spec":`))
	for i := range 1000 {
		r.kernel.Fail("ApplyRoutes", i, unix.EPERM)
	}
	r.agent.Learn([]locrib.Route{{Prefix: netip.MustParsePrefix("10.65.1.0/26"),
		Paths: []locrib.Path{{NextHop: netip.MustParseAddr("10.1.0.7")}}, Metric: 1024}})
	phase := func() string {
		x, _ := r.agent.Route(netip.MustParsePrefix("10.65.1.0/26"))
		return string(x.Phase)
	}
	eventually(t, func() string {
		if phase() != "failed" {
			return "the route is " + phase()
		}
		return ""
	})
	parts := func() map[string]*manxv1.RetriedPart {
		response, err := r.client.Retry(r.context(), &manxv1.RetryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]*manxv1.RetriedPart{}
		for _, p := range response.GetParts() {
			all[p.GetName()] = p
		}
		return all
	}
	all := parts()
	if p := all["routes"]; p.GetFailed() != 1 || p.GetFailing() != 1 ||
		!strings.Contains(p.GetReason(), "operation not permitted") {
		t.Errorf("routes: %v", p)
	}
	if p := all["policy"]; p.GetFailed() != 1 || p.GetReason() == "" {
		t.Errorf("policy: %v", p)
	}
	if p := all["objects"]; p.GetFailed() != 1 || p.GetFailing() != 1 ||
		p.GetReason() == "" { // the store has deleted it: the watch will report this
		t.Errorf("objects: %v", p)
	}
	for _, name := range []string{"interfaces", "bandwidth"} {
		if p := all[name]; p == nil || p.GetFailed() != 0 || p.GetFailing() != 0 || p.GetReason() != "" {
			t.Errorf("%s: %v", name, p)
		}
	}
	r.kernel.Heal()
	if p := parts()["routes"]; p.GetFailing() != 0 || p.GetReason() != "" || phase() != "applied" {
		t.Errorf("after the cause is gone: %v, the route is %s", p, phase())
	}
}
