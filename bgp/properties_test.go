package bgp

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// randomCluster generates a cluster without mistakes: addresses, AS numbers, ports, reflectors and BGPPeers of every
// shape between its nodes. Each BGPPeer is reversed.
func randomCluster(r *rand.Rand) (nodes []string, objects []string) {
	pick := func(choices ...string) string { return choices[r.IntN(len(choices))] }
	n := 2 + r.IntN(6)
	objects = append(objects, fmt.Sprintf(`config default {"nodeToNodeMeshEnabled":%s%s%s}`, pick("true", "false"),
		pick("", `,"asNumber":64600`), pick("", `,"listenPort":180`)))
	var addrs []string
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		nodes = append(nodes, name)
		v4, v6 := fmt.Sprintf("10.0.0.%d", i*7+1), fmt.Sprintf("fd00::%x", i*9+1)
		bgp := []string{fmt.Sprintf(`"ipv4Address":"%s/24"`, v4), fmt.Sprintf(`"ipv6Address":"%s/64"`, v6)}
		switch r.IntN(4) {
		case 0:
			bgp, v6 = bgp[:1], ""
		case 1:
			bgp, v4 = bgp[1:], ""
		}
		addrs = append(addrs, v4, v6)
		extra := pick("", "", `,"asNumber":65001`, fmt.Sprintf(`,"asNumber":%d`, 65100+i)) +
			pick("", "", `,"routeReflectorClusterID":"10.9.9.9"`, `,"routeReflectorClusterID":"10.9.9.8"`)
		spec := bgp[0]
		if len(bgp) == 2 {
			spec += "," + bgp[1]
		}
		objects = append(objects, fmt.Sprintf(`node %s {"bgp":{%s%s}}@{"rack":%q}`, name, spec, extra, pick("a", "b")))
		if r.IntN(4) == 0 {
			objects = append(objects, fmt.Sprintf(`config node.%s {"listenPort":%d}`, name, 500+i))
		}
	}
	for i := range r.IntN(5) {
		side := pick("", `"node":"n0",`, `"node":"n1",`, `"nodeSelector":"rack == 'a'",`, `"nodeSelector":"all()",`)
		far := pick(`"peerSelector":"rack == 'b'"`, `"peerSelector":"all()"`)
		if addr := pick(addrs...); addr != "" && r.IntN(2) == 0 {
			far = fmt.Sprintf(`"peerIP":%q`, pick(addr, addr,
				netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(1790)).String())) +
				pick("", `,"localASNumber":65222`)
		}
		objects = append(objects, fmt.Sprintf(`peer p%d {%s%s%s%s}`, r.IntN(10)*10+i, side, far,
			pick("", `,"ttlSecurity":1`), pick("", fmt.Sprintf(`,"password":{"secretKeyRef":{"name":"s","key":"k%d"}}`,
				i))))
	}
	return nodes, objects
}

// Of each session between two nodes exactly one end connects, to the port on which the other listens if either end can.
// Both ends agree on AS numbers, password and hops unless different objects decide about them; then both ends report
// it.
func TestBothEndsAgree(t *testing.T) {
	secret := secrets{"s/k0": "0", "s/k1": "1", "s/k2": "2", "s/k3": "3", "s/k4": "4"}
	total, apart := 0, 0
	for seed := range uint64(1000) {
		nodes, objects := randomCluster(rand.New(rand.NewPCG(seed, 1)))
		set := model.NewSet(world(t, objects...)...)
		desired := map[string]Desired{}
		owner := map[netip.Addr]string{}
		for _, n := range nodes {
			desired[n] = Compute(Input{Reader: set, Node: n, Passwords: secret})
			for _, a := range newCluster(set, n).me.addrs {
				owner[a] = n
			}
		}
		for _, n := range nodes {
			for _, s := range desired[n].Sessions {
				peer := desired[owner[s.Address]]
				back := findSession(peer, s.Source)
				total++
				problem := mismatch(desired[n], peer, s, back)
				complete := s.Port == peer.Global.ListenPort &&
					(back == nil || back.Port == desired[n].Global.ListenPort)
				if differs := disagreement(s, back); problem == "" && differs != "" && complete {
					apart++
					if s.From[0] == back.From[0] || !hasConflict(desired[n], s.Address) ||
						!hasConflict(peer, s.Source) {
						problem = differs
					}
				}
				if problem != "" {
					t.Fatalf("seed %d: node %s: %s: %s\n%s", seed, n, show(s), problem, objects)
				}
			}
		}
	}
	if total < 3000 || apart == 0 || apart > total/10 {
		t.Errorf("only %d sessions were checked, the ends of %d are configured apart", total, apart)
	}
}

