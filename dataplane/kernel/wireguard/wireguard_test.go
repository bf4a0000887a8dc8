package wireguard_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
)

const name = "wireguard.cali"

// open makes a namespace with a WireGuard device. On a kernel that cannot make one it checks that the reason is known,
// and skips the rest, which `make test-vm` runs.
func open(t *testing.T) (*kernel.Conn, *wireguard.Conn) {
	c, err := kernel.Open(nettest.Path(nettest.Namespace(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	d := wireguard.New(c.Namespace())
	if _, err := d.WireGuard(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a device: %v", err)
	}
	_, err = c.EnsureDevice(kernel.Device{Name: name, Kind: kernel.KindWireGuard})
	var none kernel.NoKindError
	if errors.As(err, &none) {
		if text := err.Error(); !strings.HasSuffix(text, "this kernel has no WireGuard (CONFIG_WIREGUARD)") {
			t.Errorf("the reason is %q", text)
		}
		if err := d.SetWireGuard(name, wireguard.Settings{Port: 51820, NewKey: true}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without the module: %v", err)
		}
		t.Skip("this kernel has no WireGuard")
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, d
}

// TestVMDevice reads back what it has changed: settings, a key that stays, peers, and AllowedIPs that move and go.
func TestVMDevice(t *testing.T) {
	_, c := open(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.SetWireGuard(name, wireguard.Settings{Port: 51820, Mark: 0x200000, NewKey: true}))
	first, err := c.WireGuard(name)
	must(err)
	must(c.SetWireGuard(name, wireguard.Settings{Port: 51830, Mark: 0x400000}))
	d, err := c.WireGuard(name)
	must(err)
	if d.PublicKey != first.PublicKey || d.PublicKey.IsZero() || d.Port != 51830 || d.Mark != 0x400000 {
		t.Errorf("%+v after %+v", d, first)
	}
	one, two := wireguard.Key{1}, wireguard.Key{2}
	var list []netip.Prefix // more than one message has
	for i := range 600 {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 32))
	}
	second := 25 * time.Second
	must(c.ChangePeers(name, []wireguard.Change{
		{Key: one, Endpoint: netip.MustParseAddrPort("192.0.2.1:51820"), Add: list, Keepalive: &second},
		{Key: two, Endpoint: netip.MustParseAddrPort("[fd01::2]:51821"), Add: list[:1]}}))
	must(c.DropAllowedIPs(name, list[1:500]))
	d, err = c.WireGuard(name)
	must(err)
	slices.SortFunc(d.Peers, func(a, b wireguard.Peer) int { return int(a.Key[0]) - int(b.Key[0]) })
	if len(d.Peers) != 2 || len(d.Peers[0].AllowedIPs) != 100 || d.Peers[0].Keepalive != second ||
		!slices.Equal(d.Peers[1].AllowedIPs, list[:1]) || !d.Peers[0].Handshake.IsZero() ||
		d.Peers[0].Endpoint.String() != "192.0.2.1:51820" || d.Peers[1].Endpoint.String() != "[fd01::2]:51821" {
		t.Errorf("the peers are %+v", d.Peers)
	}
	must(c.ChangePeers(name, []wireguard.Change{{Key: one, Remove: true}, {Key: wireguard.Key{3}, Remove: true}}))
	if d, err = c.WireGuard(name); err != nil || len(d.Peers) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
}

// Rules of a mark, and of ports, are listed with all they have, and deleted alone.
func TestRules(t *testing.T) {
	c, err := kernel.Open(nettest.Path(nettest.Namespace(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // of a test
	before, err := c.ListRules()
	if err != nil || len(before) > 0 {
		t.Fatalf("of a new namespace: %v, %v", before, err)
	}
	var want []kernel.Rule
	for _, six := range []bool{false, true} {
		for _, protocol := range []kernel.Protocol{kernel.ProtocolCalico, kernel.ProtocolBoot} {
			r := kernel.Rule{IPv6: six, Priority: 99, Mark: 0x200000, Mask: 0x200000, Not: true, Table: 1,
				Protocol: protocol}
			want = append(want, r)
		}
		to := netip.MustParseAddr("192.0.2.1")
		if six {
			to = netip.MustParseAddr("fd01::1")
		}
		for _, tcp := range []kernel.TCP{{Local: true, From: kernel.PortRange{First: 179, Last: 179}},
			{Local: true, Ports: kernel.PortRange{First: 2379, Last: 2380}},
			{To: to, Ports: kernel.PortRange{First: 6443, Last: 6443}}} {
			want = append(want, kernel.Rule{IPv6: six, Priority: 98, TCP: tcp, Table: kernel.MainTable,
				Protocol: kernel.ProtocolCalico})
		}
	}
	for _, r := range want {
		for range 2 {
			if err := c.AddRule(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(want) > 0 {
		have, err := c.ListRules()
		if err != nil || len(have) != len(want) {
			t.Fatalf("%v, %v, want %v", have, err, want)
		}
		for _, r := range want {
			if !slices.Contains(have, r) {
				t.Errorf("no %+v in %+v", r, have)
			}
		}
		for range 2 {
			if err := c.DeleteRule(want[0]); err != nil {
				t.Error(err)
			}
		}
		want = want[1:]
	}
	if err := c.DeleteRule(kernel.Rule{}); err == nil {
		t.Error("a rule of the system may be deleted")
	}
}
