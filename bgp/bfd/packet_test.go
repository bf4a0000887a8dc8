package bfd

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestPacketLayout compares with a handwritten packet by RFC 5880 section 4.1.
func TestPacketLayout(t *testing.T) {
	p := packet{diag: neighborSignaledDown, state: Init, poll: true, independent: true, multiplier: 5, my: 0x01020304,
		your:      0x05060708,
		desiredTx: 300 * time.Millisecond, requiredRx: time.Second}
	want := []byte{0x23, 0xa8, 5, 24, 1, 2, 3, 4, 5, 6, 7, 8, 0, 4, 0x93, 0xe0, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 0}
	if got := p.marshal(); !bytes.Equal(got, want) {
		t.Errorf("marshal\n%x, want\n%x", got, want)
	}
	if back, err := parse(want); err != nil || back != p {
		t.Errorf("parse: %+v, %v", back, err)
	}
}

func TestBadPacketsAreRefused(t *testing.T) {
	good := packet{state: Up, multiplier: 3, my: 1, your: 2}.marshal()
	with := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	noMine := bytes.Clone(good)
	copy(noMine[4:], []byte{0, 0, 0, 0})
	noYours := bytes.Clone(good)
	copy(noYours[8:], []byte{0, 0, 0, 0})
	for _, tc := range []struct {
		name string
		b    []byte
		want string
	}{
		{"short", good[:23], "23 octets"},
		{"version 0", with(0, 0), "version 0"},
		{"length below 24", with(3, 23), "length 23"},
		{"length beyond the packet", with(3, 25), "length 25"},
		{"multiplier 0", with(2, 0), "multiplier 0"},
		{"multipoint", with(1, 0xc1), "multipoint"},
		{"authentication", with(1, 0xc4), "authentication"},
		{"no discriminator", noMine, "my discriminator is 0"},
		{"up without our discriminator", noYours, "your discriminator is 0"},
	} {
		if _, err := parse(tc.b); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(packet{state: Up, multiplier: 3, my: 1, your: 2}.marshal())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b)
		if err != nil {
			return
		}
		if back, err := parse(p.marshal()); err != nil || back != p {
			t.Errorf("%x: %+v, then %+v, %v", b, p, back, err)
		}
	})
}
