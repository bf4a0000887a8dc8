package route

import (
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
)

// Routes of other programs to workload interfaces go when the interface has been there for a while, unless a setting or
// their kind keeps them.
func TestRoutesOfOthersToWorkloads(t *testing.T) {
	multipath := via("192.0.2.0/24", "", 6, kernel.ProtocolStatic)
	multipath.NextHops = append(multipath.NextHops, kernel.NextHop{Link: 2, Gateway: addr("10.1.0.9")})
	for _, c := range []struct {
		name    string
		r       kernel.Route
		removed bool
	}{
		{"static", via("192.0.2.0/24", "", 6, kernel.ProtocolStatic), true},
		{"of a router behind the workload", via("192.0.2.0/24", "10.244.1.7", 5, kernel.ProtocolStatic), true},
		{"boot to an unknown address", via("10.244.1.99/32", "", 5, kernel.ProtocolBoot), true},
		{"IPv6", via("fd99::/64", "", 6, kernel.ProtocolStatic), true},
		{"of the kernel", via("192.0.2.0/24", "", 6, kernel.ProtocolKernel), false},
		{"link-local", via("fe80::/64", "", 6, kernel.ProtocolBoot), false},
		{"multicast", via("ff00::/8", "", 6, kernel.ProtocolBoot), false},
		{"also to elsewhere", multipath, false},
		{"to elsewhere", via("192.0.2.0/24", "10.1.0.9", 2, kernel.ProtocolStatic), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := testKernel()
			f.PutRoute(c.r)
			there := func() bool { _, ok := f.Route(c.r.Key()); return ok }
			target, advance := testTarget(f)
			config := testConfig()
			config.RemoveExternal = true
			target.Configure(config)
			target.Synced(true)
			_, _, _ = target.Flush()
			if !there() {
				t.Fatal("removed at once")
			}
			if wait := target.Next(); wait > externalGrace {
				t.Errorf("the next flush is in %v", wait)
			}
			advance(externalGrace)
			_, _, _ = target.Flush()
			if there() == c.removed {
				t.Errorf("there %t after the grace", there())
			}
			config.RemoveExternal = false
			target.Configure(config)
			f.PutRoute(c.r)
			target.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: c.r}})
			advance(time.Hour)
			if _, _, _ = target.Flush(); !there() {
				t.Error("removed without the setting")
			}
		})
	}
}

// A route to a workload may share its key with one to elsewhere, in IPv6: a removal of the one might meet the other.
func TestExternalSiblings(t *testing.T) {
	target, advance := testTarget(testKernel())
	target.rules.config.RemoveExternal = true
	advance(externalGrace)
	_, _, _ = target.Flush()
	r := via("fd98::/64", "", 6, kernel.ProtocolStatic)
	for _, want := range []bool{true, false} {
		if got := target.rules.isExternal(&r); got != want {
			t.Errorf("external %t, want %t", got, want)
		}
		target.rules.rib.put(via("fd98::/64", "", 2, kernel.ProtocolStatic))
	}
}

// Settings of routes to workloads take effect on the routes that are there.
func TestSettingsOfWorkloadRoutes(t *testing.T) {
	f := testKernel()
	target, _ := testTarget(f)
	key := kernel.RouteKey{Dst: prefix("10.244.1.7/32"), Metric: defaultWorkloadMetric}
	check := func(what, want string) {
		t.Helper()
		_, _, _ = target.Flush()
		r, there := f.Route(key)
		if got := r.String(); !there || got != want {
			t.Errorf("%s: %t %q, want %q", what, there, got, want)
		}
	}
	target.Synced(true)
	check("the default", "10.244.1.7/32 dev #5 proto 80 scope link metric 1024")
	config := testConfig()
	config.WorkloadSource4, config.WorkloadProtocol = addr("10.3.0.5"), 99
	target.Configure(config)
	check("source and protocol", "10.244.1.7/32 dev #5 proto 99 scope link src 10.3.0.5 metric 1024")
	gone := kernel.Address{Link: 3, Prefix: prefix("10.3.0.5/24")}
	_ = f.DeleteAddress(gone)
	target.Handle([]kernel.Event{{Type: kernel.EventAddressGone, Address: gone}})
	check("the source is gone", "10.244.1.7/32 dev #5 proto 99 scope link metric 1024")
	if n := target.Notices(); len(n) == 0 || n[0].Subject != "FelixConfiguration" {
		t.Errorf("notices %+v", n)
	}
	config.LeaveWorkloads = true
	target.Configure(config)
	f.Log()
	check("routes are left alone", "10.244.1.7/32 dev #5 proto 99 scope link metric 1024")
	if log := f.Log(); len(log) != 0 {
		t.Errorf("%q", log)
	}
	if !target.ServesEndpoint(key.Dst, "default/a") {
		t.Error("the workload waits for a route that this program does not make")
	}
	config.Endpoints = nil
	target.Configure(config)
	check("the workload is gone", "10.244.1.7/32 dev #5 proto 99 scope link metric 1024")
	target.forgotten(target.departed())
	config = testConfig()
	config.WorkloadProtocol, config.WorkloadSource4 = 99, addr("10.1.0.5")
	target.Configure(config)
	check("routes are made again", "10.244.1.7/32 dev #5 proto 99 scope link src 10.1.0.5 metric 1024")
}
