package server

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// rig is a server on a unix socket with a real agent on a kernel in memory, real tables, and sessions made by the test.
type rig struct {
	t      *testing.T
	server *Server
	socket string
	conn   *grpc.ClientConn
	client manxv1.ManxClient
	logs   *observer.ObservedLogs
	level  zap.AtomicLevel

	kernel *kerneltest.Kernel
	agent  *dataplane.HostAgent
	tables *datastore.Tables
	bgp    *sessions
	source source
}

// source is the source of the views in a test.
type source struct {
	Datastore Datastore
	Store     datastore.Store
	BGP       BGP
	Dataplane Dataplane
	Policy    Policy
	Trace     FlowTracer
	Desired   func() bgp.Desired
	Addresses func() []AddressCandidate
}

// show passes the source to the views.
func (r *rig) show() {
	s := r.source
	r.server.Datastore.Show(DatastoreSource{Type: "embedded", Tables: s.Datastore, Store: s.Store})
	r.server.BGP.Show(BGPSource{Speaker: s.BGP, Desired: s.Desired})
	r.server.Dataplane.Show(DataplaneSource{Agent: s.Dataplane})
	r.server.Policy.Show(PolicySource{Agent: s.Policy, Tracer: s.Trace})
	r.server.Node.Show(NodeSource{Addresses: s.Addresses})
}

// newRig starts a server that shows nothing yet.
func newRig(t *testing.T) *rig {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	r := &rig{t: t, logs: logs, level: zap.NewAtomicLevel(), socket: filepath.Join(t.TempDir(), "run", "manxd.sock")}
	r.server = New(Config{
		Node: "node-1", Version: Version{Manx: "v1", Commit: "abc", GoBGP: "v4", Go: "1.26"},
		Log: zap.New(core), Level: r.level, Poll: 5 * time.Millisecond,
	})
	l, err := Listen(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	r.run(func(ctx context.Context) error { return r.server.Serve(ctx, l) })
	r.conn, err = grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.conn.Close() })
	r.client = manxv1.NewManxClient(r.conn)
	return r
}

// run runs f until the test ends and waits for it.
func (r *rig) run(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// start makes all parts run and shows them. The kernel has eth0 (10.1.0.1/24) and cali1.
func (r *rig) start() {
	r.t.Helper()
	r.kernel = kerneltest.New()
	r.kernel.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true, MTU: 1500})
	r.kernel.PutLink(kernel.Link{Index: 3, Name: "cali1", Up: true, Running: true, MTU: 1500})
	uplink := netip.MustParsePrefix("10.1.0.1/24")
	r.kernel.PutAddress(kernel.Address{Link: 2, Prefix: uplink})
	r.kernel.PutRoute(kernel.Route{Dst: uplink.Masked(), Protocol: kernel.ProtocolKernel, Type: kernel.Unicast,
		Scope: kernel.ScopeLink, NextHops: []kernel.NextHop{{Link: 2}}})
	r.tables = datastore.NewTables(zap.NewNop(), "")
	r.agent = dataplane.New(dataplane.Config{Kernel: r.kernel, NodeName: "node-1", Logger: zap.NewNop()})
	r.run(r.agent.Run)
	r.bgp = &sessions{list: map[netip.Addr]speaker.SessionStatus{}, wake: map[chan speaker.SessionEvent]bool{}}
	r.source = source{Datastore: r.tables, BGP: r.bgp, Dataplane: r.agent}
	r.show()
}

// store makes the tables hold these objects, in sync, and notifies the agent.
func (r *rig) store(objects ...*model.Object) {
	var events []datastore.Event
	for _, o := range objects {
		events = append(events, datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o,
			Revision: o.Revision})
	}
	r.tables.Apply(append(events, datastore.Event{Type: datastore.EventInSync, Revision: 9})...)
	r.agent.SetState(dataplane.State{Reader: r.tables.Snapshot(), All: true, DatastoreSynced: true, BGPSynced: true})
}

func (r *rig) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

func object(t *testing.T, kind model.Kind, namespace, name, json string) *model.Object {
	t.Helper()
	return codec.Decode(model.Key{Kind: kind, Namespace: namespace, Name: name}, []byte(json), 7)
}

// sessions is a speaker with sessions of the test.
type sessions struct {
	mu     sync.Mutex
	list   map[netip.Addr]speaker.SessionStatus
	wake   map[chan speaker.SessionEvent]bool
	synced bool

	resets   []string
	resetErr error

	received, sent map[netip.Addr][]speaker.EvaluatedPath
	table          map[bool][]*speaker.TablePath // by whether it is that of IPv6
	refused        []fib.Rejection
	history        []speaker.Transition
}

var _ BGP = (*sessions)(nil)
var _ BGP = (*speaker.Speaker)(nil)

