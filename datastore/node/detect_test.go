package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// fixedHost is a host with the given interfaces.
type fixedHost struct {
	interfaces []Interface
	sources    map[string]string // destination to own address
	err        error
}

func (h *fixedHost) Interfaces() ([]Interface, error) { return h.interfaces, h.err }

func (h *fixedHost) SourceFor(_ context.Context, destination string, family Family) (netip.Addr, error) {
	a, ok := h.sources[fmt.Sprintf("%s %s", destination, family)]
	if !ok {
		return netip.Addr{}, fmt.Errorf("no %s route to %s", family, destination)
	}
	return netip.MustParseAddr(a), nil
}

// interfaces makes interfaces from "NAME ADDRESS ADDRESS ..", with indices from 1.
func interfaces(lines ...string) []Interface {
	var list []Interface
	for n, line := range lines {
		f := strings.Fields(line)
		i := Interface{Name: f[0], Index: n + 1}
		for _, a := range f[1:] {
			i.Addresses = append(i.Addresses, netip.MustParsePrefix(a))
		}
		list = append(list, i)
	}
	return list
}

func TestDetect(t *testing.T) {
	host := interfaces("lo 127.0.0.1/8 ::1/128", "eth0 10.0.0.1/24 10.0.0.2/24 fe80::1/64 fd00::1/64",
		"eth1 169.254.7.7/16 192.168.5.5/16 2001:db8::5/64",
		"docker0 172.17.0.1/16", "cali123 169.254.1.1/32", "tunl0 10.244.0.1/32", "local0 10.3.3.3/8", "wlan0",
		"vxlan.calico 10.244.0.2/32")
	for _, tc := range []struct {
		rule, method string
		family       Family
		wanted       string
		want         string
		candidates   []string // "ADDRESS REASON", part of it
		wantErr      string
	}{
		{rule: "first found: highest index, excluded names and link-local addresses passed over", method: "",
			family: IPv4, want: "192.168.5.5/16", candidates: []string{
				"10.244.0.2/32 skipped: interfaces that match ^vxlan\\.calico never",
				"10.3.3.3/8 skipped: interfaces that match ^lo never",
				"10.244.0.1/32 skipped: interfaces that match ^tunl", "169.254.1.1/32 skipped: a loopback, link-local",
				"172.17.0.1/16 skipped: interfaces that match ^docker",
				"169.254.7.7/16 skipped: a loopback, link-local",
				"192.168.5.5/16 chosen: first address on the interface with the highest index",
				"10.0.0.1/24 skipped: 192.168.5.5/16 on eth1 comes first",
				"10.0.0.2/24 skipped: 192.168.5.5/16 on eth1 comes first", "127.0.0.1/8 skipped: a loopback"}},
		{rule: "first found for IPv6", method: "first-found", family: IPv6, want: "2001:db8::5/64"},
		{rule: "interface: unanchored pattern, kernel order", method: "interface=th0", family: IPv4,
			want: "10.0.0.1/24"},
		{rule: "interface: several patterns with spaces", method: "interface=nope, ^eth0$", family: IPv6,
			want: "fd00::1/64"},
		{rule: "interface: the exclusion list does not apply", method: "interface=docker", family: IPv4,
			want: "172.17.0.1/16"},
		{rule: "interface: none", method: "interface=bond0", family: IPv4,
			wantErr: "interface=bond0: none of the host's 10 IPv4 addresses fits"},
		{rule: "skip-interface adds to the exclusion list", method: "skip-interface=eth1", family: IPv4,
			want: "10.0.0.1/24"},
		{rule: "cidr: no name filter", method: "cidr=10.244.0.0/16", family: IPv4, want: "10.244.0.2/32"},
		{rule: "cidr: several, of both families", method: "cidr=fd00::/16,10.0.0.0/24", family: IPv6,
			want: "fd00::1/64"},
		{rule: "can-reach: the subnet of the interface", method: "can-reach=8.8.8.8", family: IPv4, wanted: "10.0.0.2",
			want: "10.0.0.2/24"},
		{rule: "kubernetes: the subnet of the interface", method: "kubernetes-internal-ip", family: IPv4,
			wanted: "10.0.0.1", want: "10.0.0.1/24"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			m, err := parseMethod(tc.method)
			if err != nil {
				t.Fatal(err)
			}
			var wanted netip.Addr
			if tc.wanted != "" {
				wanted = netip.MustParseAddr(tc.wanted)
			}
			got, candidates, err := choose(m, tc.family, host, wanted)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %s", err, tc.wantErr)
				}
				return
			}
			if err != nil || got.String() != tc.want {
				t.Errorf("got %s (%v) want %s", got, err, tc.want)
			}
			chosen := 0
			for i, c := range candidates {
				if c.Chosen {
					chosen++
				}
				if tc.candidates != nil &&
					(i >= len(tc.candidates) || !strings.HasPrefix(c.Address.String()+" "+c.Reason, tc.candidates[i])) {
					t.Errorf("candidate %d: %s %s", i, c.Address, c.Reason)
				}
			}
			if chosen != 1 || tc.candidates != nil && len(candidates) != len(tc.candidates) {
				t.Errorf("%d candidates, %d chosen", len(candidates), chosen)
			}
		})
	}
}

