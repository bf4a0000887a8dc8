package differences

import (
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

var sessions = []difference{
	{name: "AS of a mesh peer that has none of its own", calico: "the AS of the node that peers with it",
		manx: "the AS of the cluster",
		why: "The peer's OPEN has the AS of the cluster; with calico/node's choice the session never comes up when " +
			"the local node has an AS of its own.",
		check: func(t *testing.T) {
			hasSessions(t, desiredOn(t, "a", `node a {"bgp":{"ipv4Address":"10.0.0.1/24","asNumber":65001}}`, b,
				`config default {"asNumber":64600}`),
				"10.0.0.2:179 mesh 65001-64600 passive BGPConfiguration/default")
		}},
	{name: "BGPPeer whose AS is missing and cannot be derived",
		calico: "BIRD's configuration is invalid and stays as it was on each node that the BGPPeer is for",
		manx:   "this BGPPeer is skipped, and a notice says so",
		why:    "One bad object must not block the others.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, `peer bad {"peerIP":"10.9.9.9"}`,
				`peer good {"peerIP":"10.9.9.8","asNumber":65100}`)
			hasSessions(t, d, "10.9.9.8:179 global 64512-65100 active BGPPeer/good")
			hasText(t, d, "BGPPeer/bad: is skipped: spec.asNumber is missing")
		}},
	{name: "`peerIP` of a node, without `asNumber`",
		calico: "AS 0, with which no session is possible; the other end has its reverse if it has the AS of " +
			"the cluster",
		manx: "the AS of that node, at both ends",
		why:  "The AS is known.",
		check: func(t *testing.T) {
			two := `node b {"bgp":{"ipv4Address":"10.0.0.2/24","asNumber":65002}}`
			hasSessions(t, desiredOn(t, "a", a, two, off, `peer p {"node":"a","peerIP":"10.0.0.2"}`),
				"10.0.0.2:179 node 64512-65002 passive BGPPeer/p")
			hasSessions(t, desiredOn(t, "b", a, two, off, `peer p {"node":"a","peerIP":"10.0.0.2"}`),
				"10.0.0.1:179 node 65002-64512 active BGPPeer/p")
		}},
	{name: "BGPPeer with fields that exclude each other",
		calico: "one of them counts: `nodeSelector` before `node`, `peerSelector` before `peerIP`, `nextHopMode` " +
			"before `keepOriginalNextHop`; `asNumber` beside `peerSelector` is ignored",
		manx: "skipped, and a notice says so",
		why:  "The intended one is unknown. The clients of both refuse to write such a BGPPeer.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, b, off,
				`peer p {"node":"a","nodeSelector":"all()","peerIP":"10.9.9.9","asNumber":1}`,
				`peer q {"peerIP":"10.9.9.9","peerSelector":"all()"}`,
				`peer r {"peerSelector":"all()","asNumber":1}`,
				`peer s {"peerIP":"10.9.9.9","asNumber":1,"keepOriginalNextHop":true,"nextHopMode":"Self"}`)
			hasSessions(t, d)
			for _, name := range []string{"p", "q", "r", "s"} {
				hasText(t, d, "BGPPeer/"+name+": is skipped")
			}
		}},
	{name: "BGPPeers of one group with one address", calico: "any of them, another one after a restart",
		manx: "the one with the lowest name; the status shows the conflict",
		why: "The same outcome each time. Between the groups both go by the same order: BGPPeers for all nodes, for " +
			"this node, the reverse of those that apply to the peer.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, `peer q {"peerIP":"10.9.9.9","asNumber":65101}`,
				`peer p {"peerIP":"10.9.9.9","asNumber":65100}`)
			hasSessions(t, d, "10.9.9.9:179 global 64512-65100 active BGPPeer/p")
			hasText(t, d, "BGPPeer/q wants peer AS 65101, and the lowest name goes first")
		}},
	{name: "order of the groups of BGPPeers with one address",
		calico: "those for all nodes, then those for this node, then the reverse of those that apply to the peer; " +
			"each end has its own settings",
		why: "Both ends can be configured differently.",
		check: func(t *testing.T) {
			w := []string{a, b, off, `filter f {}`, `peer a {"node":"a","peerIP":"10.0.0.2"}`,
				`peer b {"node":"b","peerIP":"10.0.0.1","filters":["f"]}`}
			if s := onlySession(t, desiredOn(t, "b", w...)); s.From[0] != "BGPPeer/b" || len(s.Filters) != 1 {
				t.Errorf("b: %+v", s)
			}
			if s := onlySession(t, desiredOn(t, "a", w...)); s.From[0] != "BGPPeer/a" || len(s.Filters) != 0 {
				t.Errorf("a: %+v", s)
			}
		}},
	{name: "two ports on one address", calico: "two sessions",
		manx: "one session; the status shows the conflict",
		why:  "GoBGP identifies its neighbours by their addresses alone.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, `peer p {"peerIP":"10.9.9.9:500","asNumber":65100}`,
				`peer q {"peerIP":"10.9.9.9:600","asNumber":65100}`)
			hasSessions(t, d, "10.9.9.9:500 global 64512-65100 active BGPPeer/p")
			hasText(t, d, "BGPPeer/q wants port 600")
		}},
	{name: "BGPPeer beside the mesh", calico: "two sessions with the node", manx: "the session of the BGPPeer",
		why: "GoBGP identifies its neighbours by their addresses alone.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, b, `peer p {"node":"a","peerIP":"10.0.0.2","asNumber":64512,"ttlSecurity":1}`)
			hasSessions(t, d, "10.0.0.2:179 node 64512-64512 passive BGPPeer/p")
			hasText(t, d, "a BGPPeer goes before the node-to-node mesh")
		}},
	{name: "two nodes with one address", calico: "two sessions of one name in BIRD's configuration",
		manx: "one session, and a notice",
		why:  "One of the two Nodes is a mistake or a leftover, which must not end the sessions with others.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, b, `node twin {"bgp":{"ipv4Address":"10.0.0.2/24"}}`)
			hasSessions(t, d, "10.0.0.2:179 mesh 64512-64512 passive BGPConfiguration/default")
			hasText(t, d, "is also the address of node b")
		}},
	{name: "addresses of nodes in `peerIP`", calico: "compared as text", manx: "compared as addresses",
		why: "`FD00:0::2` is `fd00::2`.",
		check: func(t *testing.T) {
			six := func(name, addr string) string {
				return `node ` + name + ` {"bgp":{"ipv6Address":"` + addr +
					`/64"}}`
			}
			hasSessions(t, desiredOn(t, "b", six("a", "fd00::1"), six("b", "fd00::2"), off,
				`peer p {"node":"a","peerIP":"FD00:0::2","asNumber":64512}`),
				"fd00::1:179 node 64512-64512 active BGPPeer/p")
		}},
	{name: "reverse of `peerIP` with a port",
		calico: "if the port is the `listenPort` of the node and that of the cluster, as far as either is set",
		manx:   "if the node listens there; or if no `listenPort` is set for it",
		why:    "A node's own `listenPort` replaces that of the cluster.",
		check: func(t *testing.T) {
			w := []string{a, b, `config default {"nodeToNodeMeshEnabled":false,"listenPort":1790}`,
				`config node.b {"listenPort":1792}`}
			hasSessions(t, desiredOn(t, "b", append(w, `peer p {"node":"a","peerIP":"10.0.0.2:1792"}`)...),
				"10.0.0.1:1790 node 64512-64512 active BGPPeer/p")
			hasSessions(t, desiredOn(t, "b", append(w, `peer p {"node":"a","peerIP":"10.0.0.2:1790"}`)...))
		}},
	{name: "reverse of `localASNumber`", calico: "the other end expects the AS of the node, so that the session " +
		"cannot come up", manx: "the other end expects `localASNumber`",
		why: "The node says it in its OPEN.",
		check: func(t *testing.T) {
			hasSessions(t, desiredOn(t, "b", a, b, off,
				`peer p {"node":"a","peerIP":"10.0.0.2","localASNumber":65222}`),
				"10.0.0.1:179 node 64512-65222 active BGPPeer/p")
		}},
	{name: "reverse of `reachableBy`", calico: "the other end gets a route to the node by the same gateway",
		manx: "no route at the other end",
		why:  "The gateway is one on the node's side.",
		check: func(t *testing.T) {
			if s := onlySession(t, desiredOn(t, "b", a, b, off,
				`peer p {"node":"a","peerIP":"10.0.0.2","reachableBy":"10.0.0.9"}`)); s.Via.IsValid() {
				t.Errorf("by %s", s.Via)
			}
		}},
	{name: "BGPPeers that differ only in `reachableBy`", calico: "the gateway of the one that counts, or none",
		manx: "the gateway of the first that has one",
		why:  "They want the same session.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, `peer p {"peerIP":"10.9.9.9","asNumber":65100}`,
				`peer q {"node":"a","peerIP":"10.9.9.9","asNumber":65100,"reachableBy":"10.0.0.9"}`)
			if s := onlySession(t, d); s.Via.String() != "10.0.0.9" || len(d.Conflicts) != 0 {
				t.Errorf("by %s, %v", s.Via, d.Conflicts)
			}
		}},
	{name: "labels that `localWorkloadSelector` evaluates",
		calico: "those of the WorkloadEndpoint and those of its profiles",
		manx:   "those of the WorkloadEndpoint, its namespace and its orchestrator",
		why:    "Not built yet.",
		check: func(t *testing.T) {
			wep := `wep w {"metadata":{"labels":{"bgp":"yes"}},"spec":{"node":"a","interfaceName":"cali1","ipNetworks":["10.1.0.1/32"],"profiles":["kns.default"]}}`
			hasSessions(t, desiredOn(t, "a", a, off, wep,
				`peer p {"localWorkloadSelector":"bgp == 'yes' && projectcalico.org/namespace == 'default'","asNumber":65400}`),
				"10.1.0.1:179 global 64512-65400 passive BGPPeer/p")
			hasSessions(t, desiredOn(t, "a", a, off, wep,
				`peer p {"localWorkloadSelector":"has(pcns.team)","asNumber":65400}`))
		}},
	{name: "node without an IPv4 address and without `CALICO_ROUTER_ID`", calico: "no router ID, so no sessions",
		manx: "the router ID that `hash` gives", why: "It is as stable as the node's name.",
		check: func(t *testing.T) {
			if d := desiredOn(t, "kube-master",
				`node kube-master {"bgp":{"ipv6Address":"fd00::1/64"}}`); d.Global.RouterID.String() != "25.79.212.8" {
				t.Error(d.Global.RouterID)
			}
		}},
	{name: "`CALICO_ROUTER_ID` that is not an IPv4 address",
		calico: "written into BIRD's configuration, which is then invalid", manx: "ignored, and a notice says so",
		why: "One wrong setting should not end all sessions of the node.",
		check: func(t *testing.T) {
			d := bgp.Compute(bgp.Input{Reader: world(t, a), Node: "a", RouterID: "ten"})
			hasText(t, d, `CALICO_ROUTER_ID = "ten" is ignored`)
			if d.Global.RouterID.String() != "10.0.0.1" {
				t.Error(d.Global.RouterID)
			}
		}},
	{name: "`routeReflectorClusterID` that is not an IPv4 address",
		calico: "written into BIRD's configuration, which is then invalid",
		manx:   "the node is in no mesh and reflects nothing, and a notice says so",
		why:    "One wrong setting should not end all sessions of the node.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", `node a {"bgp":{"ipv4Address":"10.0.0.1/24","routeReflectorClusterID":"x"}}`, b,
				`peer p {"peerIP":"10.9.9.9","asNumber":64512}`)
			hasText(t, d, "want an IPv4 address; until then the node is in no mesh and reflects nothing")
			if s := onlySession(t, d); s.ReflectorClient {
				t.Errorf("%+v", s)
			}
		}},
	{name: "global `peerIP` of a node whose AS is another",
		calico: "the text order of addresses decides who connects, to port 179, and the node does not peer back",
		why:    "A mixed cluster needs one rule.",
		check: func(t *testing.T) {
			w := []string{a, b, off, `config node.b {"listenPort":500}`,
				`peer p {"peerIP":"10.0.0.2","asNumber":65111}`}
			hasSessions(t, desiredOn(t, "a", w...), "10.0.0.2:179 global 64512-65111 passive BGPPeer/p")
			hasSessions(t, desiredOn(t, "b", w...))
		}},
}

