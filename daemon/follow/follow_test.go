package follow

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// diary has the calls of the fakes, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// fakeSpeaker is a speaker with the errors and routes that a test sets.
type fakeSpeaker struct {
	diary   *diary
	changed chan struct{}

	mu      sync.Mutex
	err     error
	synced  bool
	desired bgp.Desired
	routes  []locrib.Route
}

func (s *fakeSpeaker) Set(_ context.Context, d bgp.Desired) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sessions []string
	for _, x := range d.Sessions {
		sessions = append(sessions, x.Address.String()+x.Password)
	}
	s.diary.write("speaker AS %d sessions %v", d.Global.LocalAS, sessions)
	s.desired = d
	return s.err
}

func (s *fakeSpeaker) Changed() <-chan struct{} { return s.changed }

func (s *fakeSpeaker) Take(most int) []locrib.Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(most, len(s.routes))
	taken := s.routes[:n]
	s.routes = s.routes[n:]
	return taken
}

func (s *fakeSpeaker) Synced() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced, ""
}

// change changes the speaker and notifies the follower.
func (s *fakeSpeaker) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// fakeAgent records its calls.
type fakeAgent struct {
	diary *diary

	mu      sync.Mutex
	state   dataplane.State
	learned []locrib.Route
}

func (a *fakeAgent) SetState(s dataplane.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = s
	names := []string{}
	for _, k := range s.Changed {
		names = append(names, k.Name)
	}
	a.diary.write("agent all %t changed %v synced %t %t", s.All, names, s.DatastoreSynced, s.BGPSynced)
}

func (a *fakeAgent) Learn(list []locrib.Route) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learned = append(a.learned, list...)
	a.diary.write("agent learns %d", len(list))
}

// fakePasswords has one password for all sessions. It is checked from time to time while a session requests it.
type fakePasswords struct {
	changed chan struct{}

	mu          sync.Mutex
	word, given string
	wanted      bool
	checks      int
}

const passwordPoll = 10 * time.Second

func (p *fakePasswords) Password(string, string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given, p.wanted = p.word, true
	return p.word, nil
}

func (p *fakePasswords) Place(string, string) string { return "a test" }

func (p *fakePasswords) EndDecision() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wanted {
		return 0
	}
	p.wanted = false
	return passwordPoll
}

func (p *fakePasswords) Outdated() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks++
	return p.word != p.given
}

func (p *fakePasswords) Changed() <-chan struct{} { return p.changed }

// rig is a follower between tables that the test fills and fakes, in a bubble with a clock of its own.
type rig struct {
	t         *testing.T
	diary     *diary
	speaker   *fakeSpeaker
	agent     *fakeAgent
	passwords *fakePasswords
	tables    *datastore.Tables
	last      chan model.Reader
	kept      []int64 // the revisions that Keep was called with
	follower  *Follower
	revision  int64
}

