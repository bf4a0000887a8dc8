package kernel

import (
	"net/netip"
	"testing"
)

func TestInterfaceTo(t *testing.T) {
	c, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if name, direct, err := c.InterfaceTo(netip.MustParseAddr("127.0.0.1")); err != nil || name != "lo" || !direct {
		t.Errorf("InterfaceTo(127.0.0.1) = %q, %v; want lo", name, err)
	}
	if name, _, err := c.InterfaceTo(netip.MustParseAddr("::1")); err != nil || name != "lo" && name != "" {
		t.Errorf("InterfaceTo(::1) = %q, %v; want lo", name, err)
	}
	if name, _, err := c.InterfaceTo(netip.MustParseAddr("ff02::1")); err != nil {
		t.Errorf("InterfaceTo(ff02::1) = %q, %v", name, err)
	}
}