// mismatch returns the reason why the two ends do not connect.
func mismatch(here, there Desired, s Session, back *Session) string {
	switch {
	case back == nil && s.Port != there.Global.ListenPort:
		return "" // a port of another program: the peer is not required to peer back
	case back == nil:
		return "the peer has no session with us"
	case s.Passive == back.Passive:
		return "not exactly one side connects: " + show(*back)
	}
	reaches, reached := s.Port == there.Global.ListenPort, back.Port == here.Global.ListenPort
	switch {
	case !s.Passive && !reaches && reached:
		return fmt.Sprintf("the peer listens on port %d and could connect: %s", there.Global.ListenPort, show(*back))
	case reaches == reached && s.Passive != (s.Address.String() > s.Source.String()):
		return "the side with the smaller address connects although the other could: " + show(*back)
	}
	return ""
}

func hasConflict(d Desired, addr netip.Addr) bool {
	return slices.ContainsFunc(d.Conflicts, func(c Conflict) bool { return c.Address == addr })
}

func findSession(d Desired, addr netip.Addr) *Session {
	for i := range d.Sessions {
		if d.Sessions[i].Address == addr {
			return &d.Sessions[i]
		}
	}
	return nil
}

// disagreement returns the reason why a session of connected ends does not come up.
func disagreement(s Session, back *Session) string {
	switch {
	case back == nil:
		return ""
	case s.LocalAS != back.PeerAS || s.PeerAS != back.LocalAS:
		return "AS numbers differ: " + show(*back)
	case s.Password != back.Password:
		return "passwords differ: " + show(*back)
	case s.TTLSecurity != back.TTLSecurity:
		return "TTL security differs: " + show(*back)
	}
	return ""
}

// shuffled is a Reader that returns objects in any order.
type shuffled struct {
	objects []*model.Object
}

func (s shuffled) Get(k model.Key) *model.Object { return model.NewSet(s.objects...).Get(k) }
func (s shuffled) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		for _, o := range s.objects {
			if o.Key.Kind == kind && !yield(o) {
				return
			}
		}
	}
}

// The result does not depend on the order of the objects.
func TestPermutations(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		nodes, lines := randomCluster(r)
		lines = append(lines, v4node("twin", "10.0.0.1"), `peer bad {"peerIP":"x"}`,
			`peer odd {"peerIP":"10.0.0.1","asNumber":5}`, `pool p {"cidr":"10.1.0.0/16"}`,
			`pool q {"cidr":"10.2.0.0/16","disableBGPExport":true}`,
			"block n0 10.1.2.0/26 confirmed", "block n0 10.1.1.0/26", "block n0 10.2.1.0/26 confirmed",
			`wep w {"node":"n0","ipNetworks":["10.1.9.1/32"]}`,
			`wep x {"node":"n0","interfaceName":"cali1","ipNetworks":["10.1.9.1/32","10.1.1.7/32"]}`,
			`felix default {"ipv4ElevatedRoutePriority":77}`,
			`peer filtered {"peerIP":"192.0.2.1","asNumber":9,"filters":["g","none","f"]}`,
			`filter f {"exportV4":[{"action":"Accept","interface":"cali*"},{"action":"x"}],"importV4":[{"action":"Accept","operations":[{"setPriority":{"value":9}}]}]}`, `filter g {"exportV4":[{"action":"Reject","cidr":"x","matchOperator":"In"}]}`)
		objects := world(t, lines...)
		for _, me := range nodes[:2] {
			want := Compute(Input{Reader: shuffled{objects}, Node: me})
			for range 5 {
				other := slices.Clone(objects)
				r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
				if got := Compute(Input{Reader: shuffled{other}, Node: me}); !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, node %s:\n got  %+v\n want %+v", seed, me, got, want)
				}
			}
		}
	}
}

