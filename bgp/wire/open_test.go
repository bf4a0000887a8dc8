package wire

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

// Capabilities of real routers, and malformed ones that the session does not depend on, are no reason to refuse an
// OPEN.
func TestCapabilitiesOfOthers(t *testing.T) {
	t.Parallel()
	p := Peer{Address: netip.MustParseAddr("10.0.0.2"), LocalAS: 64512, PeerAS: 64513}
	for name, c := range map[string][]byte{
		"role": {9, 1, 0}, "ORF": {3, 7, 0, 1, 0, 1, 1, 64, 3}, "multisession": {68, 1, 0}, "dynamic": {67, 0},
		"FQDN": {73, 6, 4, 'r', 't', 'r', '1', 0}, "FQDN without domain": {73, 5, 4, 'r', 't', 'r', '1'},
		"software version without length": {75, 4, 'B', 'I', 'R', 'D'}, "BFD strict": {74, 0},
		"paths limit": {76, 5, 0, 1, 1, 0, 8}, "LLGR": {71, 7, 0, 1, 1, 0x80, 0, 1, 0x2c},
		"LLGR without family": {71, 0},
		"GR without family":   {64, 2, 0x40, 120}, "extended next hop": {5, 6, 0, 1, 0, 1, 0, 2},
		"short extended next hop": {5, 5, 0, 1, 1, 0, 2}, "odd ADD-PATH": {69, 5, 0, 1, 1, 3, 0},
		"unknown": {200, 3, 1, 2, 3}, "route refresh with data": {2, 1, 0},
	} {
		body := append([]byte{4, 0xfc, 1, 0, 90, 10, 0, 0, 2, byte(len(c) + 2), 2, byte(len(c))}, c...)
		o, err := readOpen(message.New(bgp.BGP_MSG_OPEN, body...), p, netip.MustParseAddr("10.0.0.1"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		edited, err := o.edited(p)
		if err == nil {
			_, err = bgp.ParseBGPMessage(edited)
		}
		if err != nil {
			t.Errorf("%s: GoBGP gets %x: %v", name, edited, err)
		}
	}
}

// An OPEN is read with either length of its parameters, and refused with the NOTIFICATION of the RFC.
func TestReadOpen(t *testing.T) {
	t.Parallel()
	p := Peer{Address: netip.MustParseAddr("10.0.0.2"), LocalAS: 64512, PeerAS: 65001}
	ours := netip.MustParseAddr("10.0.0.1")
	head := func(version byte, as, hold uint16, id byte) []byte {
		b := []byte{version, byte(as >> 8), byte(as), byte(hold >> 8), byte(hold), 10, 0, 0, id}
		return b
	}
	caps := []byte{2, 0, 65, 4, 0, 0, 0xfd, 0xe9, 6, 0} // refresh, AS 65001, extended message
	parameters := append([]byte{byte(len(caps) + 2), 2, byte(len(caps))}, caps...)
	extended := append([]byte{255, 255, 0, byte(len(caps) + 3), 2, 0, byte(len(caps))}, caps...)
	for _, c := range []struct {
		name  string
		body  []byte
		sub   int // of the NOTIFICATION 2/x; -1: it is accepted
		words string
	}{
		{"good", slices.Concat(head(4, 23456, 90, 2), parameters), -1, ""},
		{"RFC 9072", slices.Concat(head(4, 23456, 90, 2), extended), -1, ""},
		{"no parameters", slices.Concat(head(4, 65001, 0, 2), []byte{0}), -1, ""},
		{"version 3", slices.Concat(head(3, 65001, 90, 2), []byte{0}), 1, "version is 3"},
		{"another AS", slices.Concat(head(4, 65002, 90, 2), []byte{0}), 2, "expected AS 65001, received AS 65002"},
		{"AS 0", slices.Concat(head(4, 0, 90, 2), []byte{0}), 2, "RFC 7607"},
		{"hold time 2", slices.Concat(head(4, 65001, 2, 2), []byte{0}), 6, "hold time is 2s"},
		{"unknown parameter", slices.Concat(head(4, 65001, 90, 2), []byte{3, 1, 1, 0}), 4, "parameter 1 is unknown"},
		{"parameters too short", slices.Concat(head(4, 65001, 90, 2), []byte{9, 2, 1, 0}), 0, "do not fit"},
		{"capability too long", slices.Concat(head(4, 65001, 90, 2), []byte{4, 2, 2, 65, 4}), 0, "do not fit"},
		{"router ID 0.0.0.0", []byte{4, 0xfd, 0xe9, 0, 90, 0, 0, 0, 0, 0}, 3, "0.0.0.0"},
	} {
		o, err := readOpen(message.New(bgp.BGP_MSG_OPEN, c.body...), p, ours)
		n, text, _ := refusal(err)
		switch {
		case c.sub < 0 && err != nil, c.sub >= 0 && (err == nil || n.Code != 2 || int(n.Sub) != c.sub):
			t.Errorf("%s: %v, NOTIFICATION %d/%d", c.name, err, n.Code, n.Sub)
		case c.sub >= 0 && !strings.Contains(text, c.words):
			t.Errorf("%s: %q", c.name, text)
		case c.sub < 0:
			edited, err := o.edited(p)
			if err != nil {
				t.Fatal(err)
			}
			m, err := bgp.ParseBGPMessage(edited)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			for _, option := range m.Body.(*bgp.BGPOpen).OptParams {
				for _, cap := range option.(*bgp.OptionParameterCapability).Capability {
					if cap.Code() == bgp.BGP_CAP_EXTENDED_MESSAGE {
						t.Errorf("%s: the speaker would take extended messages for negotiated", c.name)
					}
				}
			}
		}
	}
}

// Any OPEN is refused with a NOTIFICATION, or becomes one that GoBGP reads.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{4, 0xfd, 0xe9, 0, 90, 10, 0, 0, 2, 8, 2, 6, 65, 4, 0, 0, 0xfd, 0xe9})
	f.Add([]byte{4, 0xfd, 0xe9, 0, 90, 10, 0, 0, 2, 255, 255, 0, 5, 2, 0, 2, 2, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) < 10 || len(body) > bgp.BGP_MAX_MESSAGE_LENGTH-bgp.BGP_HEADER_LENGTH {
			return
		}
		p := Peer{Address: netip.MustParseAddr("10.0.0.2"), LocalAS: 64512, PeerAS: 65001}
		o, err := readOpen(message.New(bgp.BGP_MSG_OPEN, body...), p, netip.MustParseAddr("10.0.0.1"))
		if err != nil {
			if n, _, answer := refusal(err); !answer || n.Code != message.CodeOpen {
				t.Fatalf("%v is answered with %d/%d", err, n.Code, n.Sub)
			}
			return
		}
		edited, err := o.edited(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&message.Framer{From: bytes.NewReader(edited)}).Next(); err != nil {
			t.Fatalf("%x: %v", edited, err)
		}
		m, err := bgp.ParseBGPMessage(edited)
		if err != nil {
			t.Fatalf("GoBGP cannot read %x: %v", edited, err)
		}
		if _, err := bgp.ValidateOpenMsg(m.Body.(*bgp.BGPOpen), p.PeerAS, p.LocalAS,
			netip.MustParseAddr("10.0.0.1")); err != nil {
			t.Fatalf("GoBGP refuses %x: %v", edited, err)
		}
	})
}
