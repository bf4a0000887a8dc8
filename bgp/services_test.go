package bgp

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
)

// serviceCase is a file of testdata/services: documents, and in its first comment the expected result of each node.
type serviceCase struct {
	objects []*model.Object
	own     map[string][]string // originated, by node
	refused map[string][]string // NoInstall, by node
	notices []string
}

func readServiceCase(t *testing.T, file string) serviceCase {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := serviceCase{own: map[string][]string{}, refused: map[string][]string{}}
	var blocks []string
	explained := false // the lines up to an empty comment are for people
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "#")
		if !ok {
			break
		}
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		node, kernel := strings.CutSuffix(strings.TrimPrefix(key, "kernel of "), " refuses")
		switch {
		case !explained || !ok:
			explained = explained || line == ""
		case key == "notice":
			c.notices = append(c.notices, strings.TrimSpace(value))
		case key == "block":
			blocks = append(blocks, "block "+strings.TrimSpace(value))
		case kernel:
			c.refused[node] = sortedTexts(value)
		default:
			c.own[key] = sortedTexts(value)
		}
	}
	if c.objects, err = document.Parse(text); err != nil {
		t.Fatal(err)
	}
	c.objects = append(c.objects, world(t, blocks...)...)
	return c
}

func sortedTexts(line string) []string {
	var ps []netip.Prefix
	for _, f := range strings.Fields(line) {
		ps = append(ps, netip.MustParsePrefix(f))
	}
	return texts(sortedPrefixes(ps))
}

func texts(ps []netip.Prefix) []string {
	var out []string
	for _, p := range ps {
		out = append(out, p.String())
	}
	return out
}

func originated(d Desired) []string {
	var out []string
	for _, o := range d.Originated {
		out = append(out, o.Prefix.String())
	}
	return out
}

func serviceFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/services/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	return files
}

func TestServices(t *testing.T) {
	for _, file := range serviceFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c := readServiceCase(t, file)
			if len(c.own) == 0 {
				t.Fatal("nothing is expected")
			}
			for node, want := range c.own {
				d := Compute(Input{Reader: model.NewSet(c.objects...), Node: node})
				equalLines(t, "announced by "+node, originated(d), want)
				for _, o := range d.Originated {
					if o.Blackhole != (o.Prefix.String() == "10.9.0.0/26") || o.Shared == o.Blackhole {
						t.Errorf("%s: a service must not get a blackhole in the kernel: %+v", node, o)
					}
				}
				if refused, ok := c.refused[node]; ok {
					equalLines(t, "refused by the kernel of "+node, texts(d.NoInstall), refused)
				}
				wantNotices(t, d, c.notices...)
			}
		})
	}
}

// The result depends only on the present services and slices, not on their order or on deleted ones.
func TestServicesComeAndGoInAnyOrder(t *testing.T) {
	for _, file := range serviceFiles(t) {
		c := readServiceCase(t, file)
		r := rand.New(rand.NewPCG(1, 1))
		for node := range c.own {
			want := Compute(Input{Reader: model.NewSet(c.objects...), Node: node})
			for range 20 {
				other := slices.Clone(c.objects)
				r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
				if got := Compute(Input{Reader: shuffled{other}, Node: node}); !reflect.DeepEqual(got, want) {
					t.Fatalf("%s, node %s:\n got  %+v\n want %+v", file, node, got, want)
				}
			}
		}
	}
}

// One of several slices is deleted: the others decide.
func TestDeletedSlice(t *testing.T) {
	all := model.NewSet(readServiceCase(t, "testdata/services/static-routes.yaml").objects...)
	announces := func(node string, without ...string) bool {
		set := maps.Clone(all)
		for _, name := range without {
			delete(set, model.Key{Kind: model.KindEndpointSlice, Namespace: "default", Name: name})
		}
		return slices.Contains(originated(Compute(Input{Reader: set, Node: node})), "fd00:96::105/128")
	}
	for _, c := range []struct {
		node    string
		without []string
		want    bool
	}{
		{"kube-master", nil, true},
		{"kube-master", []string{"dual-6"}, true},
		{"kube-master", []string{"dual-4"}, false},
		{"kube-node-1", []string{"dual-4"}, true},
		{"kube-node-1", []string{"dual-4", "dual-6"}, false},
	} {
		if got := announces(c.node, c.without...); got != c.want {
			t.Errorf("%s without %v announces: %v, want %v", c.node, c.without, got, c.want)
		}
	}
}