// With any filter, each route has a decision, the same one each time, and a route that no peer gets is not originated.
func FuzzFilters(f *testing.F) {
	f.Add(
		`{"action":"Accept","cidr":"10.1.0.0/16","matchOperator":"NotIn","prefixLength":{"min":20,"max":8},"operations":[{"prependASPath":{"prefix":[1,"1.1"]}},{"addCommunity":{"value":"1:2:3"}},{"setPriority":{"value":9}}]}`, "10.1.0.0/24", "cali1", uint32(9))
	f.Add(`{"action":"Reject","interface":"cali[","communities":{"values":["1:2"]}}`, "fd00::/8", "", uint32(0))
	f.Add(
		`{"action":"Accept","interface":"cali*","asPathPrefix":[1],"priority":1024,"peerType":"eBGP","source":"RemotePeers"}`, "0.0.0.0/0", "cali1", uint32(1<<31))
	f.Fuzz(func(t *testing.T, rule, prefix, device string, localPref uint32) {
		set := model.NewSet(world(t, v4node("a", "10.0.0.1"), v4node("b", "10.0.0.2"),
			`peer p {"peerIP":"10.0.0.9","asNumber":9,"filters":["f"]}`, `pool p {"cidr":"10.1.0.0/16"}`,
			"block a 10.1.0.0/26",
			`wep w {"node":"a","interfaceName":"cali1","ipNetworks":["10.1.0.1/32","192.0.2.1/32"]}`)...)
		raw := fmt.Sprintf(
			`{"metadata":{"name":"f"},"spec":{"exportV4":[%[1]s],"importV4":[%[1]s],"exportV6":[%[1]s],"importV6":[%[1]s]}}`, rule)
		o, err := unchecked(model.ResourceKey(model.KindBGPFilter, "f"), raw)
		p, bad := netip.ParsePrefix(prefix)
		if err != nil || bad != nil {
			return
		}
		set[o.Key] = o
		d := Compute(Input{Reader: set, Node: "a"})
		checkWellFormed(t, d)
		for _, s := range d.Sessions {
			for _, source := range []RouteSource{SourceOwn, SourceInternal, SourceExternal} {
				c := Candidate{Prefix: p.Masked(), Source: source, Interface: device, LocalPref: localPref,
					ASPath: []uint32{1, 2}, Communities: []uint32{65538}}
				for _, decide := range []func(Session, Candidate) Verdict{d.Export, d.Import} {
					v := decide(s, c)
					if v.Rule == "" || v.Route.Prefix != c.Prefix || !reflect.DeepEqual(v, decide(s, c)) {
						t.Errorf("%+v: %+v", c, v)
					}
				}
			}
		}
		for _, o := range d.Originated {
			if o.FilterOnly && !slices.ContainsFunc(d.Sessions,
				func(s Session) bool { return d.Export(s, o.Candidate()).Accept }) {
				t.Errorf("originated for no peer: %+v", o)
			}
		}
	})
}

