package floating

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

func pool(name string, spec model.IPPoolSpec) *model.Object {
	return model.NewObject(model.ResourceKey(model.KindIPPool, name), &model.IPPool{Spec: spec})
}

// marked returns a pool with the annotation.
func marked(name string, spec model.IPPoolSpec) *model.Object {
	o := pool(name, spec)
	o.Metadata().SetAnnotations(map[string]string{Annotation: "true"})
	return o
}

// The author of a pod claims floating addresses: one that somebody else has, or can get, is not used.
func TestUsed(t *testing.T) {
	rules := Read(model.NewSet(
		pool("pods", model.IPPoolSpec{CIDR: "10.244.0.0/16"}),
		marked("floating", model.IPPoolSpec{CIDR: "10.250.0.0/24", Disabled: true}),
		pool("again", model.IPPoolSpec{CIDR: "10.250.0.128/25"}),
		pool("emptied", model.IPPoolSpec{CIDR: "10.251.0.0/24", Disabled: true}),
		marked("enabled", model.IPPoolSpec{CIDR: "10.252.0.0/24"}),
		marked("six", model.IPPoolSpec{CIDR: "fd00:250::/64", Disabled: true})))
	for external, want := range map[string]string{
		"10.250.0.7": "", "10.250.0.7/32": "", "fd00:250::7": "",
		"10.244.3.7":   "IP pool pods is not one for floating",
		"10.250.0.200": "IP pool again is not one for floating", // the most specific pool decides
		"10.251.0.7":   "IP pool emptied is not one for floating",
		"10.252.0.7":   "IP pool enabled is not one for floating",
		"192.0.2.1":    "in no IP pool",
		"cow":          "not an address",
	} {
		used, refusals := rules.Used([]model.IPNAT{{InternalIP: "10.244.0.2", ExternalIP: external}})
		text := strings.Join(refusals, "")
		address, _, _ := strings.Cut(external, "/")
		isUsed := fmt.Sprint(used) == fmt.Sprintf("[{%s 10.244.0.2}]", address)
		if (want == "") != isUsed || !strings.Contains(text, want) || text != "" && !strings.Contains(text, external) {
			t.Errorf("%s: %v is used, refused: %q, want %q", external, used, refusals, want)
		}
	}
}

func TestMostAddressesOfOneWorkload(t *testing.T) {
	rules := Read(model.NewSet(marked("floating", model.IPPoolSpec{CIDR: "10.250.0.0/24", Disabled: true})))
	var nats []model.IPNAT
	for i := range most + 3 {
		nats = append(nats, model.IPNAT{ExternalIP: fmt.Sprintf("10.250.0.%d", i)})
	}
	used, refusals := rules.Used(nats)
	if len(used) != most || len(refusals) != 1 || !strings.HasPrefix(refusals[0], "3 of its floating addresses") {
		t.Errorf("%d are used, refused: %q", len(used), refusals)
	}
}
