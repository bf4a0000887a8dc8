package policy

import (
	"net/netip"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// The DSCP is set in packets to addresses outside of the pools that this node does not have, other nodes' among them.
func TestDSCPOfPacketsThatLeave(t *testing.T) {
	addr := netip.MustParseAddr
	withDSCP := func(text string) *model.Object {
		w := pod("default", "a", "10.0.0.1", nil)
		if text != "" {
			w.Value.(*model.WorkloadEndpoint).Spec.QoSControls = &model.QoSControls{DSCP: text}
		}
		return w
	}
	host := hostEndpoint("eth0")
	host.Value.(*v3.HostEndpoint).Annotations = map[string]string{dscpAnnotation: "cs6"}
	host.Value.(*v3.HostEndpoint).Spec.ExpectedIPs = []string{"192.0.2.1", "2001:db8::1"}
	host.Value.(*v3.HostEndpoint).Spec.Profiles = []string{"projectcalico-default-allow"}
	set := model.NewSet(host, model.NewObject(model.ResourceKey(model.KindIPPool, "pool"), &model.IPPool{
		Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16"}}))
	workload := withDSCP("")
	set[workload.Key] = workload
	c := Build(Config{Node: testNode}, set, map[string][]netip.Addr{"eth0": {addr("192.0.2.1")}})
	here := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == addr("192.0.2.1") }}
	sent := func(from, to string) ruleset.DSCP {
		p := ruleset.Packet{Out: "eth0", Source: addr(from), Destination: addr(to), Protocol: 17}
		return c.Table().Eval(here, ruleset.Postrouting, p, nil).Packet.DSCP
	}
	ef, none, cs6 := ruleset.DSCP{Set: true, Value: 46}, ruleset.DSCP{}, ruleset.DSCP{Set: true, Value: 48}
	for _, step := range []struct {
		text string
		want ruleset.DSCP
		bad  string
	}{{"", none, ""}, {"EF", ef, ""}, {"10", ruleset.DSCP{Set: true, Value: 10}, ""},
		{"df", ruleset.DSCP{Set: true}, ""}, {"EF", ef, ""}, {"64", none, `"64", is not one`}} {
		set[workload.Key] = withDSCP(step.text)
		c.Update(set, workload.Key)
		for _, p := range []struct {
			from, to string
			want     ruleset.DSCP
		}{
			{"10.0.0.1", "198.51.100.1", step.want}, {"10.0.0.1", "192.0.2.2", step.want},
			{"10.0.0.1", "10.0.9.9", none}, {"10.0.0.1", "192.0.2.1", none}, {"10.0.0.2", "198.51.100.1", none},
			{"192.0.2.1", "198.51.100.1", cs6}, {"2001:db8::1", "2001:db8::2", cs6},
			{"2001:db8::2", "2001:db8::1", none},
		} {
			if got := sent(p.from, p.to); got != p.want {
				t.Errorf("%q: from %s to %s: %+v, want %+v", step.text, p.from, p.to, got, p.want)
			}
		}
		if got := c.bad[workload.Key]; !strings.Contains(got, step.bad) || (got == "") != (step.bad == "") {
			t.Errorf("%q: the problem is %q", step.text, got)
		}
	}
	delete(set, host.Key)
	delete(set, workload.Key)
	c.Update(set, host.Key, workload.Key)
	if c.Table().Chain(dscpChain) != nil {
		t.Error("the chain is left")
	}
}

func TestDSCPOfHostEndpoints(t *testing.T) {
	for _, c := range []struct{ value, ip, problem string }{
		{"EF", "192.0.2.1", ""}, {"EF", "", "about packets from expectedIPs"},
		{"64", "192.0.2.1", "must be a number"}, {"", "192.0.2.1", "must be a number"},
	} {
		o := hostEndpoint("eth0")
		h := o.Value.(*v3.HostEndpoint)
		h.Annotations = map[string]string{dscpAnnotation: c.value}
		if c.ip != "" {
			h.Spec.ExpectedIPs = []string{c.ip}
		}
		got := Build(Config{Node: testNode}, model.NewSet(o), map[string][]netip.Addr{"eth0": nil}).bad[o.Key]
		if !strings.Contains(got, c.problem) || (got == "") != (c.problem == "") {
			t.Errorf("%+v: the problem is %q", c, got)
		}
	}
}
