package kernel

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

func TestInterfaceTo(t *testing.T) {
	c, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if name, direct, err := c.InterfaceTo(netip.MustParseAddr("127.0.0.1"), 0); err != nil || name != "lo" || !direct {
		t.Errorf("InterfaceTo(127.0.0.1) = %q, %v; want lo", name, err)
	}
	if name, _, err := c.InterfaceTo(netip.MustParseAddr("::1"), 0); err != nil || name != "lo" && name != "" {
		t.Errorf("InterfaceTo(::1) = %q, %v; want lo", name, err)
	}
	if name, _, err := c.InterfaceTo(netip.MustParseAddr("ff02::1"), 0); err != nil {
		t.Errorf("InterfaceTo(ff02::1) = %q, %v", name, err)
	}
}

// A mark selects the way of packets that no rule leads elsewhere.
func TestInterfaceToWithAMark(t *testing.T) {
	name, c := testNS(t)
	for _, args := range []string{"link add w0 up type bridge", "route add 198.51.100.0/24 dev e0",
		"route add 198.51.100.0/24 dev w0 table 7", "rule add not fwmark 0x200000/0x200000 table 7"} {
		nettest.Run(t, append([]string{"ip", "-n", name}, strings.Fields(args)...)...)
	}
	for mark, want := range map[uint32]string{0: "w0", 0x200000: "e0"} {
		if got, direct, err := c.InterfaceTo(addr("198.51.100.1"), mark); err != nil || got != want || !direct {
			t.Errorf("with mark 0x%x: %q, %t, %v; want %s", mark, got, direct, err, want)
		}
	}
}
