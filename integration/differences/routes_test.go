package differences

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/bgp"
)

const (
	pool    = `pool p {"cidr":"10.1.0.0/16"}`
	block   = "block a 10.1.0.0/26 confirmed"
	outside = `peer tor {"peerIP":"10.9.9.9","asNumber":65100}`
)

var announced = []difference{
	{name: "route of the host's kernel with a gateway, towards internal peers", calico: "the gateway is the next hop",
		manx: "the node is the next hop", why: "The peers have a way to the node, and not always to the gateway.",
		shown: "integration/kubernetes/datastore TestTwoNodes"},
	{name: "routes of the host's kernel that a router advertisement has made", calico: "as other routes",
		manx: "never announced", why: "Whoever is on the link could announce routes to the whole network.",
		shown: "daemon/connected TestRoutesOfOthers"},
	{name: "more than 10,000 routes of other programs in the host's kernel", calico: "as fewer",
		manx:  "none is announced, and the log says so",
		why:   "They are the routes of a router, and announcing them would be a mistake.",
		shown: "daemon/connected TestRoutesOfOthers"},
	{name: "block that is being released", calico: "announced as long as it lies in a pool",
		manx: "withdrawn at once; its blackhole stays",
		why:  "A route that does not work should not be announced (RFC 4271).",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, pool, "block a 10.1.0.0/26 pendingDeletion", outside)
			if o := origin(d, "10.1.0.0/26"); o == nil || !o.Withheld || !o.Blackhole {
				t.Errorf("%+v", o)
			}
		}},
	{name: "workload whose route has metric 0", calico: "its address is announced beside its block",
		manx: "hidden in its block: workloads have the ordinary priority",
		why:  "Only a workload that moves should be announced alone.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, pool, block,
				`wep w {"node":"a","interfaceName":"cali1","ipNetworks":["10.1.0.5/32"]}`, outside)
			if sends(t, d, onlySession(t, d), "10.1.0.5/32") || !sends(t, d, onlySession(t, d), "10.1.0.0/26") {
				t.Errorf("%+v", d.Originated)
			}
		}},
	{name: "learned routes inside an own block", calico: "passed on with any priority below the ordinary one",
		manx: "passed on with the priorities that FelixConfiguration and import filters set",
		why:  "GoBGP's policies compare LOCAL_PREF for equality only.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, pool, block, outside)
			for priority, want := range map[uint32]bool{512: true, 511: false, 1024: false} {
				c := bgp.Candidate{Prefix: netip.MustParsePrefix("10.1.0.5/32"), Source: bgp.SourceInternal,
					LocalPref: bgp.MaxPriority - priority}
				if got := d.Export(onlySession(t, d), c).Accept; got != want {
					t.Errorf("priority %d: %t", priority, got)
				}
			}
		}},
	{name: "tunnel address that is borrowed from a block of another node",
		calico: "announced to external peers; to internal ones only if BIRD owns the routes of IPIP and it is " +
			"that of `tunl0`", manx: "announced to all", why: "Packets to it need a route.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", `node a {"bgp":{"ipv4Address":"10.0.0.1/24"},"ipv4VXLANTunnelAddr":"10.1.9.1"}`, b,
				pool,
				block, outside)
			for _, s := range d.Sessions {
				if !sends(t, d, s, "10.1.9.1/32") {
					t.Errorf("%s is not sent it", s.Address)
				}
			}
		}},
	{name: "MED of a learned route towards external peers", calico: "none", manx: "100",
		why: "The switch then prefers the owner of a block; without it nodes and switch could send packets " +
			"in a circle.",
		shown: "bgp/speaker TestPolicyDoesWhatTheRulesSay"},
	{name: "route whose AS path holds the AS of the peer", calico: "sent; the receiver decides",
		manx:  "not sent, so `numAllowedLocalASNumbers` at the peer has no effect on it",
		why:   "GoBGP looks on the sender's side.",
		shown: "bgp/speaker TestPathWithTheASOfThePeerIsNotSent"},
	{name: "routes of a client towards a reflector of the same cluster ID",
		calico: "sent with ORIGINATOR_ID and CLUSTER_LIST", manx: "sent without the two",
		why:   "GoBGP adds them towards clients only; the other reflector has the route from the client itself.",
		shown: "bgp/speaker TestReflectedToANonClient"},
	{name: "address of a workload that only filters let out, while another node announces it with an elevated priority",
		calico: "the other node's route is the best one", why: "LOCAL_PREF comes first (RFC 4271 section 9.1.1).",
		shown: "bgp/speaker TestElevatedRouteForOwnAddressIsTheBest"},
}

