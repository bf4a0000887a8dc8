package speaker

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgppolicy"
	"github.com/manxnet/manx/datastore/model"
)

// shuffle changes parts of a speaker's configuration. Peers never connect, so that GoBGP's state follows from Set
// alone.
func shuffle(l *policyLab, d bgp.Desired) bgp.Desired {
	d.Sessions, d.Originated = slices.Clone(d.Sessions), slices.Clone(d.Originated)
	switch l.rnd.IntN(5) {
	case 0:
		d.Filters = []bgp.Filter{{Name: "f1"}, {Name: "f2"}}
		for i := range d.Filters {
			for n := range 1 + l.rnd.IntN(2) {
				name := fmt.Sprintf("%s rule %d", d.Filters[i].Name, n)
				d.Filters[i].ExportV4 = append(d.Filters[i].ExportV4, l.rule(name+" out", true))
				d.Filters[i].ImportV4 = append(d.Filters[i].ImportV4, l.rule(name+" in", false))
			}
		}
	case 1:
		p := pfx(fmt.Sprintf("10.9.%d.0/26", l.rnd.IntN(4)))
		if i := slices.IndexFunc(d.Originated, func(o bgp.Origin) bool { return o.Prefix == p }); i >= 0 {
			d.Originated = slices.Delete(d.Originated, i, i+1)
		} else {
			d.Originated = append(d.Originated, bgp.Origin{Prefix: p, LocalPref: 100, Withheld: l.often(20),
				FilterOnly: l.often(20), Shared: l.often(20), Blackhole: l.often(50)})
		}
	case 2:
		d.Refusals = bgp.Martians()[:1+l.rnd.IntN(4)]
		d.Refusals[0].Also = []netip.Prefix{pfx(fmt.Sprintf("10.9.%d.0/26", len(d.Originated)%3))}
		if l.often(50) {
			d.Refusals = append(d.Refusals, bgp.Refusal{Class: bgp.RefusedPool, Outsiders: true, Reason: "pool",
				Match:  bgp.PrefixMatch{CIDR: pfx("10.9.0.0/16"), Min: 16, Max: 32},
				Except: []netip.Prefix{pfx(fmt.Sprintf("10.9.%d.0/26", l.rnd.IntN(3)))}})
		}
		d.Drain = pick(l, []bgp.Drain{"", "", "", bgp.DrainDraining, bgp.DrainWithdrawn})
	default:
		s := l.session()
		if i := slices.IndexFunc(d.Sessions, func(o bgp.Session) bool { return o.Address == s.Address }); i < 0 {
			d.Sessions = append(d.Sessions, s)
		} else {
			if s.Source == ip("fd00::1") { // refused: a session that exists would run on, unlike from scratch
				s.Source = d.Sessions[i].Source
			}
			if d.Sessions[i] = s; l.often(25) {
				d.Sessions = slices.Delete(d.Sessions, i, i+1)
			}
		}
	}
	return d
}

func (l *policyLab) session() bgp.Session {
	s := passive(fmt.Sprintf("127.0.2.%d", 1+l.rnd.IntN(6)))
	s.PeerAS = pick(l, []uint32{64512, 64512, 64601})
	s.Outsider = s.PeerAS != 64512 && l.often(70)
	s.NextHop = pick(l, []bgp.NextHopMode{bgp.NextHopAuto, bgp.NextHopAuto, bgp.NextHopSelf, bgp.NextHopKeep})
	s.Filters = pick(l, [][]string{nil, nil, {"f1"}, {"f2", "f1"}})
	s.KeepaliveSeconds = pick(l, []uint32{0, 0, 20})
	s.MaxPrefixes = pick(l, []uint32{0, 0, 1000})
	s.Drain = pick(l, []model.DrainPhase{"", "", model.Draining})
	s.Type = pick(l, []bgp.SessionType{bgp.SessionMesh, bgp.SessionNode})
	switch l.rnd.IntN(8) {
	case 0:
		s.PasswordFrom, s.PasswordError = "missing", "no such file"
	case 1:
		s.Source = ip("fd00::1") // of another family: refused
	case 2:
		s.Password = "secret"
	}
	if s.PeerAS == 64512 && l.often(30) {
		s.ReflectorClient, s.ReflectorClusterID = true, ip("10.99.0.1")
	}
	return s
}