func (s *sessions) set(st speaker.SessionStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list[st.Session.Address] = st
}

func (s *sessions) drop(a string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, netip.MustParseAddr(a))
}

func (s *sessions) Sessions() []speaker.SessionStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []speaker.SessionStatus
	for _, st := range s.list {
		all = append(all, st)
	}
	// as the speaker does
	slices.SortFunc(all, func(a, b speaker.SessionStatus) int { return a.Session.Address.Compare(b.Session.Address) })
	return all
}

func (s *sessions) Session(a netip.Addr) (speaker.SessionStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.list[a]
	return st, ok
}

func (s *sessions) History(a netip.Addr) (list []speaker.Transition) {
	for _, x := range s.history {
		if !a.IsValid() || x.Address == a {
			list = append(list, x)
		}
	}
	return list
}

func (s *sessions) WatchSessions(ctx context.Context) <-chan speaker.SessionEvent {
	out := make(chan speaker.SessionEvent)
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

func (s *sessions) Ready() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced {
		return false, "waiting for 192.0.2.1"
	}
	return true, ""
}

func (s *sessions) ReceivedFrom(a netip.Addr) (iter.Seq[speaker.EvaluatedPath], error) {
	return slices.Values(s.received[a]), nil
}

func (s *sessions) AdvertisedTo(a netip.Addr) (iter.Seq[speaker.EvaluatedPath], error) {
	return slices.Values(s.sent[a]), nil
}

func (s *sessions) Table(ipv6 bool) ([]*speaker.TablePath, error) { return s.table[ipv6], nil }

func (*sessions) Strangers() uint64 { return 4 }

func (s *sessions) Totals() map[bgp.SessionType]speaker.Totals {
	all := map[bgp.SessionType]speaker.Totals{}
	for _, st := range s.Sessions() {
		n := all[st.Session.Type]
		n.Flaps, n.Restarts = n.Flaps+st.Flaps, n.Restarts+st.Restarts
		all[st.Session.Type] = n
	}
	return all
}

func (s *sessions) ResetSession(_ context.Context, a netip.Addr, kind speaker.ResetKind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resets = append(s.resets, fmt.Sprint(a, " ", kind))
	return s.resetErr
}

func (s *sessions) ClearSession(a netip.Addr) (speaker.SessionStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.list[a]
	fresh := st
	fresh.Flaps, fresh.Restarts = 0, 0
	s.list[a] = fresh
	return st, ok
}

func (*sessions) Answers() {}

func (s *sessions) Rejected() []fib.Rejection { return s.refused }

func (s *sessions) finish() {
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
}

var since = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func session(address string, typ bgp.SessionType, phase speaker.Phase, state, reason string) speaker.SessionStatus {
	return speaker.SessionStatus{
		Session: bgp.Session{Address: netip.MustParseAddr(address), Port: 179, Type: typ, From: []string{"BGPPeer/x"},
			LocalAS: 64512, PeerAS: 64513, PasswordFrom: "none"},
		State: state, Phase: phase, Reason: reason, Since: since,
	}
}

// eventually waits until f returns an empty text; f's last text is the failure.
func eventually(t *testing.T, f func() string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		complaint := f()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(complaint)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// noLeak fails if goroutines that were started since still run after the test and its clean-up.
func noLeak(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		eventually(t, func() string {
			if runtime.NumGoroutine() <= before {
				return ""
			}
			stacks := make([]byte, 1<<20)
			return "goroutines are left:\n" + string(stacks[:runtime.Stack(stacks, true)])
		})
	})
}

func dial(socket string) error {
	c, err := net.Dial("unix", socket)
	if err == nil {
		c.Close()
	}
	return err
}

func deleted(namespace, name string) datastore.Event {
	return datastore.Event{Type: datastore.EventDelete, Key: model.Key{Kind: model.KindWorkloadEndpoint,
		Namespace: namespace, Name: name}, Revision: 10}
}

// node and pod are the objects of most tests.
func node(t *testing.T) *model.Object {
	return object(t, model.KindNode, "", "node-1",
		`{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node-1"},"spec":{"bgp":{"ipv4Address":"10.1.0.1/24"}}}`)
}

func pod(t *testing.T, name, device, address string) *model.Object {
	return object(t, model.KindWorkloadEndpoint, "shop", name,
		`{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"`+name+
			`","namespace":"shop"},
		"spec":{"orchestrator":"k8s","node":"node-1","pod":"`+name+`","endpoint":"eth0","interfaceName":"`+device+
			`","ipNetworks":["`+address+`"]}}`)
}

var _ Dataplane = (*dataplane.HostAgent)(nil)
var _ Datastore = (*datastore.Tables)(nil)