var filters = []difference{
	{name: "route that a filter accepts", calico: "skips all later checks, `disableBGPExport` included",
		why: "Filters are the last word.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, `pool p {"cidr":"10.1.0.0/16","disableBGPExport":true}`, block,
				`filter all {"exportV4":[{"action":"Accept"}]}`,
				`peer tor {"peerIP":"10.9.9.9","asNumber":65100,"filters":["all"]}`)
			if !sends(t, d, onlySession(t, d), "10.1.0.0/26") {
				t.Errorf("%+v", d.Originated)
			}
		}},
	{name: "communities of `prefixAdvertisements` as a condition for own routes",
		calico: "never hold: routes get them after the filters", why: "A filter means the same on nodes of both kinds.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, pool, block,
				`config default {"nodeToNodeMeshEnabled":false,"prefixAdvertisements":[{"cidr":"10.1.0.0/16","communities":["65000:1"]}]}`,
				`filter f {"exportV4":[{"action":"Reject","communities":{"values":["65000:1"]}}]}`,
				`peer tor {"peerIP":"10.9.9.9","asNumber":65100,"filters":["f"]}`)
			if !sends(t, d, onlySession(t, d), "10.1.0.0/26") {
				t.Error("the condition held")
			}
		}},
	{name: "communities of own routes that a filter accepts", calico: "none", manx: "those of `prefixAdvertisements`",
		why: "The filter says whether a route is sent, not that it is another route.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, pool, block,
				`config default {"nodeToNodeMeshEnabled":false,"prefixAdvertisements":[{"cidr":"10.1.0.0/16","communities":["65000:1"]}]}`,
				`filter f {"exportV4":[{"action":"Accept"}]}`,
				`peer tor {"peerIP":"10.9.9.9","asNumber":65100,"filters":["f"]}`)
			if v := d.Export(onlySession(t, d), origin(d, "10.1.0.0/26").Candidate()); !v.Accept ||
				!slices.Equal(v.Route.Communities, []uint32{65000<<16 | 1}) {
				t.Errorf("%+v", v)
			}
		}},
	{name: "`prefixLength` with `Equal` or `NotEqual`", calico: "BIRD fails on the whole configuration",
		manx: "refused by `manxctl`; one that another program wrote is skipped, and a notice says so",
		why:  "One bad rule must not block the others.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off,
				`filter f {"exportV4":[{"action":"Reject","cidr":"10.1.0.0/16","matchOperator":"Equal","prefixLength":{"min":20}}]}`, `peer tor {"peerIP":"10.9.9.9","asNumber":65100,"filters":["f"]}`)
			hasText(t, d, "prefixLength goes with matchOperator In and NotIn")
			if len(d.Filters) != 1 || len(d.Filters[0].ExportV4) != 0 {
				t.Errorf("%+v", d.Filters)
			}
		}},
	{name: "BGPFilter that does not exist", calico: "ignored", manx: "ignored, and a notice says so",
		why: "Somebody may have misspelt it.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, off, `peer tor {"peerIP":"10.9.9.9","asNumber":65100,"filters":["none"]}`)
			hasText(t, d, "BGPFilter/none does not exist")
			hasSessions(t, d, "10.9.9.9:179 global 64512-65100 active BGPPeer/tor")
		}},
	{name: "`prependASPath` towards another AS", calico: "the path is the list and the own AS before it",
		manx:  "the own AS appears once more behind the list, unless the list ends with it",
		why:   "GoBGP evaluates the export policy after it has put the own AS into the path.",
		shown: "bgp/speaker TestFiltersWithBIRD"},
	{name: "`interface` of a learned route", calico: "always that of its next hop",
		manx:  "none for some milliseconds after a next hop is first seen; changes are noticed within five seconds",
		why:   "A lookup in the kernel runs beside the evaluation of the policy.",
		shown: "bgp/speaker TestPolicyDoesWhatTheRulesSay"},
	{name: "learned route that changes so that an export filter rejects it, on a session with ADD-PATH",
		calico: "withdrawn", manx: "withdrawn if it is among the best paths; else with the next change of the " +
			"filters or of the best path", why: "GoBGP loses the withdrawal.",
		shown: "bgp/speaker TestFiltersWithBIRD"},
	{name: "route with the community GRACEFUL_SHUTDOWN from another AS", calico: "the community has no effect",
		manx: "LOCAL_PREF 1", why: "RFC 8326 section 4.2.", shown: "bgp/speaker TestGracefulShutdownFromAnotherAS"},
}

