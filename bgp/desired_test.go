package bgp

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

const mesh = " from BGPConfiguration/default"

// Each case is named after its rule. The node is a by default.
func TestSessions(t *testing.T) {
	a, b, c := v4node("a", "10.192.0.2"), v4node("b", "10.192.0.3"), v4node("c", "10.192.0.4")
	off := `config default {"nodeToNodeMeshEnabled":false}`
	for _, tc := range []struct {
		rule     string
		nodeName string
		objects  []string
		want     []string
		notices  []string
	}{
		{rule: "mesh: the smaller address is connected to", objects: []string{a, b},
			want: []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh}},
		{rule: "mesh: the greater address connects", nodeName: "b", objects: []string{a, b},
			want: []string{"10.192.0.2:179 mesh 64512-64512 active" + mesh}},
		{rule: "mesh: addresses compare as text", nodeName: "a",
			objects: []string{v4node("a", "10.0.0.9"), v4node("b", "10.0.0.10")},
			want:    []string{"10.0.0.10:179 mesh 64512-64512 active" + mesh}},
		{rule: "mesh: a route reflector takes no part",
			objects: []string{a, b, v4node("c", "10.192.0.4", `"routeReflectorClusterID":"244.0.0.1"`)},
			want:    []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh}},
		{rule: "mesh: a route reflector has no mesh", nodeName: "c",
			objects: []string{a, b, v4node("c", "10.192.0.4", `"routeReflectorClusterID":"244.0.0.1"`)}},
		{rule: "mesh: can be switched off", objects: []string{a, b, off}},
		{rule: "mesh: a node with another AS becomes an external peer",
			objects: []string{a, v4node("b", "10.192.0.3", `"asNumber":65001`)},
			want:    []string{"10.192.0.3:179 mesh 64512-65001 passive" + mesh}},
		{rule: "mesh: a node without AS has the cluster's, not ours",
			objects: []string{v4node("a", "10.192.0.2", `"asNumber":65001`), b, `config default {"asNumber":64600}`},
			want:    []string{"10.192.0.3:179 mesh 65001-64600 passive" + mesh}},
		{rule: "mesh: one session for each family that both have", objects: []string{
			`node a {"bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64"}}`,
			`node b {"bgp":{"ipv4Address":"10.0.0.2/24","ipv6Address":"fd00::2/64"}}`,
			`node c {"bgp":{"ipv6Address":"fd00::3/64"}}`},
			want: []string{"10.0.0.2:179 mesh 64512-64512 passive" + mesh, "fd00::2:179 mesh 64512-64512 passive" +
				mesh, "fd00::3:179 mesh 64512-64512 passive" + mesh}},
		{rule: "mesh: port of the peer, else of the cluster",
			objects: []string{a, b, c, `config default {"listenPort":180}`, `config node.c {"listenPort":500}`},
			want: []string{"10.192.0.3:180 mesh 64512-64512 passive" + mesh, "10.192.0.4:500 mesh 64512-64512 passive" +
				mesh}},
		{rule: "mesh: a node with our address is no peer", objects: []string{a, v4node("b", "10.192.0.2")},
			notices: []string{"Node/b: spec.bgp.ipv4Address 10.192.0.2 is also the address of node a"}},
		{rule: "two nodes with one address make one session", objects: []string{a, v4node("b", "10.192.0.3"),
			v4node("x", "10.192.0.3")},
			want:    []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh},
			notices: []string{"Node/x: spec.bgp.ipv4Address 10.192.0.3 is also the address of node b"}},
		{rule: "a node without address has no peers", objects: []string{`node a {}`, b}},
		{rule: "a node that is not registered has nothing", nodeName: "z", objects: []string{a, b},
			notices: []string{"Node/z: does not exist"}},
		{rule: "a malformed address is no address",
			objects: []string{a, `node b {"bgp":{"ipv4Address":"fd00::1/64","ipv6Address":"x"}}`},
			notices: []string{`Node/b: spec.bgp.ipv4Address = "fd00::1/64"`, `Node/b: spec.bgp.ipv6Address = "x"`}},

		{rule: "peerIP: global external peer", objects: []string{
			a, off, `peer tor {"peerIP":"10.192.0.1","asNumber":65100}`},
			want: []string{"10.192.0.1:179 global 64512-65100 active from BGPPeer/tor"}},
		{rule: "peerIP: never passive towards what is no node",
			objects: []string{a, off, `peer tor {"peerIP":"10.192.0.9","asNumber":65100}`},
			want:    []string{"10.192.0.9:179 global 64512-65100 active from BGPPeer/tor"}},
		{rule: "peerIP: explicit port, also for IPv6",
			objects: []string{`node a {"bgp":{"ipv4Address":"10.0.0.2/24","ipv6Address":"fd00::2/64"}}`,
				`peer p {"peerIP":"10.0.0.1:166","asNumber":65100}`,
				`peer q {"peerIP":"[fd00::1]:167","asNumber":65100}`,
				`peer r {"peerIP":"fd00::5","asNumber":65100}`},
			want: []string{"10.0.0.1:166 global 64512-65100 active from BGPPeer/p",
				"fd00::1:167 global 64512-65100 active from BGPPeer/q",
				"fd00::5:179 global 64512-65100 active from BGPPeer/r"}},
		{rule: "peerIP: an IPv4 address in IPv6 form is the IPv4 peer",
			objects: []string{a, `peer p {"peerIP":"::ffff:10.9.9.9","asNumber":65100}`},
			want:    []string{"10.9.9.9:179 global 64512-65100 active from BGPPeer/p"}},
		{rule: "peerIP: for one node", objects: []string{
			a, off, `peer p {"node":"a","peerIP":"10.9.9.9","asNumber":65100}`,
			`peer q {"node":"b","peerIP":"10.9.9.8","asNumber":65100}`},
			want: []string{"10.9.9.9:179 node 64512-65100 active from BGPPeer/p"}},
		{rule: "peerIP: for nodes with a label",
			objects: []string{`node a {"bgp":{"ipv4Address":"10.192.0.2/24"}}@{"rack":"1"}`, off,
				`peer p {"nodeSelector":"has(rack)","peerIP":"10.9.9.9","asNumber":65100}`,
				`peer q {"nodeSelector":"!has(rack)","peerIP":"10.9.9.8","asNumber":65100}`},
			want: []string{"10.9.9.9:179 node 64512-65100 active from BGPPeer/p"}},
		{rule: "peerIP: a node's listen port is used", objects: []string{a, b, off, `config node.b {"listenPort":500}`,
			`peer p {"node":"a","peerIP":"10.192.0.3","asNumber":64512}`},
			want: []string{"10.192.0.3:500 node 64512-64512 passive from BGPPeer/p"}},
		{rule: "peerIP: a node with another AS: passive, without its port and without reverse",
			objects: []string{a, b, off, `config node.b {"listenPort":500}`,
				`peer p {"peerIP":"10.192.0.3","asNumber":65111}`},
			want: []string{"10.192.0.3:179 global 64512-65111 passive from BGPPeer/p"}},
		{rule: "peerIP: a node with another AS: no reverse", nodeName: "b",
			objects: []string{a, b, off, `peer p {"peerIP":"10.192.0.3","asNumber":65111}`}},
		{rule: "peerIP: a global peer that is a node follows the text order", nodeName: "b",
			objects: []string{a, b, off, `peer p {"peerIP":"10.192.0.2","asNumber":64512}`},
			want:    []string{"10.192.0.2:179 global 64512-64512 active from BGPPeer/p"}},
		{rule: "peerIP: AS of a node is derived", objects: []string{a, v4node("b", "10.192.0.3", `"asNumber":65001`),
			off, `peer p {"peerIP":"10.192.0.3"}`},
			want: []string{"10.192.0.3:179 global 64512-65001 passive from BGPPeer/p"}},
		{rule: "peerIP: AS missing and not derivable: skipped alone",
			objects: []string{a, b, `peer p {"peerIP":"10.9.9.9"}`, `peer q {"peerIP":"10.9.9.8","asNumber":65100}`},
			want: []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh,
				"10.9.9.8:179 global 64512-65100 active from BGPPeer/q"},
			notices: []string{"BGPPeer/p: is skipped: spec.asNumber is missing and cannot be derived, as 10.9.9.9 is " +
				"no Calico node"}},
		{rule: "peerIP: own address of a global peer means the others",
			objects: []string{a, off, `peer p {"peerIP":"10.192.0.2","asNumber":64512}`}},
		{rule: "peerIP: own address of a node's peer is an error",
			objects: []string{a, off, `peer p {"node":"a","peerIP":"10.192.0.2:555","asNumber":64512}`},
			notices: []string{"BGPPeer/p: is skipped: spec.peerIP 10.192.0.2 is this node's own address"}},
		{rule: "peerIP: no address of that family",
			objects: []string{a, off, `peer p {"peerIP":"fd00::1","asNumber":65100}`},
			notices: []string{"BGPPeer/p: is skipped: this node has no IPv6 address to peer with fd00::1"}},
		{rule: "peerIP: localASNumber replaces ours",
			objects: []string{a, off, `peer p {"peerIP":"10.9.9.9","asNumber":65100,"localASNumber":65222}`},
			want:    []string{"10.9.9.9:179 global 65222-65100 active from BGPPeer/p"}},

		{rule: "reverse: of a global peer", nodeName: "b",
			objects: []string{a, b, c, off, `peer p {"peerIP":"10.192.0.3","asNumber":64512}`},
			want: []string{"10.192.0.2:179 node 64512-64512 active from BGPPeer/p",
				"10.192.0.4:179 node 64512-64512 passive from BGPPeer/p"}},
		{rule: "reverse: of a node's peer", nodeName: "b",
			objects: []string{a, b, c, off, `peer p {"node":"a","peerIP":"10.192.0.3","asNumber":64512}`},
			want:    []string{"10.192.0.2:179 node 64512-64512 active from BGPPeer/p"}},
		{rule: "reverse: Manual has none", nodeName: "b",
			objects: []string{a, b, c, off,
				`peer p {"node":"a","peerIP":"10.192.0.3","asNumber":64512,"reversePeering":"Manual"}`}},
		{rule: "reverse: expects the AS that the other side was told to use", nodeName: "b",
			objects: []string{a, b, off,
				`peer p {"node":"a","peerIP":"10.192.0.3","asNumber":64512,"localASNumber":65222}`},
			want: []string{"10.192.0.2:179 node 64512-65222 active from BGPPeer/p"}},
		{rule: "reverse: of a peer with port: no port configured, so any matches", nodeName: "b",
			objects: []string{a, b, off, `peer p {"node":"a","peerIP":"10.192.0.3:1790","asNumber":64512}`},
			want:    []string{"10.192.0.2:179 node 64512-64512 active from BGPPeer/p"}},
		{rule: "reverse: of a peer with port: it is not ours", nodeName: "b",
			objects: []string{a, b, `config default {"nodeToNodeMeshEnabled":false,"listenPort":180}`,
				`peer p {"node":"a","peerIP":"10.192.0.3:1790","asNumber":64512}`}},
		{rule: "reverse: of a peer with port: it is ours", nodeName: "b",
			objects: []string{a, b, `config default {"nodeToNodeMeshEnabled":false,"listenPort":1790}`,
				`peer p {"node":"a","peerIP":"10.192.0.3:1790","asNumber":64512}`},
			want: []string{"10.192.0.2:1790 node 64512-64512 active from BGPPeer/p"}},

		{rule: "peerSelector: all nodes that match, not ourselves",
			objects: []string{
				a, b,
				`node c {"bgp":{"ipv4Address":"10.192.0.4/24","ipv6Address":"fd00::4/64","asNumber":65009}}@{"rr":""}`,
				off,
				`peer p {"nodeSelector":"all()","peerSelector":"has(rr)"}`},
			want: []string{"10.192.0.4:179 node 64512-65009 passive from BGPPeer/p"}},
		{rule: "peerSelector: both directions at once",
			objects: []string{a, b, off, `peer p {"nodeSelector":"all()","peerSelector":"all()"}`},
			want:    []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/p"}},

		{rule: "conflict: equal requests share a session",
			objects: []string{a, b, `peer p {"nodeSelector":"all()","peerSelector":"all()"}`},
			want:    []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/p+BGPConfiguration/default"}},
		{rule: "conflict: an explicit peer wins over the mesh",
			objects: []string{a, b, `peer p {"nodeSelector":"all()","peerSelector":"all()","ttlSecurity":1}`},
			want:    []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/p"},
			notices: []string{"conflict 10.192.0.3 kept BGPPeer/p dropped BGPConfiguration/default: there can be one " +
				"session with 10.192.0.3 and BGPPeer/p decides what it is; BGPConfiguration/default wants " +
				"TTL security 0"}},
		{rule: "conflict: the lowest name wins",
			objects: []string{a, off, `peer q {"peerIP":"10.9.9.9","asNumber":65101}`,
				`peer p {"peerIP":"10.9.9.9:1179","asNumber":65100}`},
			want: []string{"10.9.9.9:1179 global 64512-65100 active from BGPPeer/p"},
			notices: []string{"conflict 10.9.9.9 kept BGPPeer/p dropped BGPPeer/q: there can be one session with " +
				"10.9.9.9 and BGPPeer/p decides what it is; BGPPeer/q wants port 179, peer AS 65101"}},
		{rule: "conflict: a global peer wins over one for the node",
			objects: []string{a, off, `peer p {"node":"a","peerIP":"10.9.9.9","asNumber":65101}`,
				`peer q {"peerIP":"10.9.9.9:179","asNumber":65100}`},
			want:    []string{"10.9.9.9:179 global 64512-65100 active from BGPPeer/q"},
			notices: []string{"conflict 10.9.9.9 kept BGPPeer/q dropped BGPPeer/p"}},
		{rule: "conflict: two node peers that differ in nothing",
			objects: []string{a, off, `peer p {"node":"a","peerIP":"10.9.9.9","asNumber":65100}`,
				`peer q {"peerIP":"10.9.9.9:179","asNumber":65100}`},
			want: []string{"10.9.9.9:179 global 64512-65100 active from BGPPeer/q+BGPPeer/p"}},

		{rule: "invalid peers are skipped one by one", objects: []string{a, off,
			`peer p0 {"peerIP":"10.9.9.9","asNumber":65100}`, `peer p1 {"peerIP":"10.9.9","asNumber":1}`,
			`peer p2 {"asNumber":1}`,
			`peer p3 {"node":"a","nodeSelector":"all()","peerIP":"10.1.1.1","asNumber":1}`,
			`peer p4 {"peerSelector":"all()","asNumber":1}`,
			`peer p5 {"nodeSelector":"((","peerIP":"10.1.1.1","asNumber":1}`,
			`peer p6 {"localWorkloadSelector":"all()"}`,
			`peer p7 {"peerIP":"10.1.1.1:99999","asNumber":1}`,
			`peer p8 {"peerIP":"10.1.1.1","asNumber":1,"keepOriginalNextHop":true,"nextHopMode":"Self"}`,
			`peer p9 {"peerSelector":"a ==="}`},
			want: []string{"10.9.9.9:179 global 64512-65100 active from BGPPeer/p0"},
			notices: []string{`BGPPeer/p1: is skipped: spec.peerIP = "10.9.9"`,
				"BGPPeer/p2: is skipped: want exactly one of spec.peerIP, spec.peerSelector",
				"BGPPeer/p3: is skipped: spec.node and spec.nodeSelector are both set",
				"BGPPeer/p4: is skipped: spec.asNumber = 1 does not go with spec.peerSelector",
				`BGPPeer/p5: is skipped: spec.nodeSelector = "(("`,
				"BGPPeer/p6: is skipped: spec.asNumber is missing: spec.localWorkloadSelector needs",
				`BGPPeer/p7: is skipped: spec.peerIP = "10.1.1.1:99999": must be an IP address, IPv4:PORT or [IPv6]:PORT`,
				"BGPPeer/p8: is skipped: spec.keepOriginalNextHop and spec.nextHopMode",
				`BGPPeer/p9: is skipped: spec.peerSelector = "a ==="`}},
		{rule: "fields without effect are reported",
			objects: []string{a, off,
				`peer p {"peerIP":"10.9.9.9","asNumber":65100,"filters":["f"],"maxRestartTime":"2h"}`,
				`config other {}`,
				`config node.a {"listenPort":500}`},
			want: []string{"10.9.9.9:179 global 64512-65100 active from BGPPeer/p"},
			notices: []string{"BGPConfiguration/other: is ignored",
				"BGPPeer/p: spec.filters: BGPFilter/f does not exist",
				"BGPPeer/p: spec.maxRestartTime = 2h0m0s is ignored: want 0s to 4095s"}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			nodeName := tc.nodeName
			if nodeName == "" {
				nodeName = "a"
			}
			d := compute(t, nodeName, tc.objects...)
			equalLines(t, "sessions", showAll(d.Sessions), tc.want)
			wantNotices(t, d, tc.notices...)
		})
	}
}