// The result is well-formed for any content of the datastore.
func FuzzCompute(f *testing.F) {
	f.Add(`{"bgp":{"ipv4Address":"10.0.0.1/24"}}`, `{"peerIP":"10.0.0.2:179","asNumber":1}`, `{"listenPort":180}`,
		`{"cidr":"10.0.0.0/16"}`)
	f.Add(`{"bgp":{"ipv6Address":"fe80::1%eth0","routeReflectorClusterID":"x"}}`,
		`{"peerSelector":"has(x)","ttlSecurity":255,"maxRestartTime":"1h"}`,
		`{"prefixAdvertisements":[{"cidr":"::/0","communities":["1:1","1:2:3","x"]}]}`, `{"cidr":"::/0"}`)
	f.Add(`{"bgp":{"ipv4Address":"::ffff:10.0.0.1"}}`, `{"peerIP":"[::ffff:1.2.3.4]:1","asNumber":"1.1","password":{}}`,
		`{"communities":[{"name":"","value":"1:1:1:1"}]}`, `{"cidr":"10.0.0.1/8"}`)
	f.Fuzz(func(t *testing.T, nodeSpec, peerSpec, configSpec, poolSpec string) {
		set := model.Set{}
		for _, x := range []struct {
			kind model.Kind
			name string
			spec string
		}{{model.KindNode, "a", nodeSpec},
			{model.KindNode, "b", `{"bgp":{"ipv4Address":"10.0.0.9/24","ipv6Address":"fd00::9/64"}}`},
			{model.KindBGPPeer, "p", peerSpec},
			{model.KindBGPConfiguration, "default", configSpec}, {model.KindBGPConfiguration, "node.a", configSpec},
			{model.KindIPPool, "p", poolSpec}} {
			raw := fmt.Sprintf(`{"metadata":{"name":%q},"spec":%s}`, x.name, x.spec)
			if o, err := unchecked(model.ResourceKey(x.kind, x.name), raw); err == nil {
				set[o.Key] = o
			}
		}
		for _, me := range []string{"a", "b"} {
			d := Compute(Input{Reader: set, Node: me})
			checkWellFormed(t, d)
			if again := Compute(Input{Reader: set, Node: me}); !reflect.DeepEqual(d, again) {
				t.Errorf("not the same twice:\n%+v\n%+v", d, again)
			}
		}
	})
}

func checkWellFormed(t *testing.T, d Desired) {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for _, s := range d.Sessions {
		if !s.Address.IsValid() || s.Address.Is4In6() || s.Port == 0 || s.PeerAS == 0 || s.LocalAS == 0 ||
			len(s.From) == 0 || seen[s.Address] {
			t.Errorf("bad session %+v", s)
		}
		if s.Source.IsValid() && s.Source.Is4() != s.Address.Is4() {
			t.Errorf("families differ: %+v", s)
		}
		if (s.MultihopTTL == 0) == (s.TTLSecurity == 0) {
			t.Errorf("neither or both of multihop and TTL security: %+v", s)
		}
		seen[s.Address] = true
	}
	for _, o := range d.Originated {
		if o.Prefix != o.Prefix.Masked() || o.LocalPref == 0 || o.LocalPref > MaxPriority {
			t.Errorf("bad origin %+v", o)
		}
	}
	if len(d.Sessions) > 0 && !d.Global.RouterID.Is4() {
		t.Errorf("sessions without router ID: %+v", d.Global)
	}
}

// indexed finds an object by its key, as a snapshot does.
type indexed struct {
	shuffled
	set model.Set
}

func (s indexed) Get(k model.Key) *model.Object { return s.set.Get(k) }

func BenchmarkComputeMesh1000(b *testing.B) {
	set := model.Set{}
	for i := range 1000 {
		o := object(b, model.KindNode, fmt.Sprintf("n%04d", i), fmt.Sprintf(`{"bgp":{"ipv4Address":"10.0.%d.%d/16"}}`,
			i/250, i%250+1))
		set[o.Key] = o
	}
	sorted := indexed{set: set}
	for o := range set.All(model.KindNode) {
		sorted.objects = append(sorted.objects, o)
	}
	for b.Loop() {
		if d := Compute(Input{Reader: sorted, Node: "n0000"}); len(d.Sessions) != 999 {
			b.Fatal(len(d.Sessions))
		}
	}
}
