package differences

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/ippool"
)

// learn lets a node 10.0.0.1/24 with tunl0 learn a route, and returns the route's status.
func learn(t *testing.T, prefix, nextHop string, pools ...ippool.Pool) route.Status {
	t.Helper()
	return learnMetric(t, prefix, nextHop, 1024, pools...)
}

func learnMetric(t *testing.T, prefix, nextHop string, metric uint32, pools ...ippool.Pool) route.Status {
	t.Helper()
	return learnAll(t, locrib.Route{Prefix: netip.MustParsePrefix(prefix),
		Paths: []locrib.Path{{NextHop: netip.MustParseAddr(nextHop)}}, Metric: metric}, pools...)
}

func learnAll(t *testing.T, l locrib.Route, pools ...ippool.Pool) route.Status {
	t.Helper()
	f := kerneltest.New()
	f.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true})
	f.PutLink(kernel.Link{Index: 3, Name: "tunl0", Up: true, Running: true})
	f.PutLink(kernel.Link{Index: 4, Name: "cali1", Up: true, Running: true})
	f.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("10.0.0.1/24")})
	f.PutRoute(kernel.Route{Dst: netip.MustParsePrefix("10.0.0.0/24"), Protocol: kernel.ProtocolKernel,
		Type: kernel.Unicast, NextHops: []kernel.NextHop{{Link: 2}}})
	target := route.New(f, time.Now)
	target.Configure(route.Config{Node4: netip.MustParsePrefix("10.0.0.1/24"), Pools: ippool.NewTable(pools...),
		Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/26")},
		Endpoints: []route.Endpoint{{Name: "default/w", Interface: "cali1",
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/32")}}},
		WorkloadPrefixes: []string{"cali"}})
	target.Learn([]locrib.Route{l})
	if _, failures, err := target.Flush(); failures != 0 || err != nil {
		t.Fatal(failures, err)
	}
	for _, s := range target.Statuses() {
		if s.Prefix == l.Prefix {
			return s
		}
	}
	t.Fatalf("nothing is known of %s", l.Prefix)
	return route.Status{}
}

// blocked fails unless the route is not in the kernel for this reason.
func blocked(t *testing.T, s route.Status, reason string) {
	t.Helper()
	if s.Phase != reconcile.Blocked || len(s.Actual) != 0 || !strings.Contains(s.Reason, reason) {
		t.Errorf("%s %q %q, want no route because %q", s.Phase, s.Actual, s.Reason, reason)
	}
}

var kernelRoutes = []difference{
	{name: "next hop that cannot be reached", calico: "an `unreachable` route",
		manx: "no route; the reason is in `manxctl routes`", why: "A less specific route may work.",
		check: func(t *testing.T) { blocked(t, learn(t, "10.1.2.0/26", "10.7.7.7"), "no route to next hop") }},
	{name: "routes of IPIP pools", calico: "Felix's (protocol 80) or BIRD's (protocol 12), by `programClusterRoutes` " +
		"of BGPConfiguration and FelixConfiguration, which must agree",
		manx: "always protocol 80, whatever the two say", why: "There is one process.",
		check: func(t *testing.T) {
			s := learn(t, "10.1.2.0/26", "10.0.0.2",
				ippool.Pool{Name: "p", CIDR: netip.MustParsePrefix("10.1.0.0/16"), IPIP: ippool.Always})
			if !strings.Contains(s.Desired, "dev tunl0 onlink proto 80") {
				t.Error(s.Desired)
			}
		}},
	{name: "routes to local workloads without `deviceRouteProtocol`", calico: "protocol 3 (boot)", manx: "protocol 80",
		why:   "Routes of protocol 3 are those of administrators, too.",
		shown: "dataplane/route TestSettingsOfWorkloadRoutes"},
	{name: "ARP and neighbour solicitations with `localSubnetL2Reachability`",
		calico: "a program answers for workloads and services, and announces their addresses",
		manx:   "the kernel answers for workloads; nothing is announced",
		why:    "It needs no right to send any packet.",
		shown:  "dataplane TestStationsOfTheSubnetReachWorkloads"},
	{name: "blackholes of own blocks", calico: "of whoever owns the routes of the pool: protocol 80 or 12",
		manx: "always protocol 12", why: "There is one process.",
		check: func(t *testing.T) {
			if s := learn(t, "10.1.0.0/26", "10.0.0.2"); s.Desired != "blackhole 10.1.0.0/26 proto bird" {
				t.Error(s.Desired)
			}
		}},
	{name: "address of a local workload that another node announces with an elevated priority",
		calico: "the route to the other node wins",
		manx:   "the local workload's until it departs, or KubeVirt moves it there",
		why:    "As long as the workload is connected here, this node can deliver.",
		check: func(t *testing.T) {
			if s := learnMetric(t, "10.1.0.5/32", "10.0.0.2", 512); !strings.Contains(s.Desired, "dev cali1") {
				t.Error(s.Desired)
			}
		}},
	{name: "nodes that encrypt with WireGuard", calico: "Felix's routes lead to them by `wireguard.cali`",
		manx: "these, [too](wireguard.md), once there was a handshake; a route that BGP learns is in the main table " +
			"as ever",
		why: "The other node may not know the key yet: fewer packets are lost.",
		check: func(t *testing.T) {
			if s := learn(t, "10.1.2.0/26", "10.0.0.2"); s.Desired != "10.1.2.0/26 via 10.0.0.2 dev eth0 proto "+
				"bird metric 1024" {
				t.Error(s.Desired)
			}
		}},
	{name: "next hops of one route", calico: "16 at most", manx: "as many as there are equal paths",
		why: "The kernel takes more.",
		check: func(t *testing.T) {
			l := locrib.Route{Prefix: netip.MustParsePrefix("10.1.2.0/26"), Metric: 1024}
			for i := range byte(20) {
				l.Paths = append(l.Paths, locrib.Path{NextHop: netip.AddrFrom4([4]byte{10, 0, 0, 100 + i})})
			}
			if s := learnAll(t, l); strings.Count(s.Desired, "via 10.0.0.1") != 20 {
				t.Error(s.Desired)
			}
		}},
	{name: "change of a route", calico: "deleted and added",
		manx: "replaced, or the new one is added before the old one goes", why: "No packet is lost between the two.",
		shown: "dataplane/route TestMetricChangeHasNoGap"},
	{name: "drift", calico: "found by a comparison every two seconds",
		manx: "found by events of the kernel, and by a comparison now and then",
		why:  "It costs nothing while nothing happens.", shown: "dataplane TestDriftIsRepaired"},
	{name: "learned routes for own blocks and addresses, with an own address as next hop, or not for unicast traffic",
		calico: "accepted", manx: "not installed; the reason is in `manxctl routes --rejected`",
		why:   "A peer must not take the node's traffic.",
		shown: "bgp/fib TestFIBRefuses"},
	{name: "learned routes of a peer in another AS with an address of this node's blocks as next hop, except that of " +
		"the peer itself", calico: "accepted", manx: "not installed; the reason is in `manxctl routes --rejected`",
		why:   "A router must not direct traffic into a workload.",
		shown: "bgp/speaker TestNextHopsInsideOwnBlocks"},
	{name: "routes to addresses that no other host can have (link-local, 0.0.0.0/8, 240.0.0.0/4 and so on)",
		calico: "accepted and installed", manx: "refused from every peer; the reason is in `manxctl routes --rejected`",
		why:   "Nobody can be reached there.",
		shown: "bgp/speaker TestMartiansAreRefused"},
	{name: "route of another speaker for an own block", calico: "passed on with ADD-PATH", manx: "passed on to nobody",
		why:   "It would draw the traffic of this node's workloads elsewhere.",
		shown: "bgp/speaker TestRouteForOwnBlockIsNotPassedOn"},
	{name: "default routes, prefixes of any length, inside pools and inside the host's subnets",
		calico: "accepted from every peer", why: "Many networks rely on some of them. Settings of Manx refuse them.",
		shown: "bgp TestRefusalsBySetting"},
	{name: "route that comes back to a reflector from a client", calico: "dropped",
		manx:  "not installed, and `manxctl node problems` says so; it may reach other peers",
		why:   "GoBGP looks at CLUSTER_LIST only when it sends a route to a client.",
		shown: "bgp/speaker TestReflectedRouteComesBack"},
	{name: "routes of before a restart", calico: "kept until each peer that restarts gracefully has sent its routes, " +
		"at most 240 s", manx: "the same; 10 s for a peer that is up, 120 s for one that is not",
		why:   "After that time peers have dropped this node's routes, too.",
		shown: "bgp/speaker TestReadyDoesNotWaitForPeersThatAreDown"},
}

var overlays = []difference{
	{name: "VXLAN of another program on the port of the nodes'", calico: "dropped, unless a node sends it",
		manx:  "left alone: the rules compare the network (VNI)",
		why:   "The kernel hands it to the other program's device.",
		shown: "dataplane TestVXLANPacketsInTheKernel"},
	{name: "connection tracking of datagrams to `vxlanPort`", calico: "none is tracked",
		manx:  "VXLAN between this host and nodes is not tracked, all others are",
		why:   "An answer to a port that is 4789 by chance needs its connection.",
		shown: "dataplane/policy TestVXLANPackets"},
	{name: "`vxlanEnabled: false` or `ipipEnabled: false` beside a pool that needs the overlay",
		calico: "no routes, without a word", manx: "no routes; a notice and each route's reason say so",
		why: "Pods are cut off.", shown: "cmd/manxd TestNoticesOfOverlays"},
	{name: "MTU of the first pods of a node with VXLAN", calico: "leaves room for the headers",
		why: "A pod keeps its MTU.", shown: "dataplane/overlay TestMTUBeforeTheTunnel"},
	{name: "MTU of the host without `mtuIfacePattern`",
		calico: "the smallest of the interfaces whose names look like uplinks, 1460 if there are none; a change " +
			"restarts Felix",
		manx: "that of the interfaces and routes to the other nodes, followed at once",
		why:  "The name of an interface does not say where it leads.", shown: "dataplane TestMTUFollowsTheUnderlay"},
	{name: "MTU of an overlay below 576 (IPv4) or 1280 (IPv6)", calico: "set",
		manx: "that of the host less the headers; a notice",
		why:  "The kernel would remove the protocol from the device.", shown: "dataplane TestMTUFollowsTheUnderlay"},
}

var registration = []difference{
	{name: "readiness", calico: "in the first 30 s all sessions must be up, later any of them",
		manx:  "after a start each session has 15 s to come up and then to send its routes; later losses do not count",
		why:   "Peers that are down are no fault of the node.",
		shown: "bgp/speaker TestReadyDoesNotWaitForPeersThatAreDown"},
	{name: "`birdV4` and `birdV6` of CalicoNodeStatus",
		calico: "two processes; local times, without the day while it is today", manx: "one process; full times in UTC",
		why: "There is one process, and readers are elsewhere.", shown: "datastore/nodestatus TestReport"},
	{name: "`CALICO_NETWORKING_BACKEND` with an unknown word", calico: "counts as `bird`",
		manx: "`manxd` does not start, and says why", why: "A mistyped word would turn on BGP.",
		shown: "cmd/manxd TestNetworkingFromTheEnvironment"},
	{name: "interfaces of another CNI plugin with `CALICO_NETWORKING_BACKEND=none`",
		calico: "Felix makes the routes to them unless `routeSyncDisabled` is set, and sets their " +
			"sysctls (`proxy_arp`, `rp_filter` and others)",
		manx:  "left as they are; those of the plugin `calico` (`cali*`) are as with BGP",
		why:   "They belong to the other plugin, whose routes and settings work without Manx.",
		shown: "integration/e2e/node TestPolicyBesideAnotherNetwork"},
	{name: "default pools with `CALICO_NETWORKING_BACKEND=none`", calico: "made unless `NO_DEFAULT_POOLS` is set",
		manx: "not made", why: "Another program assigns addresses, and a pool would have its packets translated.",
		shown: "integration/e2e/node TestPolicyBesideAnotherNetwork"},
	{name: "`IP=none`", calico: "keeps the address that the Node has", manx: "clears it",
		why: "The node shall have none.", shown: "datastore/node TestDecideAddress"},
	{name: "`IP6` without prefix length", calico: "/128", manx: "the length that the host has", why: "As for IPv4.",
		shown: "datastore/node TestDecideAddress"},
	{name: "address conflict, or detection that fails, while running",
		calico: "the address is cleared and the process ends", manx: "the address stays, with a warning",
		why: "An address that carries traffic stays.", shown: "datastore/node TestMonitor"},
	{name: "`calicoVersion` of ClusterInformation", calico: "written by each node", manx: "not written",
		why: "In a mixed cluster it would change all the time, and `calicoctl` refuses clusters of another version " +
			"than its own.", shown: "datastore/node TestNewCluster"},
	{name: "CHECK of the CNI plugin", calico: "prints OK", manx: "checks interface, addresses, routes and endpoint",
		why: "CHECK exists to find such faults.", shown: "cmd/manx-cni-direct TestCheckFindsWhatIsGone"},
}