func TestSameAddressOfTwoServices(t *testing.T) {
	all := model.NewSet(readServiceCase(t, "testdata/services/single-addresses.yaml").objects...)
	for _, gone := range [][]string{{"external"}, {"twice"}, {"external", "twice"}} {
		set := maps.Clone(all)
		for _, name := range gone {
			delete(set, model.Key{Kind: model.KindService, Namespace: "default", Name: name})
		}
		got := slices.Contains(originated(Compute(Input{Reader: set, Node: "a"})), "198.51.100.20/32")
		if want := len(gone) == 1; got != want {
			t.Errorf("without %v the shared address is announced: %v, want %v", gone, got, want)
		}
	}
}

func TestClusterIPsSetting(t *testing.T) {
	objects := world(t, v4node("a", "10.192.0.2"),
		`config default {"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}],"prefixAdvertisements":[{"cidr":"10.97.0.0/16","communities":["65000:7"]}]}`)
	for _, c := range []struct {
		setting string
		want    []string
		notices []string
	}{
		{"", []string{"10.96.0.0/12"}, []string{"no Service is known"}},
		{"10.97.0.0/16", []string{"10.97.0.0/16"}, []string{"no Service is known"}},
		{"10.97.0.0/16, fd00:97::/112", []string{"10.97.0.0/16", "fd00:97::/112"}, []string{"no Service is known"}},
		{"10.97.0.0", nil, []string{`Node/a: CALICO_ADVERTISE_CLUSTER_IPS: "10.97.0.0" is ignored`}},
	} {
		d := Compute(Input{Reader: model.NewSet(objects...), Node: "a", ClusterIPs: c.setting})
		equalLines(t, fmt.Sprintf("with %q", c.setting), originated(d), c.want)
		wantNotices(t, d, c.notices...)
		for _, o := range d.Originated {
			if tagged := len(o.Communities) == 1; tagged != (o.Prefix.String() == "10.97.0.0/16") ||
				o.LocalPref != MaxPriority-NormalPriority {
				t.Errorf("%+v", o)
			}
		}
	}
}

// The learned routes that a node may pass on: routes inside its own services, and on a route reflector those of all
// services.
func TestServicesOfOthersArePassedOn(t *testing.T) {
	config := `config default {"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}],"serviceLoadBalancerIPs":[{"cidr":"80.15.0.0/24"}],"serviceExternalIPs":[{"cidr":"203.0.113.7/32"}]}`
	excluded := `@{"node.kubernetes.io/exclude-from-external-load-balancers":"true"}`
	for _, c := range []struct {
		rule string
		node string
		want string
	}{
		{"ranges that it announces", v4node("a", "10.192.0.2"), "10.96.0.0/12 80.15.0.0/24"},
		{"an excluded node passes nothing on", v4node("a", "10.192.0.2") + excluded, ""},
		{"a reflector", v4node("a", "10.192.0.2", `"routeReflectorClusterID":"10.9.9.9"`),
			"10.96.0.0/12 80.15.0.0/24 203.0.113.7/32"},
		{"an excluded reflector reflects what is for the outside",
			v4node("a", "10.192.0.2", `"routeReflectorClusterID":"10.9.9.9"`) + excluded,
			"80.15.0.0/24 203.0.113.7/32"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			equalLines(t, "passed on", texts(compute(t, "a", c.node, config).ExportPrefixes), sortedTexts(c.want))
		})
	}
}

