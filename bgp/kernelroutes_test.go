package bgp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// A route of the kernel goes to all peers if it lies in a pool, to those whose filters accept it otherwise, and to none
// if it is inside an own block, in a pool with disableBGPExport, or to a workload with the protocol of Manx' own. Its
// metric is its priority. It comes behind what BGP has learned, but for a connected network.
func TestKernelRoutes(t *testing.T) {
	objects := world(t, `felix default {"deviceRouteProtocol":3}`, `node a {"bgp":{"ipv4Address":"10.0.0.1/24"}}`,
		`pool p {"cidr":"10.1.0.0/16"}`,
		`pool hidden {"cidr":"10.2.0.0/16","disableBGPExport":true}`, "block a 10.1.0.0/26 confirmed",
		`config default {"nodeToNodeMeshEnabled":false,"ignoredInterfaces":["docker*"]}`,
		`filter f {"exportV4":[{"action":"Accept","cidr":"0.0.0.0/0","matchOperator":"Equal"},`+
			`{"action":"Accept","interface":"eth9"}]}`,
		`peer tor {"peerIP":"10.9.9.9","asNumber":65100,"filters":["f"]}`)
	k := func(p, name string, metric uint32, connected bool) KernelRoute {
		return KernelRoute{Prefix: netip.MustParsePrefix(p), Interface: name, Metric: metric, Connected: connected}
	}
	d := Compute(Input{Reader: model.NewSet(objects...), Node: "a", Kernel: []KernelRoute{
		k("0.0.0.0/0", "eth0", 100, false), k("10.0.0.0/24", "eth0", 0, true), k("10.1.0.0/26", "eth0", 7, false),
		k("10.1.0.5/32", "eth0", 0, false), k("10.1.4.0/24", "eth0", 0, false), k("10.1.5.0/24", "docker0", 0, true),
		k("10.1.6.0/24", "docker0", 50, false), k("10.1.7.0/24", "cali1", 0, true), k("10.1.8.0/24", "tunl0", 0, false),
		k("10.1.9.0/24", "eth1", 0, true), k("10.1.10.0/24", "kube-ipvs0", 0, true), k("10.2.0.0/24", "eth0", 0, false),
		k("10.3.0.0/24", "eth9", 0, true), k("10.1.11.0/24", "", 1<<32-1, false),
		{Prefix: netip.MustParsePrefix("10.1.12.9/32"), Interface: "cali1", Protocol: 3},
		{Prefix: netip.MustParsePrefix("10.1.13.0/24"), Interface: "cali1", Protocol: 4},
	}})
	got := ""
	for _, o := range d.Originated {
		got += fmt.Sprintf("%s %q %d only=%t kernel=%t yields=%t\n", o.Prefix, o.Interface, MaxPriority-o.LocalPref,
			o.FilterOnly, o.Kernel, o.Yields)
	}
	const want = `0.0.0.0/0 "eth0" 100 only=true kernel=true yields=true
10.1.0.0/26 "" 1024 only=false kernel=false yields=false
10.1.4.0/24 "eth0" 0 only=false kernel=true yields=true
10.1.6.0/24 "docker0" 50 only=false kernel=true yields=true
10.1.9.0/24 "eth1" 1024 only=false kernel=true yields=false
10.1.11.0/24 "" 2147483646 only=false kernel=true yields=true
10.1.13.0/24 "cali1" 0 only=false kernel=true yields=true
10.3.0.0/24 "eth9" 1024 only=true kernel=true yields=false
`
	if got != want {
		t.Errorf("%s want\n%s", got, want)
	}
}
