package wireguard_test

import (
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
)

// With strict rp_filter a host does not answer the ARP requests of another one to which its packets go by a tunnel,
// unless they have the mark that keeps them out of it.
func TestARPIsAnsweredBesideTheTunnel(t *testing.T) {
	here, far := nettest.Bare(t), nettest.Bare(t)
	ip := func(ns string, args ...string) { nettest.Run(t, append([]string{"ip", "-n", ns}, args...)...) }
	ip(here, "link", "add", "e0", "type", "veth", "peer", "name", "e0", "netns", far)
	ip(here, "link", "add", "tunnel", "up", "type", "veth", "peer", "name", "end", "netns", far)
	ip(far, "link", "set", "end", "up")
	for ns, a := range map[string]string{here: "10.9.9.2/24", far: "10.9.9.1/24"} {
		ip(ns, "address", "add", a, "dev", "e0")
		ip(ns, "link", "set", "e0", "up")
	}
	nettest.Run(t, "ip", "netns", "exec", here, "sh", "-c", "cd /proc/sys/net/ipv4/conf; echo 1 >all/rp_filter; "+
		"echo 1 >e0/rp_filter; echo 1 >all/src_valid_mark")
	ip(here, "route", "add", "10.9.9.1/32", "dev", "tunnel", "table", "1")
	ip(here, "rule", "add", "not", "fwmark", "0x200000/0x200000", "lookup", "1", "priority", "99")
	conn, err := kernel.Open(nettest.Path(here))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // of a test
	c := wireguard.New(conn.Namespace())
	for _, x := range []struct {
		mark uint32
		want bool
	}{{0, false}, {0x200000, true}, {0x400000, false}, {0, false}} {
		if err := c.MarkARP(x.mark); err != nil {
			t.Fatal(err)
		}
		if got, err := c.ARPMark(); err != nil || got != x.mark {
			t.Errorf("the mark is 0x%x, want 0x%x: %v", got, x.mark, err)
		}
		ip(far, "neighbour", "flush", "dev", "e0")
		nettest.Run(t, "ip", "netns", "exec", far, "sh", "-c", "ping -c1 -W1 10.9.9.2 || :")
		entry := nettest.Run(t, "ip", "-n", far, "neighbour", "show", "10.9.9.2")
		if got := strings.Contains(entry, "lladdr"); got != x.want {
			t.Errorf("with mark 0x%x ARP is answered: %t, want %t: %s", x.mark, got, x.want, entry)
		}
	}
	if tables := nettest.Run(t, "ip", "netns", "exec", here, "nft", "list", "tables"); tables != "" {
		t.Errorf("left are %s", tables)
	}
}