// described returns the result of the last Set, in GoBGP and in the speaker's own tables.
func described(t *testing.T, s *Speaker) string {
	t.Helper()
	var lines []string
	write := func(what string, value any) {
		if m, ok := value.(proto.Message); ok {
			value = strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(m)), " ")
		}
		lines = append(lines, fmt.Sprintf("%s %+v", what, value))
	}
	ctx, srv := context.Background(), s.Server()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(srv.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		p.State, p.Timers.State, p.GracefulRestart.LocalRestarting = nil, nil, false // the last: of a new speaker alone
		p.Transport.LocalPort = 0
		for _, f := range p.AfiSafis {
			f.State = nil
			f.MpGracefulRestart.State = nil
		}
		p.GracefulRestart = &api.GracefulRestart{RestartTime: p.GracefulRestart.RestartTime}
		write("peer "+p.Conf.NeighborAddress, p)
	}))
	check(srv.ListPolicy(ctx, &api.ListPolicyRequest{}, func(p *api.Policy) { write("policy "+p.Name, p) }))
	for _, kind := range []api.DefinedType{api.DefinedType_DEFINED_TYPE_PREFIX, api.DefinedType_DEFINED_TYPE_NEIGHBOR,
		api.DefinedType_DEFINED_TYPE_AS_PATH, api.DefinedType_DEFINED_TYPE_COMMUNITY,
		api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY} {
		check(srv.ListDefinedSet(ctx, &api.ListDefinedSetRequest{DefinedType: kind},
			func(s *api.DefinedSet) { write("set", s) }))
	}
	check(srv.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: gobgp.RF_IPv4_UC},
		func(n gobgp.NLRI, paths []*apiutil.Path) { write("path "+n.String(), paths[0].Attrs) }))
	for _, st := range s.Statuses() {
		write("status", fmt.Sprintf("%+v %s %s %s", st.Session, st.Phase, st.Reason, st.Warning))
	}
	for addr, x := range s.taps.received() {
		x.mu.Lock()
		write("received", fmt.Sprint(addr, x.outsider, x.rules.List))
		x.mu.Unlock()
	}
	write("own prefixes", slices.SortedFunc(slices.Values(s.fib.OwnPrefixes()), netip.Prefix.Compare))
	write("sessions", slices.SortedFunc(maps.Keys(s.run.sessions), netip.Addr.Compare))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// After any sequence of changes, GoBGP and the speaker's tables equal those of a new speaker with the last state.
func TestSetInStepsIsSetAtOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		l := &policyLab{t: t, rnd: rand.New(rand.NewPCG(seed, 3))}
		s, d := testSpeaker(t, Config{Logger: zap.NewNop()})
		for step := range 25 {
			d = shuffle(l, d)
			err := s.Set(context.Background(), d)
			if want := gobgppolicy.Translate(d, nil); !bytes.Equal(s.run.policy.Encoded, want.Encoded) ||
				!reflect.DeepEqual(s.run.policy.Peers(), want.Peers()) {
				t.Fatalf("seed %d, step %d: another policy than from scratch", seed, step)
			}
			if step%5 != 4 {
				continue
			}
			fresh, at := testSpeaker(t, Config{Logger: zap.NewNop()})
			once := d
			once.Global = at.Global
			if at := fresh.Set(context.Background(), once); fmt.Sprint(at) != fmt.Sprint(err) {
				t.Fatalf("seed %d, step %d: Set returns %v, at once %v", seed, step, err, at)
			}
			if have, want := described(t, s), described(t, fresh); have != want {
				t.Fatalf("seed %d, step %d:\n%s", seed, step, lineDiff(have, want))
			}
			stopSpeaker(fresh)
		}
		stopSpeaker(s)
	}
}