// The example of the node mesh: B has the greater address and connects to A; no node connects to the reflector.
func TestMeshWorkedExample(t *testing.T) {
	objects := []string{v4node("A", "10.192.0.2"), v4node("B", "10.192.0.3"),
		v4node("C", "10.192.0.4", `"routeReflectorClusterID":"10.0.0.9"`)}
	equalLines(t, "A", showAll(compute(t, "A", objects...).Sessions),
		[]string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh})
	equalLines(t, "B", showAll(compute(t, "B", objects...).Sessions),
		[]string{"10.192.0.2:179 mesh 64512-64512 active" + mesh})
	equalLines(t, "C", showAll(compute(t, "C", objects...).Sessions), nil)
}

// RFC 4456: clients and reflectors, by cluster ID and AS.
func TestRouteReflectors(t *testing.T) {
	r := func(name, addr, id string) string {
		return `node ` + name + ` {"bgp":{"ipv4Address":"` + addr + `/24","routeReflectorClusterID":"` + id +
			`"}}@{"rr":""}`
	}
	objects := []string{r("r", "10.0.0.1", "10.0.0.100"), r("same", "10.0.0.2", "10.0.0.100"),
		r("other", "10.0.0.3", "10.0.0.200"),
		v4node("w", "10.0.0.11"), v4node("x", "10.0.0.12", `"asNumber":65001`),
		`peer rr {"nodeSelector":"all()","peerSelector":"has(rr)"}`, `peer ext {"peerIP":"10.0.0.50","asNumber":64512}`,
		`peer tor {"peerIP":"10.0.0.60","asNumber":65100}`}
	client := func(nodeName string) map[string]bool {
		m := map[string]bool{}
		for _, s := range compute(t, nodeName, objects...).Sessions {
			m[s.Address.String()] = s.ReflectorClient
			if s.ReflectorClient != s.ReflectorClusterID.IsValid() {
				t.Errorf("%s: cluster ID %v with client %v", s.Address, s.ReflectorClusterID, s.ReflectorClient)
			}
		}
		return m
	}
	want := map[string]bool{"10.0.0.2": false, "10.0.0.3": true, "10.0.0.11": true, "10.0.0.12": false,
		"10.0.0.50": true, "10.0.0.60": false}
	if got := client("r"); !reflect.DeepEqual(got, want) {
		t.Errorf("reflector: got %v want %v", got, want)
	}
	for addr, is := range client("w") {
		if is {
			t.Errorf("an ordinary node takes %s for its client", addr)
		}
	}
}

