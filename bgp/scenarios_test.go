package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// details adds to show the settings of a BGPPeer that differ from the default.
func details(s Session) string {
	out := []string{show(s)}
	add := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(!s.Source.IsValid(), "any source")
	add(s.Via.IsValid(), "via %s", s.Via)
	add(s.TTLSecurity != 0, "ttl security %d", s.TTLSecurity)
	add(s.TTLSecurity == 0 && s.MultihopTTL != 64, "multihop %d", s.MultihopTTL)
	add(s.PasswordFrom != "none", "password %s %q", s.PasswordFrom, s.Password)
	add(s.RestartSeconds != 120, "restart %d", s.RestartSeconds)
	add(s.KeepaliveSeconds != 0, "keepalive %d", s.KeepaliveSeconds)
	add(s.HoldSeconds != 240, "hold %d", s.HoldSeconds)
	add(s.ReflectorClient, "client of %s", s.ReflectorClusterID)
	add(s.AllowOwnAS != 0, "own AS %d times", s.AllowOwnAS)
	add(s.NextHop != NextHopAuto, "next hop %s", s.NextHop)
	add(s.Workload != "", "workload %s", s.Workload)
	add(s.MaxPrefixes != 0, "at most %d", s.MaxPrefixes)
	return strings.Join(out, ", ")
}

// scenario is one cluster of calico/node's own tests: the node is kube-master, or nodeName if set.
type scenario struct {
	rule     string
	nodeName string
	objects  []string
	secrets  secrets
	want     []string
	statics  []string
	peering  []string
	notices  []string
}

func (sc scenario) run(t *testing.T) {
	nodeName := sc.nodeName
	if nodeName == "" {
		nodeName = "kube-master"
	}
	d := Compute(Input{Reader: model.NewSet(world(t, sc.objects...)...), Node: nodeName, Passwords: sc.secrets})
	var got, statics, peering []string
	for _, s := range d.Sessions {
		got = append(got, details(s))
	}
	for _, s := range d.Statics {
		statics = append(statics, s.Prefix.String()+" via "+s.Via.String())
	}
	for _, p := range d.Peering {
		peering = append(peering, p.Interface+" "+p.Address.String())
	}
	equalLines(t, "sessions", got, sc.want)
	equalLines(t, "statics", statics, sc.statics)
	equalLines(t, "addresses towards workloads", peering, sc.peering)
	wantNotices(t, d, sc.notices...)
}

const (
	off       = `config default {"nodeToNodeMeshEnabled":false}`
	master    = `node kube-master {"bgp":{"ipv4Address":"10.192.0.2/16","ipv6Address":"2001::103/64"}}@{"role":"master"}`
	node1     = `node kube-node-1 {"bgp":{"ipv4Address":"10.192.0.3/16","ipv6Address":"2001::102/64"}}@{"role":"worker"}`
	node2     = `node kube-node-2 {"bgp":{"ipv4Address":"10.192.0.4/16","ipv6Address":"2001::104/64"}}@{"role":"worker"}`
	reflector = `node kube-master {"bgp":{"ipv4Address":"10.192.0.2/16","ipv6Address":"2001::103/64","routeReflectorClusterID":"10.0.0.1"}}@{"role":"rr"}`
	secretRef = `"password":{"secretKeyRef":{"name":"bgp","key":"%s"}}`
)