// For any services and slices, the result is well-formed and the same each time.
func FuzzServices(f *testing.F) {
	f.Add("",
		`{"serviceClusterIPs":[{"cidr":"10.96.0.1/12"}],"serviceExternalIPs":[{"cidr":"::/0"}],"serviceLoadBalancerAggregation":"Disabled"}`,
		`{"type":"LoadBalancer","clusterIP":"10.96.0.1","externalIPs":["fe80::1%eth0","::ffff:1.2.3.4"],"ipFamilies":["IPv6"]}`, `{"addressType":"IPv4","endpoints":[{"nodeName":"a"}]}`)
	f.Add("::ffff:10.0.0.0/100,,x", `{"serviceLoadBalancerIPs":[{"cidr":"::ffff:1.2.3.4/128"}]}`,
		`{"clusterIP":"x","clusterIPs":["None"],"externalTrafficPolicy":"Local"}`,
		`{"addressType":"IPv6","endpoints":[{}]}`)
	f.Fuzz(func(t *testing.T, setting, config, service, slice string) {
		set := model.Set{}
		for _, x := range []struct {
			key model.Key
			raw string
		}{{model.ResourceKey(model.KindNode, "a"),
			`{"metadata":{"name":"a"},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64"}}}`},
			{model.ResourceKey(model.KindBGPConfiguration, "default"), `{"spec":` + config + `}`},
			{model.Key{Kind: model.KindService, Namespace: "d", Name: "s"}, `{"spec":` + service +
				`,"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"},{"ip":"x"}]}}}`},
			{model.Key{Kind: model.KindEndpointSlice, Namespace: "d", Name: "s-1"}, slice}} {
			if o, err := unchecked(x.key, x.raw); err == nil {
				if s, ok := o.Value.(*model.EndpointSlice); ok {
					s.Labels = map[string]string{model.LabelServiceName: "s"}
				}
				set[o.Key] = o
			}
		}
		in := Input{Reader: set, Node: "a", ClusterIPs: setting}
		d := Compute(in)
		checkWellFormed(t, d)
		if again := Compute(in); !reflect.DeepEqual(d, again) {
			t.Errorf("not the same twice:\n%+v\n%+v", d, again)
		}
		for _, p := range slices.Concat(d.NoInstall, d.ExportPrefixes, d.NoExportPrefixes) {
			if p != p.Masked() || p.Addr().Is4In6() {
				t.Errorf("bad prefix %s", p)
			}
		}
	})
}

// The shape of a large cluster: 5,000 services with two slices of 50 endpoints each.
func BenchmarkComputeServices5000(b *testing.B) {
	all := shuffled{world(b, v4node("a", "10.192.0.2"),
		`config default {"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}],"serviceLoadBalancerIPs":[{"cidr":"80.0.0.0/8"}]}`)}
	for i := range 5000 {
		name := fmt.Sprintf("s%d", i)
		all.objects = append(all.objects,
			model.NewObject(model.Key{Kind: model.KindService, Namespace: "d", Name: name},
				&model.Service{Spec: model.ServiceSpec{
					Type: model.ServiceLoadBalancer, ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255),
					IPFamilies: []string{"IPv4"}, ExternalTrafficPolicy: model.TrafficPolicyLocal}}))
		for j := range 2 {
			s := &model.EndpointSlice{AddressType: "IPv4"}
			s.Labels = map[string]string{model.LabelServiceName: name}
			for k := range 50 {
				on := fmt.Sprintf("n%d", k)
				if i%2+j+k == 0 {
					on = "a"
				}
				s.Endpoints = append(s.Endpoints, model.Endpoint{NodeName: &on})
			}
			all.objects = append(all.objects,
				model.NewObject(model.Key{Kind: model.KindEndpointSlice, Namespace: "d",
					Name: fmt.Sprintf("%s-%d", name, j)}, s))
		}
	}
	for b.Loop() {
		if d := Compute(Input{Reader: all, Node: "a"}); len(d.Originated) != 2502 {
			b.Fatal(len(d.Originated))
		}
	}
}