// A reflector without mesh, as most users configure it.
func TestReflectorWorkedExample(t *testing.T) {
	for _, meshOn := range []string{"false", "true"} {
		objects := []string{`config default {"nodeToNodeMeshEnabled":` + meshOn + `}`,
			`node r {"bgp":{"ipv4Address":"10.0.0.1/24","routeReflectorClusterID":"10.0.0.1"}}@{"rr":"yes"}`,
			v4node("w1", "10.0.0.11"), v4node("w2", "10.0.0.12"),
			`peer p {"nodeSelector":"!has(rr)","peerSelector":"has(rr)"}`}
		w1 := []string{"10.0.0.1:179 node 64512-64512 active from BGPPeer/p"}
		if meshOn == "true" {
			w1 = append(w1, "10.0.0.12:179 mesh 64512-64512 passive"+mesh)
		}
		equalLines(t, "w1", showAll(compute(t, "w1", objects...).Sessions), w1)
		equalLines(t, "r", showAll(compute(t, "r", objects...).Sessions), []string{
			"10.0.0.11:179 node 64512-64512 passive from BGPPeer/p",
			"10.0.0.12:179 node 64512-64512 passive from BGPPeer/p"})
	}
}

func TestSessionFields(t *testing.T) {
	secret := secrets{"mesh/pw": "m", "tor/pw": "t"}
	base := []string{v4node("a", "10.0.0.1"), v4node("b", "10.0.0.2")}
	one := func(t *testing.T, nodeName, addr string, lines ...string) (Session, Desired) {
		t.Helper()
		d := Compute(Input{Reader: model.NewSet(world(t, append(base, lines...)...)...), Node: nodeName,
			Passwords: secret})
		for _, s := range d.Sessions {
			if s.Address.String() == addr {
				return s, d
			}
		}
		t.Fatalf("no session with %s: %v", addr, showAll(d.Sessions))
		return Session{}, d
	}
	t.Run("defaults", func(t *testing.T) {
		s, _ := one(t, "a", "10.0.0.2")
		want := Session{Address: netip.MustParseAddr("10.0.0.2"), Port: 179, Type: SessionMesh,
			From: []string{"BGPConfiguration/default"}, LocalAS: 64512, PeerAS: 64512,
			Source: netip.MustParseAddr("10.0.0.1"), Passive: true, PasswordFrom: "none", MultihopTTL: 64,
			HoldSeconds: 240, RestartSeconds: 120, NextHop: NextHopAuto}
		if !reflect.DeepEqual(s, want) {
			t.Errorf("got  %+v\nwant %+v", s, want)
		}
	})
	t.Run("mesh password and restart time", func(t *testing.T) {
		s, _ := one(t, "a", "10.0.0.2",
			`config default {"nodeMeshPassword":{"secretKeyRef":{"name":"mesh","key":"pw"}},"nodeMeshMaxRestartTime":"10.5s"}`)
		if s.Password != "m" || s.PasswordFrom != "set" || s.RestartSeconds != 11 {
			t.Errorf("password %q (%s), restart %d", s.Password, s.PasswordFrom, s.RestartSeconds)
		}
	})
	t.Run("a missing password is reported and none is used", func(t *testing.T) {
		s, d := one(t, "a", "10.0.0.2",
			`config default {"nodeMeshPassword":{"secretKeyRef":{"name":"mesh","key":"nope"}}}`)
		if s.Password != "" || s.PasswordFrom != "missing" {
			t.Errorf("password %q (%s)", s.Password, s.PasswordFrom)
		}
		wantNotices(t, d,
			`BGPConfiguration/default: key "nope" of secret "mesh" cannot be read: no such file; its sessions stay down until there is a password (want it in the file mesh/nope of the folder --bgp-password-dir)`)
	})
	full := `peer p {"peerIP":"10.0.0.2","asNumber":64512,"password":{"secretKeyRef":{"name":"tor","key":"pw"}},"maxRestartTime":"45s","keepaliveTime":"7500ms",
		"ttlSecurity":2,"numAllowedLocalASNumbers":3,"sourceAddress":"None","nextHopMode":"Self"}`
	t.Run("every field of a BGPPeer", func(t *testing.T) {
		s, _ := one(t, "a", "10.0.0.2", full)
		want := Session{Address: netip.MustParseAddr("10.0.0.2"), Port: 179, Type: SessionGlobal,
			From: []string{"BGPPeer/p"}, LocalAS: 64512, PeerAS: 64512,
			Passive: true, Password: "t", PasswordFrom: "set", TTLSecurity: 2, HoldSeconds: 240, KeepaliveSeconds: 8,
			RestartSeconds: 45, AllowOwnAS: 3, NextHop: NextHopSelf}
		if !reflect.DeepEqual(s, want) {
			t.Errorf("got  %+v\nwant %+v", s, want)
		}
	})
	t.Run("the reverse inherits all but the AS fields", func(t *testing.T) {
		s, _ := one(t, "b", "10.0.0.1", full)
		want := Session{Address: netip.MustParseAddr("10.0.0.1"), Port: 179, Type: SessionNode,
			From: []string{"BGPPeer/p"}, LocalAS: 64512, PeerAS: 64512,
			Password: "t", PasswordFrom: "set", TTLSecurity: 2, HoldSeconds: 240, KeepaliveSeconds: 8,
			RestartSeconds: 45, NextHop: NextHopSelf}
		if !reflect.DeepEqual(s, want) {
			t.Errorf("got  %+v\nwant %+v", s, want)
		}
	})
	t.Run("ttlSecurity 0 is off", func(t *testing.T) {
		if s, _ := one(t, "a", "10.9.9.9",
			`peer p {"peerIP":"10.9.9.9","asNumber":65100,"ttlSecurity":0}`); s.TTLSecurity != 0 || s.MultihopTTL != 64 {
			t.Errorf("TTL security %d, multihop %d", s.TTLSecurity, s.MultihopTTL)
		}
	})
	t.Run("keepOriginalNextHop counts for external peers only", func(t *testing.T) {
		s, d := one(t, "a", "10.9.9.9", `peer p {"peerIP":"10.9.9.9","asNumber":65100,"keepOriginalNextHop":true}`,
			`peer q {"peerIP":"10.9.9.8","asNumber":64512,"keepOriginalNextHop":true}`)
		if s.NextHop != NextHopKeep {
			t.Errorf("external: %s", s.NextHop)
		}
		for _, s := range d.Sessions {
			if s.PeerAS == 64512 && s.NextHop != NextHopAuto {
				t.Errorf("internal %s: %s", s.Address, s.NextHop)
			}
		}
	})
	t.Run("nextHopMode Keep counts for internal peers too", func(t *testing.T) {
		if s, _ := one(t, "a", "10.9.9.8",
			`peer q {"peerIP":"10.9.9.8","asNumber":64512,"nextHopMode":"Keep"}`); s.NextHop != NextHopKeep {
			t.Error(s.NextHop)
		}
	})
}

