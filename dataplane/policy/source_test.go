package policy

import (
	"net/netip"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// A workload's packet to a loopback address would reach programs that listen at the host's 127.0.0.1.
func TestWorkloadsDoNotReachLoopbackAddresses(t *testing.T) {
	c := Build(Config{Node: testNode}, model.NewSet(pod("default", "w", "10.0.0.1", nil)), nil)
	for _, x := range []struct {
		iface, destination string
		want               bool
	}{
		{"caliw", "127.0.0.1", false}, {"caliw", "127.255.255.254", false}, {"caliother", "127.0.0.1", false},
		{"caliw", "126.255.255.255", true}, {"caliw", "128.0.0.0", true}, {"lo", "127.0.0.1", true},
		{"eth0", "127.0.0.1", true}, // the kernel drops it there
	} {
		p := ruleset.Packet{In: x.iface, Source: netip.MustParseAddr("10.0.0.1"),
			Destination: netip.MustParseAddr(x.destination), Protocol: 6, SourcePort: 1025, DestinationPort: 80}
		if got := c.Table().Eval(nil, ruleset.Prerouting, p, nil).Accepted(); got != x.want {
			t.Errorf("from %s to %s: %v, want %v", x.iface, x.destination, got, x.want)
		}
	}
}
