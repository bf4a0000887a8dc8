package packets

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/packet"
)

// TestDiscoveryThroughAHostEndpoint: policies of a host endpoint that are evaluated before routing let the discovery of
// neighbours pass, and nothing that looks like it and is forwarded to a pod.
func TestDiscoveryThroughAHostEndpoint(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"v": "n1"})
	v, outside, victim := p.ports["v"], p.outside()[1], p.Pods["v"].IP6()
	node := packet.Open(t, p.N1.Namespace, "eth0")
	send := func(kind, hops uint8, body string) {
		p.outsider.Send(t, packet.Ethernet(p.outsider.MAC, node.MAC, icmp6(t, kind, outside, victim, hops, body)))
	}
	eventually(t, func() error {
		send(128, 64, "0000before")
		if len(v.Captured("before")) == 0 {
			return fmt.Errorf("the pod is not reached")
		}
		return nil
	})
	must(t, p.N1.Apply(`
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: n1-eth0, labels: {host: n1}}
spec: {node: n1, interfaceName: eth0, profiles: [projectcalico-default-allow]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: early}
spec:
  selector: host == 'n1'
  preDNAT: true
  applyOnForward: true
  ingress: [{action: Deny, protocol: ICMPv6}, {action: Allow}]
`))
	eventually(t, func() error {
		out, err := p.N1.Run("nft", "list", "map", "inet", "manx", "host-pre-dnat")
		if err == nil && !strings.Contains(out, `"eth0"`) {
			err = fmt.Errorf("the policy is not in force: %s", out)
		}
		return err
	})
	for _, kind := range []uint8{130, 131, 132, 133, 134, 135, 136, 143} {
		for _, hops := range []uint8{2, 64, 255} {
			send(kind, hops, fmt.Sprintf("through %d %d", kind, hops))
		}
	}
	from, to := p.outside()[0], p.Pods["v"].IP4()
	p.outsider.Send(t, packet.Frame(t, p.outsider.MAC, node.MAC, packet.IP(from, to, 17, 64),
		datagram(7)("the last")...))
	arrives(t, v, "UDP", "the last")
	for _, got := range v.Captured("through") {
		t.Errorf("arrives: %v", got.Data())
	}
	_, err := p.N1.Run("ip", "-6", "neigh", "flush", "all")
	must(t, err)
	_, err = p.N1.Run("ping", "-6", "-c1", "-W9", outside.String()) // neighbours are still found
	must(t, err)
}
