package node

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/namespace"
)

func TestSystemHost(t *testing.T) {
	in := namespace.New(t, "manxnode")
	err := namespace.Inside(in, func() {
		for _, command := range []string{"link add eth7 type veth peer name eth8", "link set eth7 up",
			"link set eth8 up",
			"addr add 10.77.0.1/24 dev eth7", "addr add 10.77.0.2/24 dev eth7", "addr add 10.78.0.1/30 dev eth8",
			"addr add fd77::1/64 dev eth7 nodad", "route add 198.51.100.0/24 via 10.78.0.2"} {
			if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", command, err, out)
				return
			}
		}
		host := System{}
		for _, tc := range []struct {
			method string
			family Family
			want   string // the start of an error if none is found
		}{
			{"interface=eth7", IPv4, "10.77.0.1/24"},
			{"cidr=10.78.0.0/16", IPv4, "10.78.0.1/30"},
			{"can-reach=198.51.100.9", IPv4, "10.78.0.1/30"},
			{"can-reach=10.77.0.9", IPv4, "10.77.0.1/24"},
			{"first-found", IPv6, "fd77::1/64"},
			{"can-reach=2001:db8::1", IPv6, "can-reach=2001:db8::1: no IPv6 route to 2001:db8::1: "},
		} {
			m, err := parseMethod(tc.method)
			if err != nil {
				t.Error(err)
				continue
			}
			p, _, err := detect(context.Background(), m, tc.family, host, nil)
			got := p.String()
			if err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s %s: got %s want %s", tc.method, tc.family, got, tc.want)
			}
		}
		interfaces, err := host.Interfaces()
		if err != nil || len(interfaces) < 3 {
			t.Errorf("%v, %v", interfaces, err)
		}
		if p := withSubnet(host, netip.MustParsePrefix("10.78.0.1/32")); p.Bits() != 30 {
			t.Errorf("the subnet of 10.78.0.1 is %s", p)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
