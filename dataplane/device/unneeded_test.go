package device

import (
	"slices"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
)

// The VXLAN device is deleted once no pool, no route and no other node needs it, also one that an earlier run left.
func TestAnUnneededDeviceIsDeleted(t *testing.T) {
	pool := &model.IPPool{}
	pool.Spec.CIDR, pool.Spec.VXLANMode = "10.244.0.0/16", v3.VXLANModeAlways
	own := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"},
		IPv4VXLANTunnelAddr: "10.244.1.1"}}
	own.Name = "n1"
	f := testKernel()
	set := model.NewSet(model.NewObject(model.ResourceKey(model.KindIPPool, "p"), pool),
		model.NewObject(model.ResourceKey(model.KindNode, "n1"), own))
	routes, now := true, time.Unix(1e9, 0)
	target := New(f, func() time.Time { return now }, zap.NewNop())
	target.FollowRoutes(func(device string) bool { return routes && device == model.DeviceVXLAN })
	host := hoststate.New("n1", nil)
	step := func(what string, synced, there bool) {
		t.Helper()
		host.Take(hoststate.State{Reader: set, All: true, DatastoreSynced: synced})
		target.SetState(host)
		now = now.Add(time.Minute)
		if _, failures, err := target.Flush(); err != nil || failures > 0 {
			t.Fatal(what, failures, err, target.Rows())
		}
		links, _ := f.ListLinks()
		if slices.ContainsFunc(links, func(l kernel.Link) bool { return l.Name == model.DeviceVXLAN }) != there {
			t.Errorf("%s: is there: %t", what, !there)
		}
	}
	step("a pool", true, true)
	pool.Spec.VXLANMode = v3.VXLANModeNever
	step("no pool, others may send", true, true)
	own.Spec.IPv4VXLANTunnelAddr = ""
	step("no address, a route", true, true)
	routes = false
	step("not in sync", false, true)
	step("nothing", true, false)
	step("and again", true, false)

	f.PutLink(kernel.Link{Index: 9, Name: model.DeviceVXLAN, Kind: "vxlan", Up: true, MTU: 1450})
	target = New(f, func() time.Time { return now }, zap.NewNop())
	step("left by an earlier run, not in sync", false, true)
	disabled := false
	felix := &model.FelixConfiguration{}
	felix.Spec.VXLANEnabled = &disabled
	key := model.ResourceKey(model.KindFelixConfiguration, "default")
	set[key] = model.NewObject(key, felix)
	step("switched off: as before", true, true)
	delete(set, key)
	delete(set, model.ResourceKey(model.KindNode, "n1"))
	step("no Node", true, true)
	set[model.ResourceKey(model.KindNode, "n1")] = model.NewObject(model.ResourceKey(model.KindNode, "n1"), own)
	step("left by an earlier run", true, false)
}