func TestScenarios(t *testing.T) {
	pw := func(key string) string { return fmt.Sprintf(secretRef, key) }
	meshPW := `config default {"nodeMeshPassword":{"secretKeyRef":{"name":"bgp","key":"mesh"}}}`
	one := []string{v4node("kube-master", "10.192.0.2"), v4node("kube-node-1", "10.192.0.3")}
	with := func(more ...string) []string { return append(slices.Clone(one), more...) }
	all := []string{master, node1, node2, off}
	plus := func(more ...string) []string { return append(slices.Clone(all), more...) }
	for _, sc := range []scenario{
		{rule: "mesh: restart time", objects: with(`config default {"nodeMeshMaxRestartTime":"10s"}`),
			want: []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh + ", restart 10"}},
		{rule: "mesh: communities and per-node ports: the peers stay at the cluster's",
			objects: with(`config default {"listenPort":177}`, `config node.kube-master {"listenPort":180}`),
			want:    []string{"10.192.0.3:177 mesh 64512-64512 passive" + mesh}},
		{rule: "mesh: beside a reflector that peers by selector",
			objects: []string{master, node1,
				`node kube-node-2 {"bgp":{"ipv4Address":"10.192.0.4/16","routeReflectorClusterID":"10.0.0.1"}}@{"role":"rr"}`,
				`peer rr {"nodeSelector":"role == 'rr'","peerSelector":"role != 'rr'"}`},
			want: []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh,
				"10.192.0.4:179 node 64512-64512 passive from BGPPeer/rr", "2001::102:179 mesh 64512-64512 active" +
					mesh}},
		{rule: "mesh: an IPv6-only node has no IPv4 peers", nodeName: "six",
			objects: []string{`node six {"bgp":{"ipv6Address":"2001::103/64"}}`, node1},
			want:    []string{"2001::102:179 mesh 64512-64512 active" + mesh}},
		{rule: "mesh password: missing", objects: with(meshPW),
			want:    []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh + `, password missing ""`},
			notices: []string{`BGPConfiguration/default: key "mesh" of secret "bgp" cannot be read`}},
		{rule: "mesh password: present", objects: with(meshPW), secrets: secrets{"bgp/mesh": "one"},
			want: []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh + `, password set "one"`}},
		{rule: "mesh password: changed", objects: with(meshPW), secrets: secrets{"bgp/mesh": "two"},
			want: []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh + `, password set "two"`}},
		{rule: "mesh password: the key is gone, others are there", objects: with(meshPW),
			secrets: secrets{"bgp/other": "two"}, want: []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh +
				`, password missing ""`},
			notices: []string{"cannot be read"}},
		{rule: "password: per peer, one of two missing",
			objects: with(off, `peer a {"peerIP":"10.9.9.1","asNumber":65100,`+pw("a")+`}`,
				`peer b {"peerIP":"10.9.9.2","asNumber":65100,`+pw("b")+`}`,
				`peer c {"peerIP":"10.9.9.3","asNumber":65100}`),
			secrets: secrets{"bgp/a": "alpha"},
			want: []string{`10.9.9.1:179 global 64512-65100 active from BGPPeer/a, password set "alpha"`,
				`10.9.9.2:179 global 64512-65100 active from BGPPeer/b, password missing ""`,
				"10.9.9.3:179 global 64512-65100 active from BGPPeer/c"},
			notices: []string{`BGPPeer/b: key "b" of secret "bgp" cannot be read`}},

		{rule: "global: port of the cluster for nodes, own port where given, any source",
			objects: []string{master, node1, node2,
				`config default {"nodeToNodeMeshEnabled":false,"listenPort":150,"bindMode":"NodeIP"}`,
				`peer n1 {"peerIP":"10.192.0.3","asNumber":64512,"sourceAddress":"None"}`,
				`peer n2 {"peerIP":"10.192.0.4:166","asNumber":64512}`,
				`peer out {"peerIP":"10.225.0.9","asNumber":64512}`},
			want: []string{"10.192.0.3:150 global 64512-64512 passive from BGPPeer/n1, any source",
				"10.192.0.4:166 global 64512-64512 passive from BGPPeer/n2",
				"10.225.0.9:179 global 64512-64512 active from BGPPeer/out"}},
		{rule: "global: IPv6", objects: plus(`peer n1 {"peerIP":"2001::102","asNumber":64512}`,
			`peer n2 {"peerIP":"2001::104","asNumber":64512}`,
			`peer out {"peerIP":"[2001::109]:500","asNumber":65100}`),
			want: []string{"2001::102:179 global 64512-64512 active from BGPPeer/n1",
				"2001::104:179 global 64512-64512 passive from BGPPeer/n2",
				"2001::109:500 global 64512-65100 active from BGPPeer/out"}},
		{rule: "specific node: iBGP and eBGP",
			objects: plus(`peer i {"node":"kube-master","peerIP":"10.225.0.1","asNumber":64512}`,
				`peer e {"node":"kube-master","peerIP":"10.225.0.2","asNumber":64567}`,
				`peer x {"node":"kube-node-1","peerIP":"10.225.0.3","asNumber":64567}`),
			want: []string{"10.225.0.1:179 node 64512-64512 active from BGPPeer/i",
				"10.225.0.2:179 node 64512-64567 active from BGPPeer/e"}},
		{rule: "selectors: both families, port of one node", objects: plus(`config node.kube-node-1 {"listenPort":500}`,
			`peer p {"nodeSelector":"role == 'master'","peerSelector":"role == 'worker'"}`),
			want: []string{"10.192.0.3:500 node 64512-64512 passive from BGPPeer/p",
				"10.192.0.4:179 node 64512-64512 passive from BGPPeer/p",
				"2001::102:500 node 64512-64512 active from BGPPeer/p",
				"2001::104:179 node 64512-64512 passive from BGPPeer/p"}},
		{rule: "reflector: clients, and external peers of both families with a port",
			objects: []string{reflector, node1, off,
				`peer w {"nodeSelector":"role == 'worker'","peerSelector":"role == 'rr'"}`,
				`peer e4 {"node":"kube-master","peerIP":"10.225.0.1:500","asNumber":64599}`,
				`peer e6 {"node":"kube-master","peerIP":"[2001::500]:500","asNumber":64599}`},
			want: []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/w, client of 10.0.0.1",
				"10.225.0.1:500 node 64512-64599 active from BGPPeer/e4",
				"2001::102:179 node 64512-64512 active from BGPPeer/w, client of 10.0.0.1",
				"2001::500:500 node 64512-64599 active from BGPPeer/e6"}},
		{rule: "reflector: a global peer with its IPv6 address is reversed to the others, in that family",
			objects: []string{reflector, node1, node2, off, `peer rr {"peerIP":"2001::103","asNumber":64512}`},
			want: []string{"2001::102:179 node 64512-64512 active from BGPPeer/rr, client of 10.0.0.1",
				"2001::104:179 node 64512-64512 passive from BGPPeer/rr, client of 10.0.0.1"}},
		{rule: "keepOriginalNextHop: for eBGP only, of all nodes and of one",
			objects: plus(`peer g {"peerIP":"10.225.0.1","asNumber":64567,"keepOriginalNextHop":true}`,
				`peer i {"peerIP":"10.225.0.2","asNumber":64512,"keepOriginalNextHop":true}`,
				`peer n {"node":"kube-master","peerIP":"10.225.0.3","asNumber":64567,"keepOriginalNextHop":true}`),
			want: []string{"10.225.0.1:179 global 64512-64567 active from BGPPeer/g, next hop keep",
				"10.225.0.2:179 global 64512-64512 active from BGPPeer/i",
				"10.225.0.3:179 node 64512-64567 active from BGPPeer/n, next hop keep"}},
		{rule: "local AS: per session, decides what is internal; own AS allowed",
			objects: plus(`peer a {"peerIP":"10.225.0.1","asNumber":65515,"localASNumber":65002}`,
				`peer b {"node":"kube-master","peerIP":"10.225.0.2","asNumber":65002,"localASNumber":65002,"numAllowedLocalASNumbers":1}`, `peer c {"peerIP":"2001::500","asNumber":65515,"localASNumber":65002}`),
			want: []string{"10.225.0.1:179 global 65002-65515 active from BGPPeer/a",
				"10.225.0.2:179 node 65002-65002 active from BGPPeer/b, own AS 1 times",
				"2001::500:179 global 65002-65515 active from BGPPeer/c"}},
		{rule: "two ports on one address: one session, as GoBGP identifies neighbours by address",
			objects: plus(`peer a {"peerIP":"10.225.0.1:500","asNumber":65515}`,
				`peer b {"peerIP":"10.225.0.1:600","asNumber":65515}`),
			want: []string{"10.225.0.1:500 global 64512-65515 active from BGPPeer/a"},
			notices: []string{"conflict 10.225.0.1 kept BGPPeer/a dropped BGPPeer/b: there can be one session with " +
				"10.225.0.1 and BGPPeer/a decides what it is; BGPPeer/b wants port 600, and the lowest name " +
				"goes first"}},

		{rule: "nextHopMode: Keep and Self, both families",
			objects: plus(`peer k4 {"peerIP":"10.225.0.1","asNumber":64567,"nextHopMode":"Keep"}`,
				`peer s4 {"peerIP":"10.225.0.2","asNumber":64512,"nextHopMode":"Self"}`,
				`peer k6 {"peerIP":"2001::500","asNumber":64567,"nextHopMode":"Keep"}`,
				`peer s6 {"peerIP":"2001::501","asNumber":64512,"nextHopMode":"Self"}`,
				`peer z {"peerIP":"2001::502","asNumber":64512,"nextHopMode":"Auto"}`),
			want: []string{"10.225.0.1:179 global 64512-64567 active from BGPPeer/k4, next hop keep",
				"10.225.0.2:179 global 64512-64512 active from BGPPeer/s4, next hop self",
				"2001::500:179 global 64512-64567 active from BGPPeer/k6, next hop keep",
				"2001::501:179 global 64512-64512 active from BGPPeer/s6, next hop self",
				"2001::502:179 global 64512-64512 active from BGPPeer/z"}},
		{rule: "nextHopMode: reversed to the workers of a reflector",
			objects: []string{reflector, node1, off,
				`peer w {"nodeSelector":"role == 'worker'","peerSelector":"role == 'rr'","nextHopMode":"Self"}`},
			want: []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/w, client of 10.0.0.1, next hop self",
				"2001::102:179 node 64512-64512 active from BGPPeer/w, client of 10.0.0.1, next hop self"}},
		{rule: "reverse peering: Auto on the selected side",
			objects: plus(
				`peer p {"nodeSelector":"role == 'worker'","peerSelector":"role == 'master'","reversePeering":"Auto"}`),
			want: []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/p",
				"10.192.0.4:179 node 64512-64512 passive from BGPPeer/p",
				"2001::102:179 node 64512-64512 active from BGPPeer/p",
				"2001::104:179 node 64512-64512 passive from BGPPeer/p"}},
		{rule: "reverse peering: Manual on the selected side",
			objects: plus(
				`peer p {"nodeSelector":"role == 'worker'","peerSelector":"role == 'master'","reversePeering":"Manual"}`)},

		{rule: "reachableBy: global, both families",
			objects: plus(`peer p4 {"peerIP":"10.225.0.1","asNumber":64567,"reachableBy":"10.192.0.9"}`,
				`peer p6 {"peerIP":"2001:9::1","asNumber":64567,"reachableBy":"2001::9"}`),
			want: []string{"10.225.0.1:179 global 64512-64567 active from BGPPeer/p4, via 10.192.0.9",
				"2001:9::1:179 global 64512-64567 active from BGPPeer/p6, via 2001::9"},
			statics: []string{"10.225.0.1/32 via 10.192.0.9", "2001:9::1/128 via 2001::9"}},
		{rule: "reachableBy: on its node only, and not in the reverse direction",
			objects: plus(
				`peer a {"node":"kube-master","peerIP":"10.225.0.1","asNumber":64567,"reachableBy":"10.192.0.9"}`,
				`peer b {"node":"kube-node-1","peerIP":"10.225.0.2","asNumber":64567,"reachableBy":"10.192.0.9"}`,
				`peer c {"node":"kube-node-1","peerIP":"10.192.0.2","asNumber":64512,"reachableBy":"10.192.0.9"}`),
			want: []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/c",
				"10.225.0.1:179 node 64512-64567 active from BGPPeer/a, via 10.192.0.9"},
			statics: []string{"10.225.0.1/32 via 10.192.0.9"}},
		{rule: "reachableBy: of the other family, nonsense, or without peerIP",
			objects: plus(`peer a {"peerIP":"10.225.0.1","asNumber":1,"reachableBy":"2001::9"}`,
				`peer b {"peerIP":"10.225.0.2","asNumber":1,"reachableBy":"tor"}`,
				`peer c {"peerSelector":"all()","reachableBy":"10.192.0.9"}`),
			notices: []string{"BGPPeer/a: is skipped: spec.reachableBy = 2001::9: want an IPv4 address, as " +
				"spec.peerIP 10.225.0.1 is one", `BGPPeer/b: is skipped: spec.reachableBy = "tor"`,
				"BGPPeer/c: is skipped: spec.reachableBy = 10.192.0.9 does not go without spec.peerIP"}},
		{rule: "reachableBy: two gateways to one peer",
			objects: plus(`peer a {"peerIP":"10.225.0.1","asNumber":1,"reachableBy":"10.192.0.8"}`,
				`peer b {"peerIP":"10.225.0.1","asNumber":1,"reachableBy":"10.192.0.9"}`),
			want:    []string{"10.225.0.1:179 global 64512-1 active from BGPPeer/a, via 10.192.0.8"},
			statics: []string{"10.225.0.1/32 via 10.192.0.8"},
			notices: []string{"conflict 10.225.0.1 kept BGPPeer/a dropped BGPPeer/b: there can be one session with " +
				"10.225.0.1 and BGPPeer/a decides what it is; BGPPeer/b wants to be reached by 10.192.0.9, and the " +
				"lowest name goes first"}},

		{rule: "ttlSecurity: global, selector with its reverse, one node",
			objects: plus(`peer g {"peerIP":"10.225.0.1","asNumber":64567,"ttlSecurity":1}`,
				`peer n {"node":"kube-master","peerIP":"10.225.0.2","asNumber":64567,"ttlSecurity":2}`,
				`peer s {"nodeSelector":"role == 'worker'","peerSelector":"role == 'master'","ttlSecurity":1}`),
			want: []string{"10.192.0.3:179 node 64512-64512 passive from BGPPeer/s, ttl security 1",
				"10.192.0.4:179 node 64512-64512 passive from BGPPeer/s, ttl security 1",
				"10.225.0.1:179 global 64512-64567 active from BGPPeer/g, ttl security 1",
				"10.225.0.2:179 node 64512-64567 active from BGPPeer/n, ttl security 2",
				"2001::102:179 node 64512-64512 active from BGPPeer/s, ttl security 1",
				"2001::104:179 node 64512-64512 passive from BGPPeer/s, ttl security 1"}},
		{rule: "ignored interfaces: no session depends on them",
			objects: with(`config default {"ignoredInterfaces":["eth1","foo*"]}`),
			want:    []string{"10.192.0.3:179 mesh 64512-64512 passive" + mesh}},
		{rule: "idle peers: one session with a node that a global peer and one of the node name",
			objects: with(off, `peer g {"peerIP":"10.192.0.3","asNumber":64512}`,
				`peer n {"node":"kube-master","peerIP":"10.192.0.3","asNumber":64512}`),
			want: []string{"10.192.0.3:179 global 64512-64512 passive from BGPPeer/g+BGPPeer/n"}},
		{rule: "node deletion: before", objects: []string{master, node1, node2, v4node("kube-node-3", "10.192.0.5"),
			off, `peer p {"nodeSelector":"all()","peerSelector":"all()"}`}, nodeName: "kube-node-3",
			want: []string{"10.192.0.2:179 node 64512-64512 active from BGPPeer/p",
				"10.192.0.3:179 node 64512-64512 active from BGPPeer/p",
				"10.192.0.4:179 node 64512-64512 active from BGPPeer/p"}},
		{rule: "node deletion: after", objects: []string{master, node1, v4node("kube-node-3", "10.192.0.5"), off,
			`peer p {"nodeSelector":"all()","peerSelector":"all()"}`}, nodeName: "kube-node-3",
			want: []string{"10.192.0.2:179 node 64512-64512 active from BGPPeer/p",
				"10.192.0.3:179 node 64512-64512 active from BGPPeer/p"}},
		{rule: "source address and restart time",
			objects: plus(
				`peer p {"peerIP":"10.225.0.1","asNumber":64567,"sourceAddress":"None","maxRestartTime":"10s"}`),
			want: []string{"10.225.0.1:179 global 64512-64567 active from BGPPeer/p, any source, restart 10"}},

		{rule: "local workloads: those of this node that match, one session per family, passive, any source",
			objects: plus(
				`config node.kube-master {}`,
				`config default {"nodeToNodeMeshEnabled":false,"localWorkloadPeeringIPV4":"169.254.1.1","localWorkloadPeeringIPV6":"fd00::1"}`,
				`wep vm1 {"node":"kube-master","interfaceName":"cali1","ipNetworks":["10.244.0.1/32","10.244.0.2/32","fd00::5/128"]}@{"bgp":"yes"}`,
				`wep vm2 {"node":"kube-master","interfaceName":"cali2","ipNetworks":["10.244.0.3/32"]}@{"bgp":"no"}`,
				`wep vm3 {"node":"kube-node-1","interfaceName":"cali3","ipNetworks":["10.244.1.3/32"]}@{"bgp":"yes"}`,
				`peer w {"localWorkloadSelector":"bgp == 'yes'","asNumber":65400,"localASNumber":65002,"keepaliveTime":"9s","maxRestartTime":"20s"}`),
			want: []string{"10.244.0.1:179 global 65002-65400 passive from BGPPeer/w, any source, restart 20, " +
				"keepalive 9, workload cali1",
				"fd00::5:179 global 65002-65400 passive from BGPPeer/w, any source, restart 20, keepalive 9, " +
					"workload cali1"},
			peering: []string{"cali1 169.254.1.1", "cali1 fd00::1"}},
		{rule: "local workloads: by namespace, for one node only, with bindMode NodeIP",
			objects: []string{v4node("kube-master", "10.192.0.2"),
				`config default {"localWorkloadPeeringIPV4":"169.254.1.1","bindMode":"NodeIP"}`,
				`wep vm1 {"node":"kube-master","interfaceName":"cali1","ipNetworks":["10.244.0.1","fd00::5"]}`,
				`peer w {"node":"kube-master","localWorkloadSelector":"projectcalico.org/namespace == 'default'","asNumber":65400}`, `peer x {"node":"other","localWorkloadSelector":"all()","asNumber":65400}`},
			want:    []string{"10.244.0.1:179 node 64512-65400 passive from BGPPeer/w, any source, workload cali1"},
			peering: []string{"cali1 169.254.1.1"},
			notices: []string{"BGPPeer/w: is skipped for IPv6: this node has no IPv6 address",
				"BGPPeer/w: with bindMode NodeIP"}},
		{rule: "local workloads: never reversed to other nodes", nodeName: "kube-node-1",
			objects: plus(`wep vm1 {"node":"kube-master","interfaceName":"cali1","ipNetworks":["10.244.0.1/32"]}`,
				`peer w {"localWorkloadSelector":"all()","asNumber":65400}`)},
	} {
		t.Run(sc.rule, sc.run)
	}
}