// Settings that could not be configured leave no trace after their removal, although the session ran on unchanged.
func TestRefusedSettingsTakenBack(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{Logger: zap.NewNop()})
	d.Sessions = []bgp.Session{passive("127.0.2.1")}
	mustSet(t, s, d)
	bad := d
	bad.Sessions = slices.Clone(d.Sessions)
	bad.Sessions[0].Source = ip("fd00::1")
	if err := s.Set(context.Background(), bad); err == nil || s.Statuses()[0].Phase != PhaseRefused {
		t.Fatalf("a source of another family: %v, %+v", err, s.Statuses())
	}
	mustSet(t, s, d)
	if st := s.Statuses()[0]; st.Phase != PhaseWaiting {
		t.Errorf("after the old settings are back: %s, %s", st.Phase, st.Reason)
	}
}

func lineDiff(have, want string) string {
	var b strings.Builder
	a, z := strings.Split(have, "\n"), strings.Split(want, "\n")
	for _, line := range a {
		if !slices.Contains(z, line) {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	for _, line := range z {
		if !slices.Contains(a, line) {
			fmt.Fprintf(&b, "+ %s\n", line)
		}
	}
	return b.String()
}

// ordered is a Reader that returns objects in the order of a list.
type ordered []*model.Object

func (l ordered) Get(k model.Key) *model.Object {
	for _, o := range l {
		if o.Key == k {
			return o
		}
	}
	return nil
}

func (l ordered) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		for _, o := range l {
			if o.Key.Kind == kind && !yield(o) {
				return
			}
		}
	}
}

// BenchmarkPeerAdded measures Compute and Set with one more node in a mesh that has n sessions up.
func BenchmarkPeerAdded(b *testing.B) {
	for _, n := range []int{0, 500} {
		b.Run(fmt.Sprintf("sessions=%d", n), func(b *testing.B) {
			s, d := testSpeaker(b, Config{Logger: zap.NewNop()})
			config := &model.BGPConfiguration{}
			config.Spec.ListenPort = d.Global.ListenPort
			config.Spec.BindMode = new(v3.BindModeNodeIP)
			objects := ordered{model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"), config)}
			for i := range n + 2 {
				a := netip.AddrFrom4([4]byte{127, 0, 8 + byte(i/250), byte(1 + i%250)})
				if i == 0 {
					a = ip("127.0.0.1")
				}
				node := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: a.String() + "/8"}}}
				objects = append(objects, model.NewObject(model.ResourceKey(model.KindNode, fmt.Sprintf("n%04d", i)),
					node))
			}
			compute := func(objects ordered) bgp.Desired {
				return bgp.Compute(bgp.Input{Reader: objects, Node: "n0000"})
			}
			d = compute(objects[:n+2])
			mustSet(b, s, d)
			for i, x := range d.Sessions {
				dialFake(b, x.Address.String(), listenOf(d),
					fakeOptions{as: 64512, id: fmt.Sprintf("10.98.%d.%d", i/250, 1+i%250)})
			}
			for _, x := range d.Sessions {
				awaitSession(b, s, x.Address.String(), "Established", established)
			}
			var computing, setting time.Duration
			for b.Loop() {
				t0 := time.Now()
				more := compute(objects)
				t1 := time.Now()
				mustSet(b, s, more)
				computing, setting = computing+t1.Sub(t0), setting+time.Since(t1)
				b.StopTimer()
				mustSet(b, s, d)
				b.StartTimer()
			}
			if len(d.Sessions) != n {
				b.Fatal(len(d.Sessions))
			}
			b.ReportMetric(float64(computing.Microseconds())/float64(b.N), "us/compute")
			b.ReportMetric(float64(setting.Microseconds())/float64(b.N), "us/set")
		})
	}
}
