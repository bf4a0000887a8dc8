package route

import (
	"testing"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
)

// TestLastAddressGoes: the kernel removes the IPv4 routes of an interface with its last address, without events. They
// are there again soon.
func TestLastAddressGoes(t *testing.T) {
	f := testKernel()
	target, advance := testTarget(f)
	target.Learn([]locrib.Route{learned("10.244.9.0/26", 1024, "10.1.0.9")})
	key := kernel.RouteKey{Dst: prefix("10.244.9.0/26"), Metric: 1024}
	check := func(what string, want bool) {
		t.Helper()
		_, _, _ = target.Flush()
		if _, there := f.Route(key); there != want {
			t.Errorf("%s: there is a route: %t, want %t", what, there, want)
		}
	}
	check("at first", true)
	own := kernel.Address{Link: 2, Prefix: prefix("10.1.0.5/24")}
	if err := f.DeleteAddress(own); err != nil {
		t.Fatal(err)
	}
	target.Handle([]kernel.Event{{Type: kernel.EventAddressGone, Address: own}})
	f.PutAddress(own)
	target.Handle([]kernel.Event{{Type: kernel.EventAddress, Address: own}})
	subnet := via("10.1.0.0/24", "", 2, kernel.ProtocolKernel)
	f.PutRoute(subnet)
	target.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: subnet}})
	check("the kernel may not have removed the routes yet", false)
	advance(resyncGap + flushDelay)
	check("then", true)
}