// The settings that win when several BGPPeers have one address: calico/node uses a global peer's forward entry, then a
// node's forward entry, then reverse entries; within a group, the name decides. Each end has its own.
func TestWhichSettingsWin(t *testing.T) {
	n1, n2 := v4node("n1", "10.0.0.1"), v4node("n2", "10.0.0.2")
	with := func(peers ...string) []string {
		return append([]string{n1, n2, off, `filter f {"importV4":[]}`, `filter g {"importV4":[]}`}, peers...)
	}
	for _, tc := range []struct {
		rule    string
		objects []string
		want    map[string]string // by node: the session with the other
		notices map[string][]string
	}{
		{rule: "a node's own settings go before the reverse of a lower name",
			objects: with(`peer a {"node":"n1","peerIP":"10.0.0.2"}`,
				`peer b {"node":"n2","peerIP":"10.0.0.1","filters":["f"],"nextHopMode":"Self","numAllowedLocalASNumbers":2,"reachableBy":"10.0.0.9","keepaliveTime":"7s","maxRestartTime":"9s"}`),
			want: map[string]string{"n1": "10.0.0.2:179 node 64512-64512 passive from BGPPeer/a+BGPPeer/b filters []",
				"n2": "10.0.0.1:179 node 64512-64512 active from BGPPeer/b+BGPPeer/a, via 10.0.0.9, restart 9, " +
					"keepalive 7, own AS 2 times, next hop self filters [f]"}},
		{rule: "a password of one end alone is reported at both",
			objects: with(`peer a {"node":"n1","peerIP":"10.0.0.2"}`,
				`peer b {"node":"n2","peerIP":"10.0.0.1",`+fmt.Sprintf(secretRef, "k")+`}`),
			want: map[string]string{"n1": "10.0.0.2:179 node 64512-64512 passive from BGPPeer/a filters []",
				"n2": `10.0.0.1:179 node 64512-64512 active from BGPPeer/b, password set "pw" filters []`},
			notices: map[string][]string{
				"n1": {"kept BGPPeer/a dropped BGPPeer/b: there can be one session with 10.0.0.2 and BGPPeer/a " +
					"decides what it is; BGPPeer/b wants another password, and a BGPPeer that applies to this node " +
					"goes before the reverse"},
				"n2": {"kept BGPPeer/b dropped BGPPeer/a"}}},
		{rule: "a global peer goes before a node's, whatever the names",
			objects: with(`peer z {"peerIP":"10.0.0.2","filters":["g"]}`,
				`peer a {"node":"n1","peerIP":"10.0.0.2","filters":["f"]}`),
			want: map[string]string{"n1": "10.0.0.2:179 global 64512-64512 passive from BGPPeer/z filters [g]",
				"n2": "10.0.0.1:179 node 64512-64512 active from BGPPeer/a filters [f]"},
			notices: map[string][]string{"n1": {"BGPPeer/a wants filters [f], and a BGPPeer for all nodes goes " +
				"before one for some"},
				"n2": {"kept BGPPeer/a dropped BGPPeer/z: there can be one session with 10.0.0.1 and BGPPeer/a " +
					"decides what it is; BGPPeer/z wants filters [g], and the lowest name goes first"}}},
		{rule: "a node's peer goes before the reverse of a global one",
			objects: with(`peer a {"peerIP":"10.0.0.2","filters":["g"]}`,
				`peer b {"node":"n2","peerIP":"10.0.0.1","filters":["f"]}`),
			want: map[string]string{
				"n1": "10.0.0.2:179 global 64512-64512 passive from BGPPeer/a+BGPPeer/b filters [g]",
				"n2": "10.0.0.1:179 node 64512-64512 active from BGPPeer/b+BGPPeer/a filters [f]"}},
		{rule: "of two reverse entries the lowest name",
			objects: with(`peer q {"node":"n1","peerIP":"10.0.0.2","filters":["g"]}`,
				`peer p {"nodeSelector":"all()","peerIP":"10.0.0.2","filters":["f"]}`),
			want: map[string]string{"n1": "10.0.0.2:179 node 64512-64512 passive from BGPPeer/p filters [f]",
				"n2": "10.0.0.1:179 node 64512-64512 active from BGPPeer/p filters [f]"},
			notices: map[string][]string{"n1": {"BGPPeer/q wants filters [g], and the lowest name goes first"},
				"n2": {"BGPPeer/p: is skipped: spec.peerIP 10.0.0.2 is this node's own address",
					"BGPPeer/q wants filters [g], and the lowest name goes first"}}},
		{rule: "Manual is no reverse entry: the lowest name may be one",
			objects: with(`peer a {"node":"n1","peerIP":"10.0.0.2","filters":["g"],"reversePeering":"Manual"}`,
				`peer b {"node":"n2","peerIP":"10.0.0.1","filters":["f"],"reversePeering":"Manual"}`),
			want: map[string]string{"n1": "10.0.0.2:179 node 64512-64512 passive from BGPPeer/a filters [g]",
				"n2": "10.0.0.1:179 node 64512-64512 active from BGPPeer/b filters [f]"}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			for nodeName, want := range tc.want {
				d := Compute(Input{Reader: model.NewSet(world(t, tc.objects...)...), Node: nodeName,
					Passwords: secrets{"bgp/k": "pw"}})
				if len(d.Sessions) != 1 {
					t.Fatalf("%s: %v", nodeName, showAll(d.Sessions))
				}
				equalLines(t, nodeName, []string{details(d.Sessions[0]) + " filters [" +
					strings.Join(d.Sessions[0].Filters, " ") + "]"}, []string{want})
				wantNotices(t, d, tc.notices[nodeName]...)
			}
		})
	}
}

