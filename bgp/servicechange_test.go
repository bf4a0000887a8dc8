package bgp

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

func slice(service string, endpoints ...model.Endpoint) *model.Object {
	s := &model.EndpointSlice{AddressType: "IPv4", Endpoints: endpoints}
	s.Labels = map[string]string{model.LabelServiceName: service}
	return model.NewObject(model.Key{Kind: model.KindEndpointSlice, Namespace: "d", Name: service + "-1"}, s)
}

// endpoint is an endpoint on a node, with its conditions: "ready", "terminating", "serving" (ready is false).
func endpoint(node string, conditions ...string) model.Endpoint {
	e := model.Endpoint{NodeName: &node}
	yes, no := true, false
	for _, c := range conditions {
		switch c {
		case "ready":
			e.Conditions.Ready = &yes
		case "unready":
			e.Conditions.Ready = &no
		case "terminating":
			e.Conditions.Terminating = &yes
		case "stays":
			e.Conditions.Terminating = &no
		}
	}
	return e
}

// A service with externalTrafficPolicy Local is withdrawn when its last local endpoint begins to terminate: the
// endpoint serves packets in flight, and later packets go to nodes with other endpoints.
func TestAddressIsWithdrawnBeforeTheLastEndpointEnds(t *testing.T) {
	objects := world(t, v4node("a", "10.192.0.2"), `config default {"serviceLoadBalancerIPs":[{"cidr":"80.0.0.0/8"}]}`)
	local := &model.Service{Spec: model.ServiceSpec{Type: model.ServiceLoadBalancer, ClusterIP: "10.96.0.1",
		IPFamilies: []string{"IPv4"}, ExternalTrafficPolicy: model.TrafficPolicyLocal}}
	local.Status.LoadBalancer.Ingress = []model.LoadBalancerIngress{{IP: "80.1.2.3"}}
	objects = append(objects, model.NewObject(model.Key{Kind: model.KindService, Namespace: "d", Name: "s"}, local))
	for _, c := range []struct {
		rule      string
		endpoints []model.Endpoint
		want      bool
	}{
		{"ready by default", []model.Endpoint{endpoint("a")}, true},
		{"ready, and stays", []model.Endpoint{endpoint("a", "ready", "stays")}, true},
		{"terminates, and is not ready as always then", []model.Endpoint{endpoint("a", "unready", "terminating")},
			false},
		{"terminates, of a service that publishes what is not ready",
			[]model.Endpoint{endpoint("a", "ready", "terminating")},
			false},
		{"one of two terminates", []model.Endpoint{endpoint("a", "ready", "terminating"), endpoint("a", "ready")},
			true},
		{"the other one is elsewhere", []model.Endpoint{endpoint("a", "ready", "terminating"), endpoint("b", "ready")},
			false},
	} {
		set := model.NewSet(append(slices.Clone(objects), slice("s", c.endpoints...))...)
		if got := slices.Contains(originated(Compute(Input{Reader: set, Node: "a"})), "80.1.2.3/32"); got != c.want {
			t.Errorf("%s: announced %t, want %t", c.rule, got, c.want)
		}
	}
}

// Changes that servicesMatter ignores do not change the result.
func TestChangesThatDoNotMatterMakeNoDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	skipped, counted := 0, 0
	for _, config := range []string{`{}`, `{"serviceExternalIPs":[{"cidr":"10.1.0.0/16"}]}`,
		`{"serviceLoadBalancerIPs":[{"cidr":"80.0.0.0/8"}],"serviceLoadBalancerAggregation":"Disabled"}`} {
		set := model.NewSet(world(t, v4node("a", "10.192.0.2"), "config default "+config)...)
		before := Compute(Input{Reader: set, Node: "a"})
		for range 1000 {
			next := maps.Clone(set)
			o := randomChange(r)
			old := set.Get(o.Key)
			after := o
			if old != nil && r.IntN(4) == 0 {
				after = nil
				delete(next, o.Key)
			} else {
				next[o.Key] = o
			}
			now := Compute(Input{Reader: next, Node: "a"})
			if before.servicesMatter(old, after) {
				counted++
			} else if skipped++; !reflect.DeepEqual(before, now) {
				t.Fatalf("%s, %v becomes %v:\n%+v\n%+v", o.Key, old, after, before, now)
			}
			set, before = next, now
		}
	}
	if skipped < 500 || counted < 500 {
		t.Errorf("%d changes matter, %d do not: want many of both", counted, skipped)
	}
}

func randomChange(r *rand.Rand) *model.Object {
	name := fmt.Sprintf("s%d", r.IntN(3))
	if r.IntN(3) == 0 {
		v := &model.Service{Spec: model.ServiceSpec{Type: model.ServiceLoadBalancer, ClusterIP: "10.96.0.1",
			ExternalTrafficPolicy: []string{"Local", "Cluster"}[r.IntN(2)]}}
		v.Spec.ExternalIPs = []string{fmt.Sprintf("10.1.0.%d", r.IntN(3))}
		v.Status.LoadBalancer.Ingress = []model.LoadBalancerIngress{{IP: fmt.Sprintf("80.0.0.%d", r.IntN(3))}}
		return model.NewObject(model.Key{Kind: model.KindService, Namespace: "d", Name: name}, v)
	}
	var list []model.Endpoint
	for range r.IntN(4) {
		conditions := [][]string{nil, {"unready"}, {"ready", "terminating"}, {"ready"}}[r.IntN(4)]
		list = append(list, endpoint([]string{"a", "b", "c"}[r.IntN(3)], conditions...))
	}
	o := slice(name, list...)
	o.Key.Name = fmt.Sprintf("slice-%d", r.IntN(4))
	return o
}

// One endpoint of another node is added or removed in a cluster of 2,000 services with 30 endpoints each, some of them
// on this node. The cost must be that of one slice, not that of all services.
func BenchmarkSliceChangeOf2000Services(b *testing.B) {
	objects := world(b, v4node("a", "10.192.0.2"), `config default {"serviceLoadBalancerIPs":[{"cidr":"80.0.0.0/8"}]}`)
	var slices [2]*model.Object
	for i := range 2000 {
		name := fmt.Sprintf("s%d", i)
		v := &model.Service{Spec: model.ServiceSpec{Type: model.ServiceLoadBalancer,
			ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), ExternalTrafficPolicy: model.TrafficPolicyLocal}}
		objects = append(objects, model.NewObject(model.Key{Kind: model.KindService, Namespace: "d", Name: name}, v))
		var list []model.Endpoint
		for k := range 30 {
			list = append(list, endpoint(fmt.Sprintf("n%d", k), "ready"))
		}
		slices[1] = slice(name, list[1:]...)
		slices[0] = slice(name, list...)
		objects = append(objects, slices[0])
	}
	set := model.NewSet(objects...)
	d := Compute(Input{Reader: set, Node: "a"})
	b.Run("decided by the slice", func(b *testing.B) {
		for b.Loop() {
			if d.servicesMatter(slices[0], slices[1]) {
				b.Fatal("it matters")
			}
		}
	})
	b.Run("decided by all", func(b *testing.B) {
		for b.Loop() {
			Compute(Input{Reader: set, Node: "a"})
		}
	})
}