func TestMethodsThatCannotBe(t *testing.T) {
	for _, text := range []string{"first", "interface", "interface=", "interface=(", "cidr=10.0.0.0", "cidr=,",
		"can-reach=", "skip-interface", "first-found=x", "kubernetes-internal-ip=x", "FIRST-FOUND"} {
		if _, err := parseMethod(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLookedUpMethods(t *testing.T) {
	host := &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24 fd00::1/64"), sources: map[string]string{
		"10.9.9.9 IPv4": "10.0.0.1", "far IPv4": "10.0.0.77"}}
	answer := func(a string, err error) KubernetesAddress {
		return func(context.Context, Family) (netip.Addr, error) { return netip.MustParseAddr(a), err }
	}
	for _, tc := range []struct {
		method     string
		family     Family
		kubernetes KubernetesAddress
		want       string
	}{
		{"can-reach=10.9.9.9", IPv4, nil, "10.0.0.1/24"},
		{"can-reach=10.9.9.9", IPv6, nil, "can-reach=10.9.9.9: no IPv6 route to 10.9.9.9"},
		{"can-reach=far", IPv4, nil, "can-reach=far gives 10.0.0.77, which is on no interface of this host"},
		{"kubernetes-internal-ip", IPv4, nil, "kubernetes-internal-ip: no kubeconfig is available: set KUBECONFIG"},
		{"kubernetes-internal-ip", IPv6, answer("fd00::1", nil), "fd00::1/64"},
		{"kubernetes-internal-ip", IPv4, answer("10.0.0.5", nil), "kubernetes-internal-ip gives 10.0.0.5, which is " +
			"on no interface"},
		{"kubernetes-internal-ip", IPv4, answer("::", errors.New("node kn has no InternalIP")),
			"kubernetes-internal-ip: node kn has no InternalIP"},
	} {
		m, err := parseMethod(tc.method)
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := detect(t.Context(), m, tc.family, host, tc.kubernetes)
		got := p.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s %s: got %s want %s", tc.method, tc.family, got, tc.want)
		}
	}
}

