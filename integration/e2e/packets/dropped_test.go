package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/packet"
)

// dropping is a kind of packet that is dropped.
type dropping struct {
	reason string
	send   func(family, n int) // 0 for IPv4, 1 for IPv6
	only   string              // the family that has it; empty: both
}

// burst is how many packets are sent of each kind: the packets that pods send by themselves are fewer.
const burst = 50

// TestDroppedPackets: each reason counts the packets that are dropped for it, in both families. Packets that pass count
// nowhere. The counters go on when rules change and while manxd is away.
func TestDroppedPackets(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"a": "n1", "b": "n1", "jailed": "n1", "c": "n2"})
	strange := p.prepareDrops(t)
	a, b := p.ports["a"], p.ports["b"]
	from, to := p.addresses("a"), p.addresses("b")
	raw := func(port *packet.Port, from, to netip.Addr, protocol layers.IPProtocol,
		above ...gopacket.SerializableLayer) {
		port.Send(t, packet.Frame(t, port.MAC, hostMAC, packet.IP(from, to, protocol, 64), above...))
	}
	udp := func(port *packet.Port, from, to netip.Addr, n int) {
		raw(port, from, to, layers.IPProtocolUDP, packet.UDP(uint16(20000+n), 7, "dropped")...)
	}
	jailed := func(f, n int) { udp(p.ports["jailed"], p.addresses("jailed")[f], to[f], n) }
	settings := func(labels ...string) func(lab.Resource) {
		return func(r lab.Resource) {
			for _, l := range []string{"denied", "ended", "limited"} {
				r.Label(l, strconv.FormatBool(slices.Contains(labels, l)))
			}
			spec := r["spec"].(map[string]any)
			delete(spec, "qosControls")
			if slices.Contains(labels, "rate") {
				spec["qosControls"] = map[string]any{"egressPacketRate": 1, "egressPacketBurst": 1}
			}
			if slices.Contains(labels, "connections") {
				spec["qosControls"] = map[string]any{"egressMaxConnections": 1}
			}
			if slices.Contains(labels, "nobody") {
				spec["profiles"] = []string{}
			}
			if slices.Contains(labels, "missing") {
				spec["profiles"] = []string{"missing"}
			}
		}
	}
	as := func(what string) { must(t, p.Pods["jailed"].EditEndpoint(settings(what))) }

	for _, d := range []dropping{
		{reason: "source_check", send: func(f, n int) { udp(a, p.addresses("c")[f], to[f], n) }},
		{reason: "borrowed_address", send: func(f, n int) {
			p.outsider.Send(t, packet.Frame(t, p.outsider.MAC, p.uplink.MAC, packet.IP(from[f], to[f],
				layers.IPProtocolUDP, 64), packet.UDP(7, 7, "dropped")...))
		}},
		{reason: "loopback", only: "IPv4", send: func(_, n int) {
			udp(a, from[0], netip.MustParseAddr("127.0.0.1"), n)
		}},
		{reason: "tunnel", send: func(f, _ int) {
			raw(a, from[f], to[f], layers.IPProtocolUDP, packet.UDP(4000, 4789, "dropped")...)
		}},
		{reason: "invalid_connection", send: func(f, _ int) {
			raw(a, from[f], to[f], layers.IPProtocolTCP, &layers.TCP{SrcPort: 9, DstPort: 9, SYN: true, FIN: true})
		}},
		{reason: "icmp_error", send: func(f, _ int) {
			about := packet.IP(to[f], p.addresses("c")[f], layers.IPProtocolUDP, 63)
			quote := packet.Bytes(t, about, append([]gopacket.SerializableLayer{about.(gopacket.SerializableLayer)},
				packet.UDP(7300, 7, "quoted")...)...)
			raw(b, to[f], p.addresses("c")[f], layers.IPProtocolUDP, packet.UDP(7300, 7, "quoted")...)
			x := icmpErrors(to[f])[1]
			raw(a, from[f], to[f], x.protocol, append(x.header, gopacket.Payload(quote))...)
		}},
		{reason: "unserved_service", send: func(f, n int) { udp(a, from[f], unserved[f], n) }},
		{reason: "endpoint_to_host", send: func(f, n int) {
			udp(a, from[f], []netip.Addr{p.N1.IP4, p.N1.IP6}[f], n)
		}},
		{reason: "unknown_endpoint", send: func(f, n int) { udp(strange, strangers[f], to[f], n) }},
		{reason: "fragment_limit", send: func(f, n int) {
			fragments := p.newFragments(t, "a", from[f:f+1], to[f:f+1])
			fragments.next = uint32(n * 100)
			for range 100 {
				fragments.send(t)
			}
		}},
		{reason: "neighbour_limit", only: "IPv6", send: func(_, n int) {
			_ = a.TrySend(solicitation(t, a, numbered("fe80::1:0", n)))
			_ = a.TrySend(solicitation(t, a, numbered("fe80::2:0", n)))
		}},
		{reason: "policy", send: jailed},
		{reason: "end_of_tier", send: jailed},
		{reason: "packet_rate", send: jailed},
		{reason: "connection_limit", send: jailed},
		{reason: "no_policy", send: jailed},
		{reason: "policy_unusable", send: jailed},
	} {
		switch d.reason {
		case "policy":
			as("denied")
		case "end_of_tier":
			as("ended")
		case "packet_rate":
			as("rate")
		case "connection_limit":
			as("connections")
		case "no_policy":
			as("nobody")
		case "policy_unusable":
			as("missing")
		}
		for f, family := range []string{"IPv4", "IPv6"} {
			if d.only == "" || d.only == family {
				p.countsDrops(t, d.reason, family, func(n int) { d.send(f, n) })
			}
		}
	}
	t.Run("packets that pass", func(t *testing.T) { p.countNothing(t, func(f, n int) { udp(a, from[f], to[f], n) }) })
	t.Run("manxd is away", func(t *testing.T) {
		before := p.dropped(t)
		must(t, p.N1.Manxd().Stop(world.Limit))
		// A packet may find a chain before its content; here the chain stays empty.
		_, err := p.N1.Run("nft", "flush chain inet manx from-workload")
		must(t, err)
		for n := range burst {
			udp(a, from[0], to[0], 1000+n)
		}
		must(t, p.N1.StartManxd(append(p.N1.EmbedDatastore(), world.PairFlags...)...))
		must(t, p.N1.Ready(world.Limit))
		eventually(t, func() error {
			after := p.dropped(t)
			if after["undecided"] < before["undecided"]+burst {
				return fmt.Errorf("undecided are %d, want %d more than %d", after["undecided"], burst,
					before["undecided"])
			}
			for reason, n := range before {
				if after[reason] < n {
					return fmt.Errorf("%s counts %d, before it counted %d", reason, after[reason], n)
				}
			}
			return nil
		})
	})
}

