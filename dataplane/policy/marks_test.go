package policy

import (
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

func TestMarksOf(t *testing.T) {
	bits := func(mask uint32) *uint32 { return &mask }
	for _, c := range []struct {
		nftables, iptables *uint32
		want               Marks
		problem            string
	}{
		{nil, nil, standardMarks, ""},
		{bits(0xffff0000), bits(0xf0), standardMarks, ""},
		{nil, bits(0xf0), Marks{Decided: 0x10, Pass: 0x20}, ""},
		{bits(0x80000100), nil, Marks{Decided: 0x100, Pass: 0x80000000}, ""},
		{bits(0x80000000), bits(0xf0), standardMarks, "nftablesMarkMask 0x80000000 has fewer than two bits"},
		{nil, bits(0), standardMarks, "iptablesMarkMask 0x0 has fewer than two bits"},
	} {
		f := &model.FelixConfigurationSpec{}
		f.NftablesMarkMask, f.IptablesMarkMask = c.nftables, c.iptables
		got, problem := MarksOf(f)
		if got != c.want || !strings.HasPrefix(problem, c.problem) || (problem == "") != (c.problem == "") {
			t.Errorf("%+v: %+v %q", c, got, problem)
		}
	}
}

// A change of the mask changes all rules that mark packets; no bit outside of the mask is left.
func TestRulesFollowTheMarkMask(t *testing.T) {
	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	key := model.ResourceKey(model.KindFelixConfiguration, "default")
	with := func(mask uint32) *model.Object {
		f := *felix
		f.Spec.NftablesMarkMask = &mask
		return model.NewObject(key, &f)
	}
	set := model.NewSet(hostEndpoint("eth0"), globalPolicy("early", v3.GlobalNetworkPolicySpec{ApplyOnForward: true,
		DoNotTrack: true, Types: twoTypes, Ingress: allowed}), globalPolicy("pass", v3.GlobalNetworkPolicySpec{
		Types: twoTypes, Ingress: []v3.Rule{{Action: v3.Pass}}}))
	c := Build(Config{Node: testNode}, set, nil)
	marks := func() (bits uint32) {
		for _, name := range c.Table().Chains() {
			for _, r := range c.Table().Chain(name).Rules {
				bits |= r.Mark.Mask
			}
		}
		return bits
	}
	for _, step := range []struct {
		mask, want uint32
		bad        bool
	}{{0xffff0000, 0x30000, false}, {0xc00, 0xc00, false}, {0x400, 0x30000, true}, {0xf0, 0x30, false}} {
		set[key] = with(step.mask)
		c.Update(set, key)
		bad := false
		for k := range c.Bad() {
			bad = bad || k == key
		}
		if got := marks(); got != step.want || bad != step.bad {
			t.Errorf("mask 0x%x: marks 0x%x, want 0x%x; bad %t", step.mask, got, step.want, bad)
		}
	}
}