// bubble runs a test with a rig whose follower runs.
func bubble(t *testing.T, test func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		r := &rig{t: t, diary: d, speaker: &fakeSpeaker{diary: d, changed: make(chan struct{}, 1)},
			agent: &fakeAgent{diary: d}, passwords: &fakePasswords{changed: make(chan struct{}, 1)},
			tables: datastore.NewTables(zap.NewNop(), ""), last: make(chan model.Reader, 1)}
		r.follower = New(Config{Settings: bgp.Input{Node: "n1"}, Connected: func() []netip.Prefix { return nil },
			Kernel:    func() []bgp.KernelRoute { return nil },
			Passwords: r.passwords, Tables: r.tables, Speaker: r.speaker, Agents: []Agent{r.agent},
			Kinds: []model.Kind{model.KindNetworkPolicy}, Last: r.last, Log: zap.NewNop(),
			Keep: func(s *datastore.Snapshot, _ bgp.Desired) { r.kept = append(r.kept, s.Revision()) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.follower.Run(ctx) }()
		test(r)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

// expect fails unless exactly these lines were written since the last call.
func (r *rig) expect(what string, want ...string) {
	r.t.Helper()
	synctest.Wait()
	r.diary.mu.Lock()
	defer r.diary.mu.Unlock()
	if !slices.Equal(r.diary.lines, want) {
		r.t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(r.diary.lines, "\n"), strings.Join(want, "\n"))
	}
	r.diary.lines = nil
}

// put stores an object; with more another change follows.
func (r *rig) put(kind model.Kind, namespace, name, spec string) datastore.Event {
	r.revision++
	k := model.Key{Kind: kind, Namespace: namespace, Name: name}
	o := codec.Decode(k, fmt.Appendf(nil,
		`{"kind":%q,"apiVersion":"projectcalico.org/v3","metadata":{"name":%q,"namespace":%q},"spec":%s}`,
		kind, name, namespace, spec), r.revision)
	if o.Err != nil {
		r.t.Fatal(o.Err)
	}
	return datastore.Event{Type: datastore.EventUpdate, Key: k, Object: o, Revision: r.revision}
}

func (r *rig) drop(kind model.Kind, namespace, name string) datastore.Event {
	r.revision++
	return datastore.Event{Type: datastore.EventDelete, Key: model.Key{Kind: kind, Namespace: namespace, Name: name},
		Revision: r.revision}
}

// begin fills the tables with a mesh of two nodes.
func (r *rig) begin(more ...datastore.Event) {
	events := append([]datastore.Event{
		r.put(model.KindNode, "", "n1", `{"bgp":{"ipv4Address":"192.0.2.1/24"}}`),
		r.put(model.KindNode, "", "n2", `{"bgp":{"ipv4Address":"192.0.2.2/24"}}`),
	}, more...)
	r.tables.Apply(append(events, datastore.Event{Type: datastore.EventInSync, Revision: r.revision})...)
}

const mesh = "speaker AS 64512 sessions [192.0.2.2]"

func TestNothingBeforeTheDatastoreWasRead(t *testing.T) {
	bubble(t, func(r *rig) {
		r.tables.Apply(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv4Address":"192.0.2.1/24"}}`))
		r.speaker.change(func() { r.speaker.synced = true })
		time.Sleep(time.Hour)
		r.expect("before the first full read")
		r.begin()
		r.expect("after it", "agent all true changed [] synced true true", mesh)
	})
}

// While the datastore does not answer, BGP is decided from the last state of an earlier run. The agents get no
// workloads from it, and may remove nothing. When the datastore has been read, it alone counts, and it alone is kept.
func TestLastStateUntilTheDatastoreWasRead(t *testing.T) {
	bubble(t, func(r *rig) {
		last := model.NewSet(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv4Address":"192.0.2.1/24"}}`).Object,
			r.put(model.KindNode, "", "n3", `{"bgp":{"ipv4Address":"192.0.2.3/24"}}`).Object,
			r.put(model.KindWorkloadEndpoint, "ns", "n1-k8s-a-eth0", `{"node":"n1","orchestrator":"k8s","pod":"a",
				"endpoint":"eth0","interfaceName":"cali1","ipNetworks":["10.0.0.1/32"]}`).Object)
		const earlier = "speaker AS 64512 sessions [192.0.2.3]"
		r.last <- last
		r.expect("from the last state", "agent all true changed [] synced false false", earlier)
		s := r.agent.state
		workloads := slices.Collect(s.Reader.All(model.KindWorkloadEndpoint))
		key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "ns", Name: "n1-k8s-a-eth0"}
		if !s.Last || len(workloads) > 0 || s.Reader.Get(key) != nil || s.Reader.Get(
			model.ResourceKey(model.KindNode, "n3")) == nil {
			t.Errorf("last %v, workloads %v", s.Last, workloads)
		}
		r.follower.Trigger()
		r.expect("when something else has changed", "agent all true changed [] synced false false", earlier)
		r.speaker.change(func() { r.speaker.synced = true })
		r.expect("with all routes", "agent all false changed [] synced false true")
		if len(r.kept) > 0 {
			t.Errorf("the last state is kept: %v", r.kept)
		}
		r.tables.Apply(r.put(model.KindNode, "", "n9", `{"bgp":{"ipv4Address":"192.0.2.9/24"}}`))
		r.expect("before the full read")
		r.tables.Apply(r.drop(model.KindNode, "", "n9"))
		r.begin()
		r.expect("after it", "agent all true changed [] synced true true", mesh)
		if r.agent.state.Last || len(r.kept) != 1 || r.kept[0] != r.revision {
			t.Errorf("last %v, kept %v, want revision %d", r.agent.state.Last, r.kept, r.revision)
		}
	})
}

// A Node that has lost its address since the last state is not kept as it was: this process starts.
func TestLastStateDoesNotHoldTheNode(t *testing.T) {
	bubble(t, func(r *rig) {
		r.last <- model.NewSet(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv4Address":"192.0.2.1/24"}}`).Object)
		r.expect("from the last state", "agent all true changed [] synced false false", "speaker AS 64512 sessions []")
		r.begin(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv6Address":"fd00::1/64","asNumber":65001}}`))
		r.expect("from the datastore", "agent all true changed [] synced true false", "speaker AS 65001 sessions []")
	})
}

func TestNodeDeletedKeepsBGP(t *testing.T) {
	bubble(t, func(r *rig) {
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		before, at := r.follower.Decided()
		r.tables.Apply(r.drop(model.KindNode, "", "n1"))
		r.expect("Node deleted", "agent all false changed [n1] synced true false")
		d, still := r.follower.Decided()
		if d.Global.LocalAS != 64512 || len(d.Sessions) != 1 || !still.Equal(at) || len(d.Notices) != 1 ||
			!strings.Contains(d.Notices[0].Reason, "BGP is kept as it was") {
			t.Errorf("decided %v at %s, before %v at %s", d, still, before, at)
		}
		time.Sleep(10 * time.Minute)
		r.expect("ten minutes later")
		r.tables.Apply(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv4Address":"192.0.2.1/24","asNumber":65001}}`))
		r.expect("Node back", "agent all false changed [n1] synced true false", "speaker AS 65001 sessions [192.0.2.2]")
		if n := r.follower.Desired().Notices; len(n) > 0 {
			t.Errorf("notices %v", n)
		}
	})
}

// A Node that is applied without its address restarts nothing.
func TestNodeWithoutAddressKeepsBGP(t *testing.T) {
	bubble(t, func(r *rig) {
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		r.tables.Apply(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv6Address":"fd00::1/64"}}`))
		r.expect("without address", "agent all false changed [n1] synced true false")
		if n := r.follower.Desired().Notices; len(n) != 1 ||
			!strings.Contains(n[0].Reason, "has no IPv4 address any more") {
			t.Errorf("notices %v", n)
		}
		r.tables.Apply(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv4Address":"192.0.2.1/24"}}`))
		r.expect("with it again", "agent all false changed [n1] synced true false", mesh)
		if n := r.follower.Desired().Notices; len(n) > 0 {
			t.Errorf("notices %v", n)
		}
	})
}

// A changed password takes effect: at once after a notification, else at the next check. Before that, BGP is not
// decided again. There are no checks while no session has a password.
func TestPasswordsChange(t *testing.T) {
	bubble(t, func(r *rig) {
		r.passwords.word = "old"
		r.begin(r.put(model.KindBGPPeer, "", "tor", `{"peerIP":"192.0.2.9","asNumber":65009,
			"password":{"secretKeyRef":{"name":"tor","key":"pw"}}}`))
		const old, fresh = "speaker AS 64512 sessions [192.0.2.2 192.0.2.9old]",
			"speaker AS 64512 sessions [192.0.2.2 192.0.2.9new]"
		r.expect("at first", "agent all true changed [] synced true false", old)
		word := func(w string) {
			r.passwords.mu.Lock()
			defer r.passwords.mu.Unlock()
			r.passwords.word = w
		}
		checks := func(want int) {
			t.Helper()
			r.passwords.mu.Lock()
			defer r.passwords.mu.Unlock()
			if r.passwords.checks != want {
				t.Errorf("%d checks of the passwords, want %d", r.passwords.checks, want)
			}
			r.passwords.checks = 0
		}
		word("new")
		r.expect("before a notification")
		r.passwords.changed <- struct{}{}
		r.expect("a new one", fresh)
		word("old")
		time.Sleep(passwordPoll)
		r.expect("without a notification", old)
		checks(1)
		time.Sleep(6 * passwordPoll)
		r.expect("without a change")
		checks(6)
		r.tables.Apply(r.put(model.KindNetworkPolicy, "ns", "web", `{"selector":"all()"}`))
		time.Sleep(passwordPoll)
		r.expect("changes that BGP does not depend on", "agent all false changed [web] synced true false")
		checks(1)
		word("new")
		time.Sleep(passwordPoll)
		r.expect("another one", fresh)
		checks(1)
		r.follower.Trigger()
		r.expect("when something else has changed", fresh)
		r.tables.Apply(r.drop(model.KindBGPPeer, "", "tor"))
		r.expect("no session with a password", "agent all false changed [tor] synced true false", // a version, and
			"agent all false changed [] synced true false", mesh) // a peer less
		word("old")
		time.Sleep(time.Hour)
		r.expect("passwords that no session uses")
		checks(0)
	})
}

func TestSpeakerThatFailsIsTriedAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		r.speaker.err = errors.New("port 179 is in use")
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		time.Sleep(3*retryAfter + retryAfter/2)
		r.expect("while it fails", mesh, mesh, mesh)
		r.speaker.mu.Lock()
		r.speaker.err = nil
		r.speaker.mu.Unlock()
		time.Sleep(retryAfter)
		r.expect("when it works", mesh)
		time.Sleep(time.Hour)
		r.expect("after that")
	})
}

func TestChangesReachTheAgentsAndBGP(t *testing.T) {
	pod := `{"orchestrator":"k8s","node":%q,"pod":"a","endpoint":"eth0","interfaceName":"cali1",
		"ipNetworks":["10.65.0.1/32"]}`
	bubble(t, func(r *rig) {
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		r.tables.Apply(r.put(model.KindWorkloadEndpoint, "ns", "far", fmt.Sprintf(pod, "n2")))
		r.expect("a pod of another node", "agent all false changed [far] synced true false")
		r.tables.Apply(r.put(model.KindWorkloadEndpoint, "ns", "near", fmt.Sprintf(pod, "n1")))
		r.expect("a pod of this node", "agent all false changed [near] synced true false", mesh)
		r.tables.Apply(r.put(model.KindNetworkPolicy, "ns", "web", `{"selector":"all()"}`))
		r.expect("a kind of agents alone", "agent all false changed [web] synced true false")
		r.tables.Apply(r.put(model.KindIPReservation, "", "some", `{"reservedCIDRs":["10.1.0.0/24"]}`))
		r.expect("a kind without users")
		newest := r.tables.Snapshot()
		// In one step, so that nothing differs in the end but the revision.
		r.tables.Apply(r.put(model.KindNetworkPolicy, "ns", "x", `{"selector":"all()"}`),
			r.drop(model.KindNetworkPolicy, "ns", "x"))
		r.expect("a change that was undone, for agents that wait for a revision",
			"agent all false changed [] synced true false")
		if r.agent.state.Reader != model.Reader(r.tables.Snapshot()) || r.tables.Snapshot() == newest {
			t.Error("the agent does not have the newest snapshot")
		}
	})
}

// The next run gets tunnel addresses and keys of other nodes, on which BGP does not depend, but no state without the
// Node of this host.
func TestNodesAreKeptForTheNextRun(t *testing.T) {
	bubble(t, func(r *rig) {
		kept := func(what string, want ...int64) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(r.kept, want) {
				t.Errorf("%s: kept revisions %v, want %v", what, r.kept, want)
			}
			r.kept = nil
		}
		vtep := func(mac string) {
			r.tables.Apply(r.put(model.KindNode, "", "n2",
				fmt.Sprintf(`{"bgp":{"ipv4Address":"192.0.2.2/24"},"vxlanTunnelMACAddr":%q}`, mac)))
		}
		r.begin()
		kept("at first", r.revision)
		vtep("02:00:00:00:00:01")
		kept("another node has a tunnel", r.revision)
		r.tables.Apply(r.put(model.KindNetworkPolicy, "ns", "web", `{"selector":"all()"}`))
		kept("a policy")
		r.tables.Apply(r.drop(model.KindNode, "", "n1"))
		kept("without this host's Node")
		vtep("02:00:00:00:00:02")
		kept("and another node has a tunnel then")
		r.tables.Apply(r.put(model.KindNode, "", "n1", `{"bgp":{"ipv4Address":"192.0.2.1/24"}}`))
		kept("it is back", r.revision)
	})
}

// A pod inside a block that this node advertises changes nothing about BGP.
func TestPodsInsideOwnBlocks(t *testing.T) {
	pod := `{"orchestrator":"k8s","node":"n1","pod":"a","endpoint":"eth0","interfaceName":"cali1","ipNetworks":[%q]}`
	bubble(t, func(r *rig) {
		k := model.Key{Kind: model.KindBlockAffinity, Name: "host/n1/10.65.2.0/26"}
		block := datastore.Event{Type: datastore.EventUpdate, Key: k, Revision: r.revision,
			Object: codec.Decode(k, []byte(`{"state":"confirmed"}`), r.revision)}
		r.begin(r.put(model.KindIPPool, "", "pods", `{"cidr":"10.65.0.0/16"}`), block)
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		r.tables.Apply(r.put(model.KindWorkloadEndpoint, "ns", "in", fmt.Sprintf(pod, "10.65.2.7/32")))
		r.expect("a pod inside the block", "agent all false changed [in] synced true false")
		r.tables.Apply(r.put(model.KindWorkloadEndpoint, "ns", "out", fmt.Sprintf(pod, "10.65.9.7/32")))
		r.expect("a pod outside of it", "agent all false changed [out] synced true false", mesh)
		r.tables.Apply(r.drop(model.KindWorkloadEndpoint, "ns", "in"))
		r.expect("the pod inside goes", "agent all false changed [in] synced true false")
	})
}

// Blocks of other nodes concern BGP only while they decide the refusal of peers' routes.
func TestBlocksOfOtherNodes(t *testing.T) {
	bubble(t, func(r *rig) {
		block := func(host, cidr string) datastore.Event {
			r.revision++
			k := model.Key{Kind: model.KindBlockAffinity, Name: "host/" + host + "/" + cidr}
			return datastore.Event{Type: datastore.EventUpdate, Key: k, Revision: r.revision,
				Object: codec.Decode(k, []byte(`{"state":"confirmed"}`), r.revision)}
		}
		const tor = "speaker AS 64512 sessions [192.0.2.2 192.0.2.9]"
		r.begin(r.put(model.KindBGPPeer, "", "tor", `{"peerIP":"192.0.2.9","asNumber":65009}`),
			r.put(model.KindIPPool, "", "pods", `{"cidr":"10.65.0.0/16"}`))
		r.expect("at first", "agent all true changed [] synced true false", tor)
		r.tables.Apply(block("n2", "10.65.1.0/26"))
		r.expect("a block of another node", "agent all false changed [host/n2/10.65.1.0/26] synced true false")
		r.tables.Apply(block("n1", "10.65.2.0/26"))
		r.expect("a block of this node", "agent all false changed [host/n1/10.65.2.0/26] synced true false", tor)
		r.follower.config.Settings.Refuse.Pools = true
		r.follower.Trigger()
		r.expect("blocks decide from now on", tor)
		r.tables.Apply(block("n2", "10.65.3.0/26"))
		r.expect("then another one", "agent all false changed [host/n2/10.65.3.0/26] synced true false", tor)
	})
}

func TestSyncedIsPassedOnAndWithdrawn(t *testing.T) {
	bubble(t, func(r *rig) {
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		r.speaker.mu.Lock()
		r.speaker.synced = true // its routes are on their way
		r.speaker.mu.Unlock()
		r.tables.Apply(r.put(model.KindNetworkPolicy, "ns", "web", `{"selector":"all()"}`))
		r.expect("a change that comes before the routes", "agent all false changed [web] synced true false")
		r.speaker.change(func() {
			r.speaker.routes = []locrib.Route{{Prefix: netip.MustParsePrefix("10.65.1.0/26")}}
		})
		r.expect("the routes, then their completeness", "agent learns 1",
			"agent all false changed [] synced true true")
		r.speaker.change(func() {})
		r.expect("nothing new")
		r.tables.Apply(datastore.Event{Type: datastore.EventLost, Err: errors.New("connection refused")})
		r.expect("connection lost", "agent all false changed [] synced false true")
		r.speaker.mu.Lock()
		r.speaker.synced = false // it restarts
		r.speaker.mu.Unlock()
		r.follower.Trigger()
		r.expect("BGP restarts", "agent all false changed [] synced false false", mesh)
		r.tables.Apply(r.put(model.KindIPReservation, "", "some", `{"reservedCIDRs":["10.1.0.0/24"]}`),
			datastore.Event{Type: datastore.EventInSync, Revision: r.revision})
		r.expect("the datastore is back, with a kind without users", "agent all false changed [] synced true false")
	})
}

func TestStaticRoutesAndPeeringArePassedOn(t *testing.T) {
	bubble(t, func(r *rig) {
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		r.tables.Apply(r.put(model.KindBGPPeer, "", "far",
			`{"peerIP":"198.51.100.9","asNumber":65009,"reachableBy":"192.0.2.254"}`))
		r.expect("a peer behind a gateway", "agent all false changed [far] synced true false",
			"agent all false changed [] synced true false", "speaker AS 64512 sessions [192.0.2.2 198.51.100.9]")
		want := []route.Static{{Prefix: netip.MustParsePrefix("198.51.100.9/32"),
			Via: netip.MustParseAddr("192.0.2.254")}}
		if !slices.Equal(r.agent.state.Statics, want) {
			t.Errorf("statics %v", r.agent.state.Statics)
		}
	})
}

func TestLearnedRoutesComeInBatches(t *testing.T) {
	bubble(t, func(r *rig) {
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		hop := func(a string) locrib.Path { return locrib.Path{NextHop: netip.MustParseAddr(a)} }
		a := netip.MustParseAddr("10.0.0.0")
		r.speaker.change(func() {
			for range routeBatch + 2 {
				r.speaker.routes = append(r.speaker.routes, locrib.Route{Prefix: netip.PrefixFrom(a, 32), Metric: 1024,
					Paths: []locrib.Path{hop("192.0.2.2"), hop("192.0.2.2"), hop("192.0.2.3")}})
				a = a.Next()
			}
			r.speaker.routes[routeBatch].Paths = nil // gone
		})
		r.expect("many routes", fmt.Sprintf("agent learns %d", routeBatch), "agent learns 2")
		hops := []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
		for i, l := range r.agent.learned {
			want := hops
			if i == routeBatch {
				want = nil
			}
			if !slices.Equal(l.AppendNextHops(nil), want) || l.Metric != 1024 || !l.Prefix.IsValid() {
				t.Fatalf("route %d is %v", i, l)
			}
		}
	})
}

// A single route is passed at once. While many come, those of the next milliseconds are one batch.
func TestManyLearnedRoutesAreCollected(t *testing.T) {
	bubble(t, func(r *rig) {
		r.begin()
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		a := netip.MustParseAddr("10.0.0.0")
		learn := func(n int) {
			r.speaker.change(func() {
				for range n {
					r.speaker.routes = append(r.speaker.routes, locrib.Route{Prefix: netip.PrefixFrom(a, 32),
						Paths: []locrib.Path{{NextHop: netip.MustParseAddr("192.0.2.2")}}})
					a = a.Next()
				}
			})
		}
		for range 3 {
			learn(1)
			r.expect("a single route", "agent learns 1")
		}
		const many = 100
		learn(many)
		r.expect("many routes", fmt.Sprintf("agent learns %d", many))
		for range 4 {
			learn(many)
			r.expect("soon after them")
			time.Sleep(linger / 2)
			learn(2)
			r.expect("still soon after them")
			time.Sleep(linger / 2)
			r.expect("then", fmt.Sprintf("agent learns %d", many+2))
		}
		r.speaker.change(func() { r.speaker.synced = true })
		time.Sleep(linger)
		r.expect("the end of a table", "agent all false changed [] synced true true")
		time.Sleep(time.Second)
		learn(1)
		r.expect("a single route later", "agent learns 1")
	})
}

// Endpoints of services on other nodes come and go all the time: BGP is decided again when the first one comes here,
// and when the last one goes.
func TestEndpointsOfServices(t *testing.T) {
	bubble(t, func(r *rig) {
		slice := func(nodes ...string) datastore.Event {
			r.revision++
			k := model.Key{Kind: model.KindEndpointSlice, Namespace: "ns", Name: "web-1"}
			v := &model.EndpointSlice{AddressType: "IPv4"}
			v.Labels = map[string]string{model.LabelServiceName: "web"}
			for _, n := range nodes {
				v.Endpoints = append(v.Endpoints, model.Endpoint{NodeName: &n})
			}
			return datastore.Event{Type: datastore.EventUpdate, Key: k, Revision: r.revision,
				Object: model.NewObject(k, v)}
		}
		const changed = "agent all false changed [web-1] synced true false"
		r.begin(slice("n2"))
		r.expect("at first", "agent all true changed [] synced true false", mesh)
		r.tables.Apply(slice("n1"))
		r.expect("no range of addresses is advertised", changed)
		r.tables.Apply(r.put(model.KindBGPConfiguration, "", "default",
			`{"serviceExternalIPs":[{"cidr":"10.9.0.0/16"}]}`))
		r.expect("one is", "agent all false changed [default] synced true false", mesh)
		r.tables.Apply(slice("n1", "n2"))
		r.expect("one more elsewhere", changed)
		r.tables.Apply(slice("n2"))
		r.expect("the last one here goes", changed, mesh)
		r.tables.Apply(slice("n3"))
		r.expect("another one elsewhere", changed)
	})
}

// Without BGP the agents follow the datastore: at once there is nothing of peers to wait for, so leftovers may go.
func TestWithoutBGP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, diary: &diary{}, tables: datastore.NewTables(zap.NewNop(), "")}
		r.follower = New(Config{Tables: r.tables, Agents: []Agent{&fakeAgent{diary: r.diary}},
			Kinds: []model.Kind{model.KindNetworkPolicy}, Log: zap.NewNop(),
			Keep: func(*datastore.Snapshot, bgp.Desired) { t.Error("a decision about BGP is kept") }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.follower.Run(ctx) }()
		r.expect("nothing has been read")
		r.begin()
		r.expect("the datastore is in sync", "agent all true changed [] synced true true")
		r.tables.Apply(r.put(model.KindNetworkPolicy, "default", "web", "{}"))
		r.expect("an object", "agent all false changed [web] synced true true")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}
