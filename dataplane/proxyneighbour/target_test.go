package proxyneighbour

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/datastore/model"
)

type rig struct {
	*testing.T
	kernel   *kerneltest.Kernel
	target   *Target
	now      time.Time
	routes   map[string]bool // to addresses
	pools    map[string]model.IPPoolSpec
	networks []string // of the workload
	on       string
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, kernel: kerneltest.New(), now: time.Unix(1000, 0), on: "PodsAndLoadBalancers",
		routes: map[string]bool{"10.1.0.200": true, "fd01::200": true}, pools: map[string]model.IPPoolSpec{
			"near": {CIDR: "10.1.0.192/26"}, "near6": {CIDR: "fd01::/64"}, "far": {CIDR: "10.244.0.0/16"}},
		networks: []string{"10.1.0.200/32", "fd01::200/128"}}
	r.kernel.PutLink(kernel.Link{Index: 1, Name: "lo", Up: true})
	r.kernel.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true})
	r.kernel.PutLink(kernel.Link{Index: 3, Name: "cali1", Up: true})
	r.kernel.PutSysctl("net/ipv6/conf/eth0/proxy_ndp", "1")
	for link, text := range map[int]string{1: "10.1.0.1/16", 2: "10.1.0.5/24", 3: "10.1.0.6/24"} {
		r.kernel.PutAddress(kernel.Address{Link: link, Prefix: netip.MustParsePrefix(text)})
	}
	r.kernel.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("fd01::5/64")})
	routed := func(k model.Key, p netip.Prefix) bool { return k.Name == "w" && r.routes[p.Addr().String()] }
	r.target = New(r.kernel, routed, func() time.Time { return r.now })
	return r
}

// step passes a state with these workloads to the target, and compares the changes.
func (r *rig) step(want ...string) {
	r.Helper()
	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	felix.Spec.LocalSubnetL2Reachability = &r.on
	objects := model.NewSet(model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
	k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"}
	objects[k] = model.NewObject(k, &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1",
		InterfaceName: "cali1", IPNetworks: r.networks}})
	for name, spec := range r.pools {
		k := model.ResourceKey(model.KindIPPool, name)
		objects[k] = model.NewObject(k, &model.IPPool{Spec: spec})
	}
	h := hoststate.New("n1", nil)
	h.Take(hoststate.State{Reader: objects, All: true, DatastoreSynced: true})
	r.target.SetState(h)
	r.flush(want...)
}

func (r *rig) flush(want ...string) {
	r.Helper()
	if _, _, err := r.target.Flush(); err != nil {
		r.Fatal(err)
	}
	log := r.kernel.Log()
	slices.Sort(log)
	if !slices.Equal(log, want) {
		r.Fatalf("changes are %q, want %q", log, want)
	}
}

const (
	four, six     = "proxy 10.1.0.200 dev #2", "proxy fd01::200 dev #2"
	noFour, noSix = "no " + four, "no " + six
	heed          = "sysctl net/ipv6/conf/eth0/proxy_ndp=1"
)

// The host answers for addresses in pools without encapsulation, on the subnets that have them, while it has routes.
func TestAddressesThatAreAnswered(t *testing.T) {
	r := newRig(t)
	r.on = "Disabled"
	r.step()
	r.on = "PodsAndLoadBalancers"
	r.step(four, six, heed)
	delete(r.routes, "10.1.0.200")
	r.flush(noFour)
	r.routes["10.1.0.200"] = true
	r.flush(four)
	r.pools["near"] = model.IPPoolSpec{CIDR: "10.1.0.192/26", VXLANMode: v3.VXLANModeCrossSubnet}
	r.step(noFour)
	r.pools["near"] = model.IPPoolSpec{CIDR: "10.1.0.192/26"}
	r.step(four)
	r.networks = []string{"10.1.0.200/32", "10.244.0.7/32", "10.1.0.9/32"} // the last one is in no pool
	r.routes["10.244.0.7"], r.routes["10.1.0.9"] = true, true
	r.step(noSix)
	r.on = "Disabled"
	r.step(noFour)
}

// Entries of other programs are used and stay. Those of earlier runs go, and those that others remove come back.
func TestEntriesOfOthers(t *testing.T) {
	r := newRig(t)
	for a, own := range map[string]bool{"10.1.0.200": false, "10.1.0.77": false, "10.1.0.78": true} {
		r.kernel.PutProxyNeighbour(kernel.ProxyNeighbour{Link: 2, Address: netip.MustParseAddr(a), Own: own})
	}
	r.step("no proxy 10.1.0.78 dev #2", six, heed)
	r.kernel.PutSysctl("net/ipv6/conf/eth0/proxy_ndp", "0")
	r.now = r.now.Add(time.Minute)
	r.flush(heed)
	r.networks = nil
	r.step(noSix)
	all, err := r.kernel.ListProxyNeighbours()
	if err != nil || len(all) != 2 {
		t.Errorf("%v %v", all, err)
	}
}

// An interface or an address that comes later, or goes, is followed.
func TestInterfacesAreFollowed(t *testing.T) {
	r := newRig(t)
	r.step(four, six, heed)
	a := kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("10.1.0.5/24")}
	if err := r.kernel.DeleteAddress(a); err != nil {
		t.Fatal(err)
	}
	r.kernel.Log()
	r.target.Handle([]kernel.Event{{Type: kernel.EventAddressGone, Address: a}})
	r.flush(noFour)
	r.kernel.PutAddress(a)
	r.target.Handle([]kernel.Event{{Type: kernel.EventAddress, Address: a}})
	r.flush(four)
}

// A pool of services on the subnet is a notice: nobody answers for its addresses.
func TestServicesAreANotice(t *testing.T) {
	r := newRig(t)
	r.pools["services"] = model.IPPoolSpec{CIDR: "10.1.0.128/26",
		AllowedUses: []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseLoadBalancer}}
	r.step(four, six, heed)
	notices := r.target.Notices()
	if len(notices) != 1 || notices[0].Subject != "IPPool services" || !strings.Contains(notices[0].Text, "nobody") {
		t.Errorf("%+v", notices)
	}
	r.on = "Disabled"
	r.step(noFour, noSix)
	if notices := r.target.Notices(); len(notices) != 0 {
		t.Errorf("%+v", notices)
	}
}