const web = `service web {"metadata":{"namespace":"default"},"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.7","externalTrafficPolicy":"Local","ipFamilies":["IPv4","IPv6"],"clusterIPs":["10.96.0.7","fd96::7"]}}`

func slice(name, node string) string {
	return `slice ` + name +
		` {"metadata":{"labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","endpoints":[{"addresses":["10.1.0.5"],"nodeName":"` + node + `"}]}`
}

var services = []difference{
	{name: "addresses of services in the kernel of the node that announces them",
		calico: "a blackhole for single addresses outside the ranges", manx: "never a route",
		why: "The blackhole cuts the host itself off from the service.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, `config default {"serviceClusterIPs":[{"cidr":"10.97.0.0/16"}]}`, web,
				slice("s", "a"))
			if o := origin(d, "10.96.0.7/32"); o == nil || o.Blackhole {
				t.Errorf("%+v", o)
			}
		}},
	{name: "one of several EndpointSlices of a service goes", calico: "may keep or lose the route",
		manx: "the remaining ones decide", why: "No order of events may change the outcome.",
		check: func(t *testing.T) {
			config := `config default {"serviceClusterIPs":[{"cidr":"10.96.0.0/16"}]}`
			if d := desiredOn(t, "a", a, b, config, web, slice("s1", "a"), slice("s2", "b")); origin(d,
				"10.96.0.7/32") == nil {
				t.Error("not announced with an endpoint here")
			}
			if d := desiredOn(t, "a", a, b, config, web, slice("s2", "b")); origin(d, "10.96.0.7/32") != nil {
				t.Error("announced without one")
			}
		}},
	{name: "families of a service with `externalTrafficPolicy: Local`",
		calico: "announced in all as soon as an endpoint of any of them is on the node",
		why:    "Which addresses are announced should not depend on the kind of node.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", `node a {"bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64"}}`,
				`config default {"serviceClusterIPs":[{"cidr":"10.96.0.0/16"}]}`, web, slice("s", "a"))
			if origin(d, "fd96::7/128") == nil {
				t.Errorf("%+v", d.Originated)
			}
		}},
	{name: "cluster IPs of a service with `externalTrafficPolicy: Local`",
		calico: "announced whenever any range of cluster IPs is configured, inside or outside it",
		why:    "Which addresses are announced should not depend on the kind of node.",
		check: func(t *testing.T) {
			if d := desiredOn(t, "a", a, `config default {"serviceClusterIPs":[{"cidr":"10.97.0.0/16"}]}`, web,
				slice("s", "a")); origin(d, "10.96.0.7/32") == nil {
				t.Errorf("%+v", d.Originated)
			}
		}},
	{name: "routes of other nodes inside announced ranges",
		calico: "stay out of the kernel, also on nodes that are excluded from load balancers",
		why:    "Each host reaches services by itself.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a",
				`node a {"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"true"}},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24"}}}`, `config default {"serviceClusterIPs":[{"cidr":"10.96.0.0/16"}]}`)
			if len(d.NoInstall) != 1 || len(d.Originated) != 0 {
				t.Errorf("%v %+v", d.NoInstall, d.Originated)
			}
		}},
	{name: "single services with etcd as the datastore", calico: "read from Kubernetes, if `KUBECONFIG` leads there",
		manx: "unknown: only ranges are announced, and a notice says so", why: "Manx reads one datastore.",
		check: func(t *testing.T) {
			d := desiredOn(t, "a", a, `config default {"serviceClusterIPs":[{"cidr":"10.96.0.0/16"}]}`)
			hasText(t, d, "no Service is known here")
			if origin(d, "10.96.0.0/16") == nil {
				t.Errorf("%+v", d.Originated)
			}
		}},
	{name: "`CALICO_ADVERTISE_CLUSTER_IPS`", calico: "one CIDR", manx: "one or more, separated by commas",
		why: "A cluster with two families has two.",
		check: func(t *testing.T) {
			d := bgp.Compute(bgp.Input{Reader: world(t, a), Node: "a", ClusterIPs: "10.96.0.0/16,fd96::/112"})
			if origin(d, "10.96.0.0/16") == nil || origin(d, "fd96::/112") == nil {
				t.Errorf("%+v", d.Originated)
			}
		}},
}