func TestDecideAddress(t *testing.T) {
	host := &fixedHost{interfaces: interfaces("eth0 10.0.0.1/24 fd00::1/64")}
	bare := &fixedHost{}
	for _, tc := range []struct {
		rule                      string
		family                    Family
		setting, method, existing string
		host                      HostAddresses
		want, warning, err        string
	}{
		{rule: "autodetect", family: IPv4, setting: "autodetect", want: "10.0.0.1/24"},
		{rule: "autodetect replaces what the Node has", family: IPv4, setting: "autodetect", existing: "10.0.0.9/24",
			want: "10.0.0.1/24"},
		{rule: "autodetect that finds nothing keeps what the Node has", family: IPv4, setting: "autodetect",
			method: "interface=x", existing: "10.0.0.9/24", want: "10.0.0.9/24", warning: "the Node keeps 10.0.0.9/24"},
		{rule: "autodetect that finds nothing fails a new Node", family: IPv4, setting: "autodetect",
			method: "interface=x", err: "the IPv4 address cannot be detected: interface=x: none"},
		{rule: "a wrong method fails", family: IPv4, setting: "autodetect", method: "best", existing: "10.0.0.9/24",
			err: `IP_AUTODETECTION_METHOD: detection method "best"`},
		{rule: "unset: IPv4 is detected for a new Node", family: IPv4, want: "10.0.0.1/24"},
		{rule: "unset: IPv4 that cannot be detected is reported", family: IPv4, host: bare, want: "",
			warning: "no IPv4 address was found"},
		{rule: "unset: the Node keeps its IPv4 address", family: IPv4, existing: "10.0.0.1/16", want: "10.0.0.1/16"},
		{rule: "unset: the Node keeps an address that is not here, with a warning", family: IPv4,
			existing: "10.0.0.9/24", want: "10.0.0.9/24", warning: "10.0.0.9 is on no interface"},
		{rule: "unset: IPv6 is not detected", family: IPv6, want: ""},
		{rule: "unset: the Node keeps its IPv6 address", family: IPv6, existing: "fd00::1/64", want: "fd00::1/64"},
		{rule: "none", family: IPv4, setting: "none", existing: "10.0.0.1/24", want: ""},
		{rule: "a CIDR", family: IPv4, setting: "10.0.0.1/16", want: "10.0.0.1/16"},
		{rule: "a bare address gets the host's prefix length", family: IPv4, setting: "10.0.0.1", want: "10.0.0.1/24"},
		{rule: "a bare IPv6 address too", family: IPv6, setting: "fd00::1", want: "fd00::1/64"},
		{rule: "a bare address that is not here", family: IPv4, setting: "10.7.7.7", want: "10.7.7.7/32",
			warning: "10.7.7.7 is on no interface"},
		{rule: "nonsense", family: IPv4, setting: "eth0", err: `IP: "eth0" is no IPv4 address`},
		{rule: "wrong family", family: IPv6, setting: "10.0.0.1", err: `IP6: "10.0.0.1" is no IPv6 address`},
		{rule: "loopback is no node's address", family: IPv4, setting: "127.0.0.1",
			err: `IP: "127.0.0.1" is no IPv4 address`},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			c := Config{IP: tc.setting, IPMethod: tc.method, IP6: tc.setting, IP6Method: tc.method}
			h := tc.host
			if h == nil {
				h = host
			}
			d, err := decide(t.Context(), &c, tc.family, tc.existing, h)
			if tc.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.err) {
					t.Errorf("error %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || d.address != tc.want || (d.warning == "") != (tc.warning == "") ||
				!strings.Contains(d.warning, tc.warning) {
				t.Errorf("got %q warning %q error %v", d.address, d.warning, err)
			}
			if h == host && len(d.candidates) != 1 {
				t.Errorf("candidates: %+v", d.candidates)
			}
			for _, c := range d.candidates {
				if c.Reason == "" || c.Method == "" {
					t.Errorf("no reason: %+v", c)
				}
			}
		})
	}
}

func TestNodeInterfaces(t *testing.T) {
	list := interfaces("lo 127.0.0.1/8", "eth1 10.1.0.1/24", "eth0 10.0.0.1/24 fe80::1/64 fd00::1/64",
		"cali1 10.9.9.9/32", "eth2 fd01::1/64")
	show := func(c Config) string { return fmt.Sprint(nodeInterfaces(&c, list)) }
	if got := show(Config{}); got != "[]" {
		t.Error("nothing is configured:", got)
	}
	if got := show(Config{IP: "autodetect"}); got != "[{eth0 [10.0.0.1]} {eth1 [10.1.0.1]}]" {
		t.Error("IPv4:", got)
	}
	if got := show(Config{IP: "none", IP6: "fd00::1"}); got != "[{eth0 [fd00::1]} {eth2 [fd01::1]}]" {
		t.Error("IPv6:", got)
	}
}

// Any configured method is refused, or evaluates each address and selects at most one.
func FuzzDetect(f *testing.F) {
	for _, s := range []string{"", "first-found", "interface=eth.*,^en", "skip-interface=eth1",
		"cidr=10.0.0.0/8, fd00::/8", "can-reach=10.0.0.2", "kubernetes-internal-ip", "cidr=::ffff:10.0.0.0/100"} {
		f.Add(s, []byte{10, 0, 0, 1})
	}
	host := interfaces("lo 127.0.0.1/8 ::1/128", "eth0 10.0.0.1/24 10.0.0.2/24 fe80::1/64 fd00::1/64",
		"eth1 192.168.5.5/16", "docker0 172.17.0.1/16")
	f.Fuzz(func(t *testing.T, text string, wanted []byte) {
		m, err := parseMethod(text)
		if err != nil {
			return
		}
		w, _ := netip.AddrFromSlice(wanted)
		for family, all := range map[Family]int{IPv4: 5, IPv6: 3} {
			p, candidates, err := choose(m, family, host, w)
			chosen := 0
			for _, c := range candidates {
				if c.Chosen {
					chosen++
				}
				if c.Reason == "" || c.Chosen && c.Address != p {
					t.Errorf("%q: %+v", text, c)
				}
			}
			if len(candidates) != all || (chosen == 1) != (err == nil) || chosen > 1 {
				t.Errorf("%q: %s has %d candidates, %d chosen, %v", text, family, len(candidates), chosen, err)
			}
		}
	})
}