// The reverse of a BGPPeer with a port is for a node that listens there. Where no port is configured it is for any
// node, and the named node connects to the node of the BGPPeer, which listens on 179 like all others.
func TestPortsBetweenNodes(t *testing.T) {
	n := func(name, addr, port string, more ...string) []string {
		lines := append([]string{v4node(name, addr)}, more...)
		if port != "" {
			lines = append(lines, fmt.Sprintf(`config node.%s {"listenPort":%s}`, name, port))
		}
		return lines
	}
	const low, high = "10.0.0.1", "10.0.0.2" // the greater one connects
	all := `config default {"nodeToNodeMeshEnabled":false,"listenPort":1790}`
	peer := func(node, addr string) string {
		return fmt.Sprintf(`peer %s {"node":%q,"peerIP":%q}`, node, node, addr)
	}
	for _, tc := range []struct {
		rule    string
		objects []string
		n1, n2  []string
	}{
		{rule: "no port anywhere: the reverse connects, although the other has the greater address",
			objects: append(append(n("n1", high, ""), n("n2", low, "")...), off, peer("n1", low+":1790")),
			n1:      []string{low + ":1790 node 64512-64512 passive from BGPPeer/n1"},
			n2:      []string{high + ":179 node 64512-64512 active from BGPPeer/n1"}},
		{rule: "no port anywhere, text order as well",
			objects: append(append(n("n1", low, ""), n("n2", high, "")...), off, peer("n1", high+":1790")),
			n1:      []string{high + ":1790 node 64512-64512 passive from BGPPeer/n1"},
			n2:      []string{low + ":179 node 64512-64512 active from BGPPeer/n1"}},
		{rule: "no port anywhere, 179 given: text order",
			objects: append(append(n("n1", high, ""), n("n2", low, "")...), off, peer("n1", low+":179")),
			n1:      []string{low + ":179 node 64512-64512 active from BGPPeer/n1"},
			n2:      []string{high + ":179 node 64512-64512 passive from BGPPeer/n1"}},
		{rule: "no port anywhere, both name one: nobody gets through",
			objects: append(append(n("n1", high, ""), n("n2", low, "")...), off, peer("n1", low+":1790"),
				peer("n2", high+":1791")),
			n1: []string{low + ":1790 node 64512-64512 active from BGPPeer/n1+BGPPeer/n2"},
			n2: []string{high + ":1791 node 64512-64512 passive from BGPPeer/n2+BGPPeer/n1"}},
		{rule: "the port of the node: text order",
			objects: append(append(n("n1", high, ""), n("n2", low, "1790")...), off, peer("n1", low+":1790")),
			n1:      []string{low + ":1790 node 64512-64512 active from BGPPeer/n1"},
			n2:      []string{high + ":179 node 64512-64512 passive from BGPPeer/n1"}},
		{rule: "not the port of the node: no reverse",
			objects: append(append(n("n1", high, ""), n("n2", low, "1792")...), off, peer("n1", low+":1790")),
			n1:      []string{low + ":1790 node 64512-64512 active from BGPPeer/n1"}},
		{rule: "the cluster's port, but not the node's: no reverse",
			objects: append(append(n("n1", high, ""), n("n2", low, "1792")...), all, peer("n1", low+":1790")),
			n1:      []string{low + ":1790 node 64512-64512 active from BGPPeer/n1"}},
		{rule: "the node's port, but not the cluster's: a reverse all the same",
			objects: append(append(n("n1", high, ""), n("n2", low, "1792")...), all, peer("n1", low+":1792")),
			n1:      []string{low + ":1792 node 64512-64512 active from BGPPeer/n1"},
			n2:      []string{high + ":1790 node 64512-64512 passive from BGPPeer/n1"}},
		{rule: "a mesh beside it: the other end is of the mesh and connects",
			objects: append(append(n("n1", high, ""), n("n2", low, "1792")...), peer("n1", low+":1790")),
			n1:      []string{low + ":1790 node 64512-64512 passive from BGPPeer/n1"},
			n2:      []string{high + ":179 mesh 64512-64512 active" + mesh}},
		{rule: "another AS: port 179 is wanted, 500 is right, and the other end's own BGPPeer connects",
			objects: append(append(n("n1", high, ""), n("n2", low, "500")...), off,
				`peer p {"node":"n1","peerIP":"10.0.0.1","asNumber":65001}`,
				`peer q {"node":"n2","peerIP":"10.0.0.2","asNumber":64512,"localASNumber":65001}`),
			n1: []string{low + ":179 node 64512-65001 passive from BGPPeer/p+BGPPeer/q"},
			n2: []string{high + ":179 node 65001-64512 active from BGPPeer/q"}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			equalLines(t, "n1", showAll(compute(t, "n1", tc.objects...).Sessions), tc.n1)
			equalLines(t, "n2", showAll(compute(t, "n2", tc.objects...).Sessions), tc.n2)
		})
	}
}

