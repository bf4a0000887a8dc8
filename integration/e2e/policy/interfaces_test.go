package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testHostInterfaces adds and removes interfaces and addresses that host endpoints name.
func (c *cluster) testHostInterfaces(t *testing.T) {
	n, tor := c.N2, c.ToR1.Namespace
	const port = 7901
	echo(t, n.Namespace, port)
	plug := func() {
		t.Helper()
		world.IP(t, n, fmt.Sprintf("link add eth5 netns %s type veth peer name p5 netns %s", n.Namespace, tor))
		world.IP(t, n, fmt.Sprintf("-n %s link set p5 up", tor))
		world.IP(t, n, fmt.Sprintf("-n %s addr add 10.77.0.1/24 dev p5", tor))
		world.IP(t, n, fmt.Sprintf("-n %s addr add fd77::1/64 dev p5 nodad", tor))
		world.IP(t, n, fmt.Sprintf("-n %s link set eth5 up", n.Namespace))
	}
	unplug := func() { t.Helper(); world.IP(t, n, fmt.Sprintf("-n %s link del eth5", n.Namespace)) }
	address := func(verb string) {
		t.Helper()
		world.IP(t, n, fmt.Sprintf("-n %s addr %s 10.77.0.2/24 dev eth5", n.Namespace, verb))
		if verb == "add" {
			world.IP(t, n, fmt.Sprintf("-n %s addr add fd77::2/64 dev eth5 nodad", n.Namespace))
		}
	}
	first, other := netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd77::2")
	is := func(want string) {
		t.Helper()
		eventually(t, func() error {
			for _, to := range both(first, other) {
				if got := (attempt{ns: tor, network: "udp", to: at(to, port)}).try(0); got != want {
					return fmt.Errorf("%s is %s, want %s", to, got, want)
				}
			}
			return nil
		})
		tryAll(t, []attempt{{"another interface of the host", c.N1.Namespace, "udp", at(n.IP4, port), answered}})
	}
	host := func(spec string) []entry {
		return documents(t, "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: n2-eth5}\n"+
			"spec: {node: n2, "+spec+"}\n")
	}
	t.Run("by its name", func(t *testing.T) {
		plug()
		defer unplug()
		address("add")
		is(answered)
		c.temporary(t, host("interfaceName: eth5")...)
		is(lost)
		unplug()
		plug()
		address("add")
		is(lost)
	})
	t.Run("by an address that comes later", func(t *testing.T) {
		c.temporary(t, host("expectedIPs: [10.77.0.2]")...)
		plug()
		defer unplug()
		world.IP(t, n, fmt.Sprintf("-n %s addr add fd77::2/64 dev eth5 nodad", n.Namespace))
		eventually(t, func() error {
			if got := (attempt{ns: tor, network: "udp", to: at(other, port)}).try(0); got != answered {
				return fmt.Errorf("without its address it is %s", got)
			}
			return nil
		})
		world.IP(t, n, fmt.Sprintf("-n %s addr add 10.77.0.2/24 dev eth5", n.Namespace))
		is(lost) // in both families: the policy is about the interface
		address("del")
		eventually(t, func() error {
			if got := (attempt{ns: tor, network: "udp", to: at(other, port)}).try(0); got != answered {
				return fmt.Errorf("when its address is gone it is %s", got)
			}
			return nil
		})
	})
	t.Run("by no name", func(t *testing.T) {
		c.temporary(t, host(`interfaceName: "*", profiles: [projectcalico-default-allow]`)...)
		c.temporary(t, documents(t, world.GlobalPolicy("only-here",
			"selector: all(), types: [Ingress], ingress: [{action: Deny, "+
				"protocol: UDP, destination: {nets: [10.77.0.0/24]}}, "+
				"{action: Deny, protocol: UDP, destination: {nets: "+
				"[\"fd77::/64\"]}}, {action: Allow}]"))...)
		plug()
		defer unplug()
		address("add")
		is(lost)
	})
}
