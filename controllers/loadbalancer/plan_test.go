package loadbalancer

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/model"
)

func addrs(texts ...string) (list []netip.Addr) {
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

func aPool(cidr string, manual bool) *model.IPPool {
	p := &model.IPPool{}
	p.Spec.CIDR, p.Spec.AllowedUses = cidr, []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseLoadBalancer}
	if manual {
		m := v3.Manual
		p.Spec.AssignmentMode = &m
	}
	return p
}

func TestDecide(t *testing.T) {
	p := pools{"a": aPool("10.1.0.0/24", false), "b": aPool("10.2.0.0/24", true), "six": aPool("fd00:1::/120", false)}
	dual := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	one := dual[:1]
	for _, test := range []struct {
		name         string
		families     []corev1.IPFamily
		annotations  map[string]string
		ip           string // spec.loadBalancerIP
		shown        string
		have         []netip.Addr
		keep, assign []netip.Addr
		release      []netip.Addr
		num4, num6   int
		problem      string
	}{
		{name: "a new service", families: dual, num4: 1, num6: 1},
		{name: "one that has what it needs", families: dual, have: addrs("10.1.0.1", "fd00:1::1"),
			keep: addrs("10.1.0.1", "fd00:1::1")},
		{name: "one that lacks a family", families: dual, have: addrs("10.1.0.1"), keep: addrs("10.1.0.1"), num6: 1},
		{name: "one that gave up a family", families: one, have: addrs("10.1.0.1", "fd00:1::1"),
			keep: addrs("10.1.0.1"), release: addrs("fd00:1::1")},
		{name: "two leaders gave it one each", families: one, have: addrs("10.1.0.1", "10.1.0.2"),
			keep: addrs("10.1.0.1"), release: addrs("10.1.0.2")},
		{name: "the one that it shows stays", families: one, shown: "10.1.0.2", have: addrs("10.1.0.1", "10.1.0.2"),
			keep: addrs("10.1.0.2"), release: addrs("10.1.0.1")},
		{name: "asked for", families: one, annotations: map[string]string{annotationAddresses: `["10.1.0.9"]`},
			have:    addrs("10.1.0.1"),
			release: addrs("10.1.0.1"), assign: addrs("10.1.0.9")},
		{name: "asked for in the spec", families: one, ip: "10.1.0.9", have: addrs("10.1.0.9"),
			keep: addrs("10.1.0.9")},
		{name: "of a pool", families: one, annotations: map[string]string{annotationPools4: `["b"]`},
			have:    addrs("10.1.0.1"),
			release: addrs("10.1.0.1"), num4: 1},
		{name: "of a pool, by CIDR, has it", families: dual, annotations: map[string]string{
			annotationPools4: `["10.2.0.0/24"]`},
			have: addrs("10.2.0.1", "fd00:1::1"), keep: addrs("10.2.0.1", "fd00:1::1")},
		{name: "no longer of a manual pool", families: one, have: addrs("10.2.0.1"), release: addrs("10.2.0.1"),
			num4: 1},
		{name: "two of a family asked for", families: one, annotations: map[string]string{
			annotationAddresses: `["10.1.0.1","10.1.0.2"]`}, problem: "at most one"},
		{name: "no list", families: one, annotations: map[string]string{annotationAddresses: `10.1.0.1`},
			problem: "JSON"},
		{name: "no address", families: one, annotations: map[string]string{annotationAddresses: `["x"]`},
			problem: "no address"},
		{name: "no such pool", families: one, annotations: map[string]string{annotationPools4: `["c"]`},
			problem: `"c"`},
		{name: "a pool of the other family", families: one, annotations: map[string]string{annotationPools6: `["a"]`},
			problem: "family"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &corev1.Service{}
			s.Annotations, s.Spec.IPFamilies, s.Spec.LoadBalancerIP = test.annotations, test.families, test.ip
			if test.shown != "" {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: test.shown}}
			}
			got, err := decide(s, test.have, p)
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) {
					t.Fatalf("error %v, want one about %s", err, test.problem)
				}
				return
			}
			if err != nil || !slices.Equal(got.keep, test.keep) || !slices.Equal(got.release, test.release) ||
				!slices.Equal(got.assign, test.assign) || got.num4 != test.num4 || got.num6 != test.num6 {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestManaged(t *testing.T) {
	own, other := class, "example.test/other"
	for _, test := range []struct {
		name           string
		typ            corev1.ServiceType
		class          *string
		annotation     string
		all, requested bool
	}{
		{"plain", corev1.ServiceTypeLoadBalancer, nil, "", true, false},
		{"of Calico's class", corev1.ServiceTypeLoadBalancer, &own, "", true, true},
		{"of another class", corev1.ServiceTypeLoadBalancer, &other, `["a"]`, false, false},
		{"that asks", corev1.ServiceTypeLoadBalancer, nil, `["a"]`, true, true},
		{"that is no load balancer", corev1.ServiceTypeNodePort, nil, `["a"]`, false, false},
	} {
		s := &corev1.Service{}
		s.Spec.Type, s.Spec.LoadBalancerClass = test.typ, test.class
		if test.annotation != "" {
			s.Annotations = map[string]string{annotationPools4: test.annotation}
		}
		if managed(s, false) != test.all || managed(s, true) != test.requested {
			t.Errorf("%s: %v, %v", test.name, managed(s, false), managed(s, true))
		}
	}
}