// A limit on prefixes is an annotation, since Calico has no field for it.
func TestAnnotations(t *testing.T) {
	peer := func(annotations map[string]string) Desired {
		objects := world(t, v4node("a", "10.0.0.1"), off, `peer p {"peerIP":"10.9.9.9","asNumber":65100}`)
		objects[2].Value.(*model.BGPPeer).Annotations = annotations
		objects[1].Value.(*model.BGPConfiguration).Annotations = map[string]string{"kubectl.kubernetes.io/x": "y"}
		return Compute(Input{Reader: model.NewSet(objects...), Node: "a"})
	}
	for _, tc := range []struct {
		rule, name, text string
		want             uint32
		notices          []string
	}{
		{"a number", "manx.io/max-prefixes", "1000", 1000, nil},
		{"0 is the default", "manx.io/max-prefixes", "0", 0, nil},
		{"nonsense", "manx.io/max-prefixes", "many", 0,
			[]string{
				`BGPPeer/p: annotation manx.io/max-prefixes = "many" is ignored: want a number from 0 to 2147483647`}},
		{"negative", "manx.io/max-prefixes", "-1", 0, []string{`annotation manx.io/max-prefixes = "-1" is ignored`}},
		{"misspelt", "manx.io/max-prefix", "1000", 0, []string{"BGPPeer/p: annotation manx.io/max-prefix is ignored: " +
			"it has no meaning on a BGPPeer (known there: manx.io/"}},
		{"of others", "example.com/max-prefixes", "x", 0, nil},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			d := peer(map[string]string{tc.name: tc.text})
			if got := d.Sessions[0].MaxPrefixes; got != tc.want {
				t.Errorf("limit %d, want %d", got, tc.want)
			}
			wantNotices(t, d, tc.notices...)
		})
	}
}