func TestGlobal(t *testing.T) {
	addr := netip.MustParseAddr
	for _, tc := range []struct {
		rule, nodeName, routerID string
		objects                  []string
		want                     Global
		notices                  []string
	}{
		{rule: "defaults", objects: []string{v4node("a", "10.0.0.1")},
			want: Global{LocalAS: 64512, RouterID: addr("10.0.0.1"), ListenPort: 179}},
		{rule: "cluster's AS and port", objects: []string{v4node("a", "10.0.0.1"),
			`config default {"asNumber":64600,"listenPort":180}`},
			want: Global{LocalAS: 64600, RouterID: addr("10.0.0.1"), ListenPort: 180}},
		{rule: "the node's AS and port come first", objects: []string{v4node("a", "10.0.0.1", `"asNumber":4200000001`),
			`config default {"asNumber":64600,"listenPort":180}`, `config node.a {"listenPort":181,"asNumber":7}`},
			want: Global{LocalAS: 4200000001, RouterID: addr("10.0.0.1"), ListenPort: 181}},
		{rule: "bindMode NodeIP", objects: []string{
			`node a {"bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1"}}`,
			`config default {"bindMode":"NodeIP"}`},
			want: Global{LocalAS: 64512, RouterID: addr("10.0.0.1"), ListenPort: 179, ListenAddresses: []netip.Addr{
				addr("10.0.0.1"), addr("fd00::1")}}},
		{rule: "router ID: literal", routerID: "10.10.10.10", objects: []string{v4node("a", "10.0.0.1")},
			want: Global{LocalAS: 64512, RouterID: addr("10.10.10.10"), ListenPort: 179}},
		{rule: "router ID: hash of the name", nodeName: "kube-master", routerID: "hash",
			objects: []string{v4node("kube-master", "10.0.0.1")},
			want:    Global{LocalAS: 64512, RouterID: addr("25.79.212.8"), ListenPort: 179}},
		{rule: "router ID: an IPv6-only node gets the hash", nodeName: "kube-master",
			objects: []string{`node kube-master {"bgp":{"ipv6Address":"fd00::1/64"}}`},
			want:    Global{LocalAS: 64512, RouterID: addr("25.79.212.8"), ListenPort: 179}},
		{rule: "router ID: nonsense is reported", routerID: "ten", objects: []string{v4node("a", "10.0.0.1")},
			want:    Global{LocalAS: 64512, RouterID: addr("10.0.0.1"), ListenPort: 179},
			notices: []string{`Node/a: CALICO_ROUTER_ID = "ten" is ignored`}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			nodeName := tc.nodeName
			if nodeName == "" {
				nodeName = "a"
			}
			d := Compute(Input{Reader: model.NewSet(world(t, tc.objects...)...), Node: nodeName, RouterID: tc.routerID})
			if !reflect.DeepEqual(d.Global, tc.want) {
				t.Errorf("got  %+v\nwant %+v", d.Global, tc.want)
			}
			wantNotices(t, d, tc.notices...)
		})
	}
}

func TestHashRouterIDIsNeverMulticast(t *testing.T) {
	for i := range 5000 {
		if a := hashRouterID(string(rune('a'+i%26)) + string(rune(i))); a.As4()[0] > 223 {
			t.Fatal(a)
		}
	}
}