// unserved are addresses of services, and strangers those behind an interface that is no endpoint's.
var (
	unserved  = []netip.Addr{netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd96::9")}
	strangers = []netip.Addr{netip.MustParseAddr("10.65.99.9"), netip.MustParseAddr("fd65:9::9")}
)

// prepareDrops makes what packets need to be dropped, and returns the port of an interface without an endpoint.
func (p *pair) prepareDrops(t *testing.T) *packet.Port {
	t.Helper()
	must(t, p.N1.Apply(`
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: node.n1}
spec: {defaultEndpointToHostAction: Drop, removeExternalRoutes: false} # a route without a workload
---
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {serviceClusterIPs: [{cidr: 10.96.0.0/16}, {cidr: "fd96::/112"}]}
---
`+world.GlobalPolicy("denied", "selector: denied == 'true', types: [Egress], egress: [{action: Deny}]")+"\n---\n"+
		world.GlobalPolicy("ended", "selector: ended == 'true', types: [Egress], egress: []")))
	_, err := p.N1.Run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter; "+
		"echo 0 >/proc/sys/net/ipv4/conf/eth0/rp_filter")
	must(t, err)
	ns := p.Pods["a"].Namespace + "s"
	must(t, namespace.Add(ns))
	t.Cleanup(func() { must(t, namespace.Remove(ns)) })
	must(t, namespace.Batch(p.N1.Namespace, fmt.Sprintf("link add calistrange address %s up type veth peer name eth0 "+
		"netns %s", hostMAC, ns)))
	must(t, namespace.Batch(ns, "link set eth0 up"))
	for i, s := range strangers {
		must(t, namespace.Batch(p.N1.Namespace, fmt.Sprintf("route add %s dev calistrange", s),
			fmt.Sprintf("route replace default via %s", p.outside()[i])))
	}
	return packet.Open(t, ns, "eth0")
}

// dropped reads the packets that n1 has dropped, by reason.
func (p *pair) dropped(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	page, err := p.N1.Get("/metrics")
	must(t, err)
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, `manx_dropped_packets_total{reason="`); ok {
			reason, value, _ := strings.Cut(rest, `"} `)
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			must(t, err)
			counts[reason] = int(n)
		}
	}
	if len(counts) == 0 {
		t.Fatal("no metric has the packets that were dropped")
	}
	return counts
}

// countsDrops sends a burst of packets until all count for the reason, and for no other.
func (p *pair) countsDrops(t *testing.T, reason, family string, send func(n int)) {
	t.Helper()
	least := burst
	if strings.HasSuffix(reason, "_rate") || strings.HasSuffix(reason, "_limit") {
		least = burst / 2 // some are within the limit
	}
	round := 0
	eventually(t, func() error {
		before := p.dropped(t)
		for n := range burst {
			send(round*burst + n)
		}
		round++
		var after map[string]int
		err := lab.Eventually(world.Limit/20, func() error { // the last ones are on their way
			if after = p.dropped(t); after[reason] < before[reason]+least {
				return fmt.Errorf("%s, %s: %d of %d packets are counted", reason, family, after[reason]-before[reason],
					least)
			}
			return nil
		})
		for other, n := range after {
			if other != reason && n-before[other] >= burst/2 {
				err = errors.Join(err, fmt.Errorf("%s, %s: %d are counted for %s", reason, family, n-before[other],
					other))
			}
		}
		return err
	})
}

// countNothing sends packets that arrive, and fails if they are counted.
func (p *pair) countNothing(t *testing.T, send func(family, n int)) {
	p.ports["b"].Forget()
	before := p.dropped(t)
	for n := range 10 * burst {
		send(n%2, 5000+n)
	}
	eventually(t, func() error {
		if n := len(p.ports["b"].Captured("dropped")); n < 10*burst {
			return fmt.Errorf("%d of %d packets arrive", n, 10*burst)
		}
		return nil
	})
	for reason, n := range p.dropped(t) {
		if n-before[reason] >= burst {
			t.Errorf("%d packets count for %s", n-before[reason], reason)
		}
	}
}
