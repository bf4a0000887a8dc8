package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

func TestExcludedInterfaces(t *testing.T) {
	names := []string{"eth0", "veth", "veth1", "kube-ipvs0", "a.b", "axb"}
	for _, c := range []struct {
		text string
		want string
		bad  int
	}{
		{"", "kube-ipvs0", 0},
		{"veth, a.b", "veth a.b", 0},
		{"/^veth/,eth0", "eth0 veth veth1", 0},
		{"/[/,/eth/,/(/", "eth0 veth veth1", 2},
		{"/,//,,", "", 0},
	} {
		f := &model.FelixConfigurationSpec{}
		f.InterfaceExclude = c.text
		list, bad := excludedBy(f)
		excluded := list.matcher()
		got := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !excluded(name) })
		if strings.Join(got, " ") != c.want || len(bad) != c.bad {
			t.Errorf("%q excludes %q, want %q; bad: %q", c.text, got, c.want, bad)
		}
	}
}

// As in Felix an excluded interface has no host endpoint of its own, and that of "*" stands for it.
func TestExcludedInterfacesHaveNoHostEndpoint(t *testing.T) {
	away, here := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")
	byAddress := hostEndpoint("")
	byAddress.Value.(*v3.HostEndpoint).Spec.ExpectedIPs = []string{here.String()}
	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	felix.Spec.InterfaceExclude = "eth0"
	key := model.ResourceKey(model.KindFelixConfiguration, "default")
	for _, c := range []struct {
		name     string
		endpoint *model.Object
		filtered bool
	}{{"by name", hostEndpoint("eth0"), false}, {"by address", byAddress, false}, {"all", hostEndpoint("*"), true}} {
		set := model.NewSet(c.endpoint)
		calculator := Build(Config{Node: testNode}, set, map[string][]netip.Addr{"eth0": {here}})
		for _, step := range []struct {
			excluded bool
			want     bool
		}{{false, true}, {true, c.filtered}, {false, true}} {
			delete(set, key)
			if step.excluded {
				set[key] = model.NewObject(key, felix)
			}
			calculator.Update(set, key)
			host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
			got := calculator.Table().EvalInput(host, ruleset.Packet{In: "eth0", Source: away, Destination: here,
				Protocol: 6, SourcePort: 1025, DestinationPort: 80}, nil)
			if got.Accepted() == step.want {
				t.Errorf("%s, excluded %t: filtered %t", c.name, step.excluded, !got.Accepted())
			}
		}
	}
}
