package bgp

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestBFDAnnotations(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        BFD
		note        string
	}{
		{"absent", nil, BFD{Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3}, ""},
		{"defaults", map[string]string{annotationBFD: "true"}, BFD{Enabled: true, Transmit: 300 * ms, Receive: 300 * ms,
			Multiplier: 3}, ""},
		{"all", map[string]string{annotationBFD: "true", annotationBFDInterval: "50ms", annotationBFDReceive: "1s",
			annotationBFDMultiplier: "5", annotationBFDMultihop: "true"},
			BFD{Enabled: true, Transmit: 50 * ms, Receive: time.Second, Multiplier: 5, Multihop: true}, ""},
		{"least TTL", map[string]string{annotationBFD: "true", annotationBFDMultihop: "true",
			annotationBFDMinTTL: "62"},
			BFD{Enabled: true, Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3, Multihop: true, MinTTL: 62}, ""},
		{"TTL 0", map[string]string{annotationBFDMinTTL: "0"},
			BFD{Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3}, "1 to 255"},
		{"TTL 256", map[string]string{annotationBFDMinTTL: "256"},
			BFD{Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3}, `bfd-min-ttl = "256" is ignored`},
		{"not a word", map[string]string{annotationBFD: "yes"},
			BFD{Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3}, `"yes" is ignored`},
		{"too fast", map[string]string{annotationBFDInterval: "1ms"},
			BFD{Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3}, "10ms to 1m0s"},
		{"no unit", map[string]string{annotationBFDTransmit: "300"},
			BFD{Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3}, `"300" is ignored`},
		{"multiplier 0", map[string]string{annotationBFDMultiplier: "0"},
			BFD{Transmit: 300 * ms, Receive: 300 * ms, Multiplier: 3}, "1 to 255"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &cluster{}
			if got := c.bfd("BGPPeer/p", tc.annotations); got.BFD != tc.want {
				t.Errorf("bfd = %+v, want %+v", got.BFD, tc.want)
			}
			if tc.note == "" && len(c.notices) > 0 || tc.note != "" &&
				(len(c.notices) != 1 || !strings.Contains(c.notices[0].Reason, tc.note)) {
				t.Errorf("notices %v, want %q", c.notices, tc.note)
			}
		})
	}
}

func TestBFDIsMultihopUnlessBothSeeEachOther(t *testing.T) {
	mk := func(addr string) *node {
		p := netip.MustParsePrefix(addr)
		n := &node{}
		n.addrs[ipv4], n.subnets[ipv4] = p.Addr(), p.Masked()
		return n
	}
	c := &cluster{me: mk("10.0.0.1/24"), byAddr: map[netip.Addr]*node{},
		connected: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.1.0/24")}}
	for _, n := range []*node{mk("10.0.0.2/24"), mk("10.0.0.3/32"), mk("10.0.1.4/16")} {
		c.byAddr[n.addrs[ipv4]] = n
	}
	for addr, multihop := range map[string]bool{"10.0.0.2": false, "10.0.0.3": true, "10.0.1.4": true,
		"10.0.0.254": false, "10.0.1.254": false, "192.0.2.1": true} {
		b := c.watch(bfdSetting{BFD: BFD{Enabled: true}, auto: true}, netip.MustParseAddr(addr))
		if b.Multihop != multihop {
			t.Errorf("%s: multihop %t, want %t", addr, b.Multihop, multihop)
		}
	}
}
