package policy

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// kubeProxyIPTables is the output of kube-proxy in iptables mode for a service 10.96.0.10:80 with one endpoint, in its
// chains and with its marks.
const kubeProxyIPTables = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p udp -m udp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -s BACKEND/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p udp -m udp -j DNAT --to-destination BACKEND:7001
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`

// kubeProxyNFTables is the same in nftables mode.
const kubeProxyNFTables = `
table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.10 . udp . 80 : goto service-A }
	}
	chain filter-prerouting { type filter hook prerouting priority dstnat - 10; policy accept; }
	chain filter-forward { type filter hook forward priority -110; policy accept; ct state new jump cluster-ips-check; }
	chain filter-output { type filter hook output priority -110; policy accept; }
	chain filter-output-post-dnat { type filter hook output priority -90; policy accept; ct state new jump cluster-ips-check; }
	chain cluster-ips-check { ip daddr 10.96.0.0/16 reject; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
	chain nat-output { type nat hook output priority -100; policy accept; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; jump masquerading; }
	chain masquerading {
		mark and 0x4000 == 0 return
		mark set mark xor 0x4000
		masquerade fully-random
	}
	chain mark-for-masquerade { mark set mark or 0x4000; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain service-A { ip saddr != 10.244.0.0/16 jump mark-for-masquerade; goto endpoint-A; }
	chain endpoint-A { ip saddr BACKEND jump mark-for-masquerade; meta l4proto udp dnat to BACKEND:7001; }
}
`

// dockerRules are Docker's: forwarded packets are dropped unless they are a container's.
const dockerRules = `*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
`

// besidePolicy allows only one pod to reach the backend of the service.
const besidePolicy = `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: beside}
spec: {selector: role == 'backend', types: [Ingress], ingress: [
  {action: Allow, protocol: UDP, source: {selector: role == 'friend'}, destination: {ports: [7001]}},
  {action: Allow, protocol: UDP, source: {nets: [10.200.0.0/16]}, destination: {ports: [7001]}}]}
`

// TestBesideOthers loads the rules of kube-proxy, in both of its modes, of NodeLocal DNSCache and of Docker beside
// Manx's.
func TestBesideOthers(t *testing.T) {
	if _, missing := lab.Require("iptables-restore"); missing != nil {
		t.Skip(missing)
	}
	c := newPolicyLab(t, "b", map[string]string{"friend": "n2", "stranger": "n2", "backend": "n1"})
	n2, friend, stranger, backend := c.N2, c.Pods["friend"], c.Pods["stranger"], c.Pods["backend"]
	echo(t, c.N1.Namespace, 7001)
	echo(t, backend.Namespace, 7001)
	list := documents(t, besidePolicy)
	for _, name := range []string{"friend", "stranger", "backend"} {
		list = append(list, c.labelled(t, name, map[string]string{"role": name}))
	}
	c.enforced(t, c.change(t, list...))
	world.IP(t, n2, "route add default via "+c.ToR1.Address(n2).String())
	service, outside := netip.MustParseAddrPort("10.96.0.10:80"), at(c.N1.IP4, 7001)
	load := func(program, rules string, args ...string) {
		t.Helper()
		path := filepath.Join(n2.Dir, "rules")
		must(t, os.WriteFile(path, []byte(strings.ReplaceAll(rules, "BACKEND", backend.IP4().String())), 0o644))
		_, err := n2.Run(program, append(args, path)...)
		must(t, err)
	}
	foreign := func() string {
		out, err := n2.Run("nft", "-s", "list", "ruleset")
		must(t, err)
		ours, err := n2.Run("nft", "-s", "list", "table", "inet", "manx")
		must(t, err)
		return strings.Replace(out, ours, "", 1)
	}
	works := func(t *testing.T) {
		t.Helper()
		for _, x := range []struct {
			name, ns, from string
			to             netip.AddrPort
		}{
			{"a pod to the service", friend.Namespace, friend.IP4().String(), service},
			{"the host to the service", n2.Namespace, n2.IP4.String(), service},
			{"a pod to what is outside, translated", stranger.Namespace, n2.IP4.String(), outside},
		} {
			reply, err := requestEcho(x.ns, x.to, 5*time.Second)
			if err != nil || !strings.HasPrefix(reply, "hello from "+x.from+":") {
				t.Errorf("%s: %q, %v; want an answer to %s", x.name, reply, err, x.from)
			}
		}
		checkProbes(t, []probe{{"a pod that policy does not let reach the pod behind the service", stranger.Namespace,
			service,
			false}})
	}
	untouched := func(t *testing.T, before string) {
		t.Helper()
		c.enforced(t, c.change(t, asDeleted(documents(t, besidePolicy))...))
		checkProbes(t, []probe{{"any pod, without policy", stranger.Namespace, service, true}})
		c.enforced(t, c.change(t, documents(t, besidePolicy)...))
		checkProbes(t, []probe{{"with policy again", stranger.Namespace, service, false}})
		if now := foreign(); now != before {
			t.Errorf("the rules of others changed:\n%s\nwere\n%s", now, before)
		}
	}
	flow := []string{friend.IP4().String(), backend.IP4().String(), "udp/7001"}
	ok := t.Run("kube-proxy in iptables mode", func(t *testing.T) {
		load("iptables-restore", kubeProxyIPTables, "--noflush")
		works(t)
		reported(t, n2, flow)
		untouched(t, foreign())
	})
	ok = ok && t.Run("NodeLocal DNSCache beside it", func(t *testing.T) { c.testNodeLocalDNS(t, "friend", load) })
	ok = ok && t.Run("Docker beside it", func(t *testing.T) {
		load("iptables-restore", dockerRules, "--noflush")
		checkProbes(t, []probe{{"Docker drops what is forwarded, although Manx accepts it", friend.Namespace, service,
			false}})
		reported(t, n2, flow, "table ip filter, chain FORWARD")
		_, err := n2.Run("sh", "-c", remedy(t, "Docker"))
		must(t, err)
		works(t)
		reported(t, n2, flow)
		untouched(t, foreign())
	})
	ok = ok && t.Run("kube-proxy in nftables mode", func(t *testing.T) {
		_, err := n2.Run("sh", "-c", "nft delete table ip nat && nft delete table ip filter")
		must(t, err)
		load("nft", kubeProxyNFTables, "-f")
		works(t)
		reported(t, n2, flow)
		untouched(t, foreign())
	})
	if ok {
		hostFirewalls(t, n2, flow, func(t *testing.T, pass bool) {
			t.Helper()
			checkProbes(t, []probe{{"a pod to a pod of another node", friend.Namespace, at(backend.IP4(), 7001), pass}})
		})
	}
}
