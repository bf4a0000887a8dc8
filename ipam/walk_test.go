package ipam

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// The start of the walk is Calico's: FNV-1 of the host name seeds Go's random numbers.
func TestWalkStartsWhereCalicoStarts(t *testing.T) {
	for _, c := range []struct{ host, pool, want string }{
		{"node1", "192.168.0.0/16", "192.168.166.128/26"},
		{"node-a", "192.168.0.0/16", "192.168.174.128/26"},
		{"worker-0", "192.168.0.0/16", "192.168.43.0/26"},
		{"h1", "10.40.0.0/18", "10.40.26.192/26"},
		{"h2", "10.40.0.0/18", "10.40.1.64/26"},
		{"h1", "fd00:40::/64", "fd00:40::9380:634f:1c91:e300/122"},
		{"h2", "fd00:40::/64", "fd00:40::a212:732:903a:8140/122"},
		{"any", "10.0.0.0/26", "10.0.0.0/26"}, // one block only
	} {
		pool, want := netip.MustParsePrefix(c.pool), netip.MustParsePrefix(c.want)
		if got := walkStart(pool, want.Bits(), c.host, time.Now()); got != want {
			t.Errorf("%s in %s: %s, want %s", c.host, c.pool, got, c.want)
		}
	}
}

func TestWalkVisitsEveryBlockOnceAndJumpsOverReservations(t *testing.T) {
	for _, c := range []struct {
		name, pool, start string
		reserved          []string
		want              []string
	}{
		{"cyclic", "10.0.0.0/28", "10.0.0.8/30", nil, []string{"10.0.0.8/30", "10.0.0.12/30", "10.0.0.0/30",
			"10.0.0.4/30"}},
		{"from the first", "10.0.0.0/29", "10.0.0.0/30", nil, []string{"10.0.0.0/30", "10.0.0.4/30"}},
		{"one covers a block", "10.0.0.0/28", "10.0.0.0/30", []string{"10.0.0.4/30"},
			[]string{"10.0.0.0/30", "10.0.0.8/30", "10.0.0.12/30"}},
		{"several add up to a block", "10.0.0.0/29", "10.0.0.0/30",
			[]string{"10.0.0.4/31", "10.0.0.6/32", "10.0.0.6/31", "10.0.0.7/32"}, []string{"10.0.0.0/30"}},
		{"one ends within a block", "10.0.0.0/28", "10.0.0.0/30", []string{"10.0.0.0/29", "10.0.0.8/32"},
			[]string{"10.0.0.8/30", "10.0.0.12/30"}},
		{"the start is reserved", "10.0.0.0/28", "10.0.0.8/30", []string{"10.0.0.8/30"},
			[]string{"10.0.0.12/30", "10.0.0.0/30", "10.0.0.4/30"}},
		{"everything is", "10.0.0.0/28", "10.0.0.8/30", []string{"0.0.0.0/0"}, nil},
		{"the other family is", "10.0.0.0/30", "10.0.0.0/30", []string{"::/0"}, []string{"10.0.0.0/30"}},
		{"single addresses", "10.0.0.0/31", "10.0.0.1/32", nil, []string{"10.0.0.1/32", "10.0.0.0/32"}},
		{"the end of the address space", "255.255.255.248/29", "255.255.255.252/30", nil,
			[]string{"255.255.255.252/30", "255.255.255.248/30"}},
		{"half of a large pool", "fd00::/64", "fd00::/122",
			[]string{"fd00::/65", "fd00::8000:0:0:0/66", "fd00::c000:0:0:0/67", "fd00::e000:0:0:0/68",
				"fd00::f000:0:0:0/69", "fd00::f800:0:0:0/70",
				"fd00::fc00:0:0:0/71", "fd00::fe00:0:0:0/72", "fd00::ff00:0:0:0/72"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var reserved []netip.Prefix
			for _, r := range c.reserved {
				reserved = append(reserved, netip.MustParsePrefix(r))
			}
			var got []string
			for b := range walk(netip.MustParsePrefix(c.pool), netip.MustParsePrefix(c.start),
				newReservations(reserved)) {
				if got = append(got, b.String()); len(got) > 100 {
					break
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("visited %v, want %v", got, c.want)
			}
		})
	}
}
