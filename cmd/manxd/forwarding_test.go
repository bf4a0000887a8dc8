package main

import (
	"errors"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
)

// A host that has rebooted says so to its peers. One that has its routes does not, whatever its clock says.
func TestForwarding(t *testing.T) {
	other := kernel.Route{Protocol: kernel.ProtocolKernel}
	for _, c := range []struct {
		name   string
		uptime time.Duration
		routes []kernel.Route
		err    error
		kept   bool
	}{
		{"rebooted", time.Minute, []kernel.Route{other}, nil, false},
		{"no routes at all", time.Minute, nil, nil, false},
		{"manxd restarted soon after a boot", time.Minute, []kernel.Route{other, {Protocol: kernel.ProtocolCalico}},
			nil, true},
		{"calico-node before", time.Minute, []kernel.Route{{Protocol: kernel.ProtocolBIRD}}, nil, true},
		{"started long ago", 2 * time.Hour, nil, nil, true},
		{"the kernel does not say", time.Minute, nil, errors.New("no"), true},
	} {
		got := forwarding(func() time.Duration { return c.uptime },
			func(...kernel.Table) ([]kernel.Route, error) { return c.routes, c.err })
		if kept := got() > 4*time.Hour; kept != c.kept || !kept && got() != c.uptime {
			t.Errorf("%s: %s", c.name, got())
		}
	}
	if n := uptime(); n <= 0 || n > 10*365*24*time.Hour {
		t.Errorf("the host runs for %s", n)
	}
}
