package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

func workloadAt(name, iface, address string) *model.Object {
	w := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	w.Spec = model.WorkloadEndpointSpec{Node: testNode, InterfaceName: iface, IPNetworks: []string{address},
		AllowSpoofedSourcePrefixes: []string{"0.0.0.0/0"},
		QoSControls:                &model.QoSControls{IngressPacketRate: 10, EgressMaxConnections: 3}}
	return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: name}, w)
}

// The table has only workloads' interfaces. The reason is reported for an endpoint that names another interface. A
// change of interfacePrefix takes effect on the present endpoints.
func TestOnlyWorkloadsInterfacesAreInTheTable(t *testing.T) {
	c := New(Config{Node: testNode})
	set := model.NewSet(workloadAt("good", "cali1", "10.0.0.1/32"))
	c.Update(set)
	clean, err := text(c.Table())
	if err != nil {
		t.Fatal(err)
	}
	for i, iface := range []string{"eth0", "lo", "tunl0", "all", "tap1"} {
		o := workloadAt("forged-"+iface, iface, "10.0.1."+string(rune('1'+i))+"/32")
		set[o.Key] = o
		c.Update(set, o.Key)
	}
	if got, err := text(c.Table()); err != nil || got != clean {
		t.Errorf("the table has changed:\n%s\nbefore:\n%s", got, clean)
	}
	bad := map[string]string{}
	for k, reason := range c.Bad() {
		bad[k.Name] = reason
	}
	if len(bad) != 5 || !strings.Contains(bad["forged-eth0"], `interfaceName "eth0" does not begin with "cali"`) ||
		!strings.Contains(bad["forged-lo"], "never a workload's") {
		t.Errorf("reasons are %q", bad)
	}

	has := func(iface string) bool { return slices.Contains(slices.Collect(c.Workloads()), iface) }
	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	felix.Spec.InterfacePrefix = "tap"
	f := model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix)
	set[f.Key] = f
	c.Update(set, f.Key)
	if !has("tap1") || has("cali1") || has("eth0") {
		t.Error("the prefix tap has not taken effect")
	}
	if got := c.Unprotected(); got != "" {
		t.Errorf("without an interface: %s", got)
	}
	c.SetInterfaces(map[string][]netip.Addr{"cali1": {netip.MustParseAddr("fe80::1")}, "tap1": nil, "tunl0": nil,
		"eth0": {netip.MustParseAddr("192.0.2.1")}})
	const want = `WorkloadEndpoint shop/good has no policy: its interface cali1 exists and does not begin with "tap" ` +
		`(interfacePrefix of FelixConfiguration/default)`
	if got := c.Unprotected(); got != want {
		t.Errorf("unprotected: %s\nwant %s", got, want)
	}
	delete(set, f.Key)
	c.Update(set, f.Key)
	if got := c.Unprotected(); !strings.HasPrefix(got, "WorkloadEndpoint shop/forged-tap1 ") ||
		!strings.Contains(got, "the default") {
		t.Errorf("unprotected with the default: %s", got)
	}
	if has("tap1") || !has("cali1") {
		t.Error("the prefix cali has not taken effect again")
	}
	fixed := workloadAt("forged-eth0", "cali2", "10.0.1.1/32")
	set[fixed.Key] = fixed
	c.Update(set, fixed.Key)
	for k := range c.Bad() {
		if k == fixed.Key {
			t.Error("the endpoint is still refused with an interface that is a workload's")
		}
	}
	if !has("cali2") {
		t.Error("the mended endpoint has no rules")
	}
}
