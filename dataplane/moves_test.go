package dataplane

import (
	"net"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/packet"
)

const moveUID = "8d6c4c4e-6b29-4c3e-9d6e-2a7d8f0b1c5a"

func moveObject(phase, source string) *model.Object {
	m := &model.VirtualMachineInstanceMigration{}
	m.Namespace, m.Name, m.UID = "default", "m", moveUID
	m.Spec.VMIName, m.Status.Phase = "db", phase
	m.Status.MigrationState = &model.VirtualMachineMigrationState{SourcePod: source}
	return object(model.Key{Kind: model.KindMigration, Namespace: "default", Name: "m"}, m)
}

// launcher is the pod to which the machine moves.
func launcher() *model.Object {
	o := endpointObject("db", "node-1", "cali1", "10.244.2.7/32", "fd10::2:7/128")
	w := o.Value.(*model.WorkloadEndpoint)
	w.Namespace, w.Spec.Pod = "default", "virt-launcher-db-2"
	w.Labels = map[string]string{model.LabelMigrationJob: moveUID, "vmi.kubevirt.io/id": "db"}
	return o
}

// A virtual machine moves here, runs here, and moves on, as the kernel's routes show it. A restart in the middle
// changes nothing.
func TestAVirtualMachineMoves(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	port := packet.Open(t, h.name, "cali1p")
	felix := &model.FelixConfiguration{}
	felix.Spec.LiveMigrationRouteConvergenceTime = &metav1.Duration{Duration: 3 * time.Second}
	state := func(objects ...*model.Object) model.Set {
		return model.NewSet(append(objects, launcher(), nodeObject("node-1", "10.1.0.5/24", "fd01::5/64"),
			nodeObject("node-2", "10.1.0.9/24", "fd01::9/64"), poolObject("v4", "10.244.0.0/16", ""),
			poolObject("v6", "fd10::/48", ""),
			object(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))...)
	}
	others := []locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9"), learned("fd10::2:0/122", 1024, "fd01::9")}
	const block4, block6 = "10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
		"fd10::2:0/122 via fd01::9 dev eth0 proto bird metric 1024 pref medium"

	a, stop := h.agent()
	a.set(state(moveObject("Scheduling", "")))
	a.synced(true, true)
	a.Learn(others)
	h.eventually("-4", defaultRoute, block4)
	h.eventually("-6", block6)
	settle(t, a)
	row, _ := a.Route(netip.MustParsePrefix("10.244.2.7/32"))
	if row.Phase != reconcile.Blocked || row.Reason !=
		"WorkloadEndpoint default/db is a virtual machine that moves here, and does not run here yet" {
		t.Errorf("%+v", row)
	}

	machine := netip.MustParseAddr("10.244.2.7")
	port.Send(t, packet.ARP(t, net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}, machine, machine))
	const new4, new6 = "10.244.2.7 dev cali1 proto 80 scope link metric 512",
		"fd10::2:7 dev cali1 proto 80 metric 512 pref medium"
	h.eventually("-4", defaultRoute, block4, new4)
	h.eventually("-6", block6, new6)
	stop()
	a, _ = h.agent()
	events := countRouteEvents(t, h.open())
	a.set(state(moveObject("Running", "virt-launcher-db-1")))
	a.Learn(others)
	a.synced(true, true)
	settle(t, a)
	h.eventually("-4", defaultRoute, block4, new4)
	if n := events(); n != 0 {
		t.Errorf("%d changes of routes at a restart", n)
	}
	a.set(state(moveObject("Succeeded", "virt-launcher-db-1")))
	h.eventually("-4", defaultRoute, block4, "10.244.2.7 dev cali1 proto 80 scope link metric 1024")
	h.eventually("-6", block6, "fd10::2:7 dev cali1 proto 80 metric 1024 pref medium")

	// It moves on: as soon as another node has a route that comes before ordinary ones, the packets go there.
	away := moveObject("Running", "virt-launcher-db-2")
	away.Value.(*model.VirtualMachineInstanceMigration).UID = "another"
	a.set(state(away))
	a.Learn([]locrib.Route{learned("10.244.2.7/32", 1024, "10.1.0.9")}) // not before ordinary ones
	settle(t, a)
	h.eventually("-4", defaultRoute, block4, "10.244.2.7 dev cali1 proto 80 scope link metric 1024")
	a.Learn([]locrib.Route{learned("10.244.2.7/32", 512, "10.1.0.9")})
	h.eventually("-4", defaultRoute, block4, "10.244.2.7 via 10.1.0.9 dev eth0 proto bird metric 512")
	row, _ = a.Route(netip.MustParsePrefix("10.244.2.7/32"))
	if row.Source != route.SourceBGP || row.Phase != reconcile.Applied {
		t.Errorf("%+v", row)
	}
}
