package model

import (
	"testing"
)

func TestPeerAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1":               "10.0.0.1:0",
		"10.0.0.1:179":           "10.0.0.1:179",
		"fd00::1":                "[fd00::1]:0",
		"[fd00::1]:1179":         "[fd00::1]:1179",
		"FD00:0::1":              "[fd00::1]:0",
		"::ffff:10.0.0.1":        "10.0.0.1:0",
		"[::ffff:10.0.0.1]:1179": "10.0.0.1:1179",
		"":                       "", "x": "", "10.0.0.1:": "", "10.0.0.1:0": "", "10.0.0.1:65536": "", "[fd00::1]": "",
		"fe80::1%eth0": "", "[fe80::1%eth0]:179": "", "10.0.0.0/24": "",
	} {
		got, err := ParsePeerIP(in)
		if (err == nil) != (want != "") || (err == nil && got.String() != want) {
			t.Errorf("%q gave %v, %v", in, got, err)
		}
	}
}