// The results for each of the objects with one address.
func TestOf(t *testing.T) {
	d := compute(t, "a", v4node("a", "10.0.0.1"), v4node("b", "10.0.0.2"),
		`peer p {"nodeSelector":"all()","peerSelector":"all()","ttlSecurity":1}`,
		`peer q {"peerIP":"10.9.9.9","asNumber":65100,"maxRestartTime":"9h"}`,
		`peer r {"peerIP":"10.9.9.9:500","asNumber":65100}`, `peer s {"node":"a","peerIP":"10.9.9.9","asNumber":65101}`)
	for object, want := range map[string]struct {
		sessions, notices int
		conflict          string
	}{
		"BGPPeer/p": {1, 0, "BGPConfiguration/default wants TTL security 0, and a BGPPeer goes before " +
			"the node-to-node mesh"},
		"BGPConfiguration/default": {0, 0, "BGPConfiguration/default wants TTL security 0, and a BGPPeer goes before " +
			"the node-to-node mesh"},
		"BGPPeer/q": {1, 1, "BGPPeer/r wants port 500, and the lowest name goes first; BGPPeer/s " +
			"wants peer AS 65101, and a BGPPeer for all nodes goes before one for some"},
		"BGPPeer/r":    {0, 0, "BGPPeer/r wants port 500, and the lowest name goes first"},
		"BGPPeer/s":    {0, 0, "BGPPeer/s wants peer AS 65101"},
		"BGPPeer/none": {0, 0, ""},
	} {
		sessions, conflicts, notices := resultsFor(object, d)
		if len(sessions) != want.sessions || len(notices) != want.notices ||
			(len(conflicts) == 1) != (want.conflict != "") {
			t.Errorf("%s: %d sessions, conflicts %v, notices %v", object, len(sessions), conflicts, notices)
		}
		if len(conflicts) == 1 && !strings.Contains(conflicts[0].Reason, want.conflict) {
			t.Errorf("%s: %s", object, conflicts[0].Reason)
		}
	}
	if sessions, _, _ := resultsFor("BGPPeer/q", d); sessions[0].Address != netip.MustParseAddr("10.9.9.9") {
		t.Errorf("%v", sessions)
	}
}

// resultsFor returns the results that concern one object, such as "BGPPeer/tor-1" or "BGPConfiguration/default": the
// sessions that it configures, the conflicts that it won or lost, and the notices about it.
func resultsFor(object string, d Desired) (sessions []Session, conflicts []Conflict, notices []Notice) {
	for _, s := range d.Sessions {
		if slices.Contains(s.From, object) {
			sessions = append(sessions, s)
		}
	}
	for _, c := range d.Conflicts {
		if c.Kept == object || slices.Contains(c.Dropped, object) {
			conflicts = append(conflicts, c)
		}
	}
	for _, n := range d.Notices {
		if n.Object == object {
			notices = append(notices, n)
		}
	}
	return sessions, conflicts, notices
}
