package endpointstatus

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func TestWhichFileIsRight(t *testing.T) {
	mac, _ := net.ParseMAC("02:00:00:00:00:0a")
	w := Workload{MAC: mac, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}}
	for name, c := range map[string]struct {
		content string
		want    bool
	}{
		"as written by Manx and Calico": {
			`{"ifaceName":"cali1","mac":"02:00:00:00:00:0A","ipv4Nets":["10.0.0.1/32"],"ipv6Nets":["fd00::1/128"],"bgpPeerName":"x"}`, true},
		"empty, of an early Calico": {``, true},
		"without MAC": {
			`{"ifaceName":"cali1","ipv4Nets":["10.0.0.1/32"],"ipv6Nets":["fd00::1/128"]}`, true},
		"MAC of an earlier container": {
			`{"mac":"02:00:00:00:00:0b","ipv4Nets":["10.0.0.1/32"],"ipv6Nets":["fd00::1/128"]}`, false},
		"addresses of an earlier container": {
			`{"mac":"02:00:00:00:00:0a","ipv4Nets":["10.0.0.2/32"],"ipv6Nets":["fd00::1/128"]}`, false},
		"one family is missing": {`{"mac":"02:00:00:00:00:0a","ipv4Nets":["10.0.0.1/32"]}`, false},
		"half written":          {`{"mac":"02:00`, false},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkFile(path, w)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", name, fmt.Sprint(err))
		}
	}
}
