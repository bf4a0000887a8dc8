package dataplane

import (
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// A host on the subnet of the node, which has no route, reaches a workload there in both families, while the node
// answers for it. Entries of other programs stay.
func TestStationsOfTheSubnetReachWorkloads(t *testing.T) {
	if _, err := exec.LookPath("ping"); err != nil {
		t.Skip("iputils-ping is not installed")
	}
	node, station, pod := bareHost(t), bareHost(t), bareHost(t)
	node.ip("link add eth0 type veth peer name eth0 netns " + station.name)
	for h, addresses := range map[*host][2]string{node: {"10.1.0.5/24", "fd01::5/64"},
		station: {"10.1.0.9/24", "fd01::9/64"}} {
		h.ip("addr add " + addresses[0] + " dev eth0")
		h.ip("addr add " + addresses[1] + " dev eth0 nodad")
		h.ip("link set eth0 up")
	}
	node.ip("route add default via 10.1.0.1")
	node.ip("neigh add proxy 10.1.0.77 dev eth0")
	node.wire(pod, "10.1.0.200")
	pod.ip("addr add fd01::c8/128 dev eth0 nodad")
	pod.ip("-6 route add default via fe80::ecee:eeff:feee:eeee dev eth0")
	a, _ := node.agent()
	state := func(reachability string) model.Set {
		f := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		f.Spec.LocalSubnetL2Reachability = &reachability
		return model.NewSet(nodeObject("node-1", "10.1.0.5/24", "fd01::5/64"),
			poolObject("four", "10.1.0.192/26", "Never"), poolObject("six", "fd01::c0/122", "Never"),
			blockObject("10.1.0.192/26", model.StateConfirmed),
			endpointObject("pod", "node-1", "cali1", "10.1.0.200/32", "fd01::c8/128"),
			model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), f))
	}
	a.set(state("PodsAndLoadBalancers"))
	a.synced(true, true)
	reached := func(address string) bool {
		return exec.Command("ip", "netns", "exec", station.name, "ping", "-c1", "-W1", address).Run() == nil
	}
	kernel := node.open()
	proxies := func() string { return node.ip("neigh show proxy") + node.ip("-6 neigh show proxy") }
	for _, address := range []string{"10.1.0.200", "fd01::c8"} {
		waitFor(t, "an answer from "+address, func() bool { return reached(address) })
	}
	// Another program removes both, and the setting that IPv6 needs.
	node.ip("neigh del proxy 10.1.0.200 dev eth0")
	if err := kernel.SetSysctl("net/ipv6/conf/eth0/proxy_ndp", "0"); err != nil {
		t.Fatal(err)
	}
	a.Resync()
	waitFor(t, "a repair", func() bool {
		value, _ := kernel.Sysctl("net/ipv6/conf/eth0/proxy_ndp")
		return strings.Contains(proxies(), "10.1.0.200") && value == "1"
	})
	a.set(state("Disabled"))
	waitFor(t, "the entries to leave", func() bool {
		p := proxies()
		return !strings.Contains(p, "10.1.0.200") && !strings.Contains(p, "fd01::c8")
	})
	if p := proxies(); !strings.Contains(p, "10.1.0.77") {
		t.Errorf("another program's entry is gone: %s", p)
	}
	a.set(state("PodsAndLoadBalancers"))
	waitFor(t, "the entries", func() bool { return strings.Contains(proxies(), "fd01::c8") })
	gone := state("PodsAndLoadBalancers")
	for k := range gone {
		if k.Kind == model.KindWorkloadEndpoint {
			delete(gone, k)
		}
	}
	a.set(gone)
	waitFor(t, "the entries to leave with the workload", func() bool {
		p := proxies()
		return !strings.Contains(p, "10.1.0.200") && !strings.Contains(p, "fd01::c8")
	})
	station.ip("neigh flush all")
	if reached("10.1.0.200") {
		t.Error("the workload that is gone answers")
	}
	settle(t, a)
	if s := a.Status(); s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}