var settings = []difference{
	{name: "side that connects", calico: "mesh and global `peerIP`: the node with the greater address, compared as " +
		"text; other BGPPeers: both",
		manx: "between nodes always exactly one: the one with the greater address, compared as text, unless only the " +
			"other one knows the port on which its peer listens",
		why: "Two GoBGP speakers that connect to each other at the same moment can block each other for good.",
		check: func(t *testing.T) {
			w := []string{a, b, off, `peer p {"nodeSelector":"all()","peerSelector":"all()"}`}
			hasSessions(t, desiredOn(t, "a", w...), "10.0.0.2:179 node 64512-64512 passive BGPPeer/p")
			hasSessions(t, desiredOn(t, "b", w...), "10.0.0.1:179 node 64512-64512 active BGPPeer/p")
			w[3] = `peer p {"node":"b","peerIP":"10.0.0.1:1790"}`
			hasSessions(t, desiredOn(t, "a", w...), "10.0.0.2:179 node 64512-64512 active BGPPeer/p")
			hasSessions(t, desiredOn(t, "b", w...), "10.0.0.1:1790 node 64512-64512 passive BGPPeer/p")
		}},
	{name: "AS numbers above 2147483647 in BGPPeer and BGPConfiguration", calico: "refused by `calicoctl`",
		manx: "accepted", why: "They are valid (RFC 6793), and Nodes may have them.",
		check: func(t *testing.T) {
			hasSessions(t, desiredOn(t, "a", a, `config default {"nodeToNodeMeshEnabled":false,"asNumber":4200000000}`,
				`peer p {"peerIP":"10.9.9.9","asNumber":4200000001}`),
				"10.9.9.9:179 global 4200000000-4200000001 active BGPPeer/p")
		}},
	{name: "reflectors of one cluster ID, given by `peerIP`", calico: "clients of each other",
		manx: "not clients, as with selectors", why: "The cluster ID of the node is known.",
		check: func(t *testing.T) {
			rr := func(name, addr string) string {
				return `node ` + name + ` {"bgp":{"ipv4Address":"` + addr +
					`/24","routeReflectorClusterID":"10.9.9.9"}}`
			}
			if s := onlySession(t, desiredOn(t, "a", rr("a", "10.0.0.1"), rr("b", "10.0.0.2"),
				`peer p {"node":"a","peerIP":"10.0.0.2","asNumber":64512}`)); s.ReflectorClient {
				t.Error("the other reflector is a client")
			}
		}},
	{name: "internal `peerIP` from outside the cluster, on a reflector", calico: "a client",
		why: "Nothing else is known of it.",
		check: func(t *testing.T) {
			if s := onlySession(t,
				desiredOn(t, "a", `node a {"bgp":{"ipv4Address":"10.0.0.1/24","routeReflectorClusterID":"10.9.9.9"}}`,
					`peer p {"peerIP":"10.0.0.50","asNumber":64512}`)); !s.ReflectorClient {
				t.Error("the peer is no client")
			}
		}},
	{name: "`password`, `maxRestartTime`, `keepaliveTime`, `ttlSecurity`, `nextHopMode` and `keepOriginalNextHop` of " +
		"a BGPPeer for local workloads", calico: "ignored", manx: "apply", why: "They have a meaning there.",
		check: func(t *testing.T) {
			s := onlySession(t, desiredOn(t, "a", a,
				`wep w {"node":"a","interfaceName":"cali1","ipNetworks":["10.1.0.1/32"]}`,
				`peer p {"localWorkloadSelector":"all()","asNumber":65400,"password":{"secretKeyRef":{"name":"bgp","key":"k"}},"maxRestartTime":"9s","keepaliveTime":"8s","ttlSecurity":1,"nextHopMode":"Self"}`))
			if s.Password != "pw" || s.RestartSeconds != 9 || s.KeepaliveSeconds != 8 || s.TTLSecurity != 1 ||
				s.NextHop != bgp.NextHopSelf {
				t.Errorf("%+v", s)
			}
		}},
	{name: "times that a message cannot carry: `maxRestartTime` above 4095 s, `keepaliveTime` above 65535 s",
		calico: "passed on to BIRD", manx: "ignored, and a notice says so",
		why: "The other settings of the BGPPeer are good.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, `peer p {"peerIP":"10.9.9.9","asNumber":65100,"maxRestartTime":"2h"}`)
			if s := onlySession(t, d); s.RestartSeconds != 120 {
				t.Error(s.RestartSeconds)
			}
			hasText(t, d, "spec.maxRestartTime = 2h0m0s is ignored")
		}},
	{name: "`keepaliveTime` above a third of the hold time", calico: "passed on to BIRD, so that the session may end " +
		"again and again for want of a KEEPALIVE",
		manx: "a third of the hold time that both sides agreed upon, and a notice if that is always so",
		why:  "RFC 4271 section 4.4",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, `peer p {"peerIP":"10.9.9.9","asNumber":65100,"keepaliveTime":"300s"}`)
			if s := onlySession(t, d); s.Wire().Keepalive != 80 {
				t.Error(s.Wire().Keepalive)
			}
			hasText(t, d, "spec.keepaliveTime = 5m0s is limited to a third of the hold time, 80s")
		}},
	{name: "password that cannot be read", calico: "the session runs without one",
		manx: "the one that was read last stays in use; without one the session stays down, and the reason names the " +
			"secret and the key", why: "Protection fails closed.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a,
				`peer p {"peerIP":"10.9.9.9","asNumber":65100,"password":{"secretKeyRef":{"name":"bgp","key":"absent"}}}`)
			if s := onlySession(t, d); s.PasswordFrom != "missing" || s.Password != "" {
				t.Errorf("password %q, %s", s.Password, s.PasswordFrom)
			}
			hasText(t, d, `key "absent" of secret "bgp" cannot be read: no such file; its sessions stay down`)
		}},
	{name: "`maxRestartTime` and `keepaliveTime` below half a second",
		calico: "passed on to BIRD as 0: with `maxRestartTime`, peers drop the routes of a node that restarts at once",
		manx:   "as if not set", why: "0 would cancel the effect of the field.",
		check: func(t *testing.T) {
			w := onlySession(t,
				desiredOn(t, "a", a,
					`peer p {"peerIP":"10.9.9.9","asNumber":65100,"maxRestartTime":"0s","keepaliveTime":"400ms"}`)).Wire()
			if w.Restart != 120 || w.Keepalive != 80 {
				t.Errorf("%+v", w)
			}
		}},
	{name: "time between two attempts to connect", calico: "5 s, after an error 5 to 30 s",
		manx: "0.1 s, then twice as long each time, up to 3 s",
		why:  "A router that comes back should be noticed.", shown: "bgp/speaker TestCapabilities"},
	{name: "`numAllowedLocalASNumbers` above 255", calico: "passed on to BIRD", manx: "counts as 255",
		why: "GoBGP has one byte for it.",
		check: func(t *testing.T) {
			s := onlySession(t, desiredOn(t, "a", a,
				`peer p {"peerIP":"10.9.9.9","asNumber":65100,"numAllowedLocalASNumbers":300}`))
			if got := s.Wire().AllowOwnAS; got != 255 {
				t.Error(got)
			}
		}},
	{name: "limit of prefixes", calico: "none",
		manx: "a session is shut down for five minutes above 500,000 prefixes, or as `--bgp-max-prefixes` and the " +
			"annotation `manx.io/max-prefixes` say", why: "A peer must not exhaust the node's memory.",
		shown: "bgp/speaker TestMaxPrefixesHoldsTheSessionDown"},
	{name: "BFD", calico: "none", manx: "by annotation", why: "Hold timers need minutes.",
		check: func(t *testing.T) {
			s := onlySession(t,
				desiredOn(t, "a", a,
					`peer p {"metadata":{"annotations":{"manx.io/bfd":"true"}},"spec":{"peerIP":"10.0.0.9","asNumber":65100}}`))
			if !s.BFD.Enabled || s.BFD.Transmit != 300*time.Millisecond || s.BFD.Multihop {
				t.Errorf("%+v", s.BFD)
			}
			if s := onlySession(t, desiredOn(t, "a", a,
				`peer p {"peerIP":"10.0.0.9","asNumber":65100}`)); s.BFD.Enabled {
				t.Error("it is on without being configured")
			}
		}},
	{name: "several paths for a prefix (ADD-PATH)", calico: "all are sent", manx: "64 at most are sent",
		why: "GoBGP wants a number.", shown: "bgp/speaker TestCapabilities"},
	{name: "capabilities that only one of the two offers",
		calico: "enhanced route refresh; long-lived graceful restart, for no family",
		manx:   "FQDN",
		why:    "It names the node in the outputs of routers that show it.",
		shown:  "bgp/speaker TestCapabilities"},
	{name: "`logSeverityScreen` of BGPConfiguration", calico: "level of BIRD's log",
		manx:  "level of manxd's one log, if it has more lines than that of FelixConfiguration",
		why:   "There is one process with one log.",
		shown: "cmd/manxd TestLogLevelFollowsTheDatastore"},
}
