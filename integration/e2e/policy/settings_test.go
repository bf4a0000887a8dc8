package policy

import (
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testSettingsUnderTraffic changes settings that rewrite all rules, and others without effect on packets: no packet is
// lost, and no denied packet passes.
func (c *cluster) testSettingsUnderTraffic(t *testing.T) {
	const open, closed = 7951, 7952
	c.temporary(t, documents(t, felix("default", "")+
		world.GlobalPolicy("guarded", "selector: has(role), types: [Ingress, Egress], ingress: ["+rule("Allow", open)+
			"], egress: [{action: Allow}]"))...)
	f := newFlood(time.Millisecond)
	var pass, stop []*stream
	for i := range c.Pods["b"].IPs {
		for _, x := range []struct{ from, to string }{{"a", "b"}, {"far", "b"}, {"b", "far"}} {
			to := c.Pods[x.to]
			add := func(port uint16) *stream {
				return f.add(t, x.from+" to "+x.to, c.Pods[x.from].Namespace, at(to.IPs[i], port), to.Namespace)
			}
			pass, stop = append(pass, add(open)), append(stop, add(closed))
		}
	}
	limits := c.endpoint(t, "b", func(o map[string]any) {
		o["spec"].(map[string]any)["qosControls"] = map[string]any{"ingressPacketRate": 10000,
			"ingressPacketBurst": 10000, "egressPacketRate": 10000, "egressPacketBurst": 10000,
			"ingressMaxConnections": 1000000, "egressMaxConnections": 1000000}
	})
	spoof := c.endpoint(t, "b", func(o map[string]any) {
		o["spec"].(map[string]any)["allowSpoofedSourcePrefixes"] = []string{"10.99.0.0/16", "fd99::/64"}
	})
	const host = "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\n" +
		"metadata: {name: n2-eth0, labels: {host: n2}}\n" +
		"spec: {node: n2, interfaceName: \"*\", profiles: [projectcalico-default-allow]}\n---\n"
	changes := []struct {
		name string
		list []entry
	}{
		{"refuse", documents(t, felix("default", "nftablesFilterDenyAction: Reject"))},
		{"a prefix of the log, and its rate",
			documents(t, felix("default", "logPrefix: x, logActionRateLimit: 1/second"))},
		{"pods may pretend to be others", append(documents(t, felix("default", "workloadSourceSpoofing: Any")), spoof)},
		{"tunnels of pods",
			documents(t, felix("default",
				"allowVXLANPacketsFromWorkloads: true, allowIPIPPacketsFromWorkloads: true"))},
		{"packets of no connection", documents(t, felix("default", "disableConntrackInvalidCheck: true"))},
		{"limits that nobody reaches", []entry{limits}},
		{"floating addresses", documents(t, felix("default", "floatingIPs: Enabled"))},
		{"other ports of translation",
			documents(t, felix("default", `natPortRange: "61000:62000", natOutgoingExclusions: IPPoolsAndHostIPs`))},
		{"a host endpoint that lets all through", documents(t, host)},
		{"its policy for what is forwarded", documents(t, host+world.GlobalPolicy("forward", "selector: host == 'n2', "+
			"applyOnForward: true, types: [Ingress, Egress], ingress: [{action: Allow}], egress: [{action: Allow}]"))},
		{"a policy before translation", documents(t, host+world.GlobalPolicy("early",
			"selector: host == 'n2', applyOnForward: "+
				"true, preDNAT: true, types: [Ingress], ingress: [{action: Allow}]"))},
		{"a tier that passes", documents(t, "apiVersion: projectcalico.org/v3\nkind: Tier\n"+
			"metadata: {name: first}\nspec: {order: 1, defaultAction: Pass}\n---\n"+
			world.GlobalPolicy("first.pass",
				"tier: first, selector: has(role), types: [Ingress, Egress], ingress: [{action: "+
					"Pass}], egress: [{action: Pass}]"))},
	}
	f.start(t)
	for _, s := range pass {
		f.flows(t, s)
	}
	from := f.rounds.Load() + 1
	for _, x := range changes {
		round := f.rounds.Load() + 1
		var before []entry
		for _, d := range x.list {
			before = append(before, entry{d.path, c.Raw(t, d.path)[d.path]})
		}
		c.enforced(t, c.change(t, x.list...))
		c.enforced(t, c.change(t, before...))
		for _, s := range pass {
			f.flows(t, s)
		}
		t.Logf("%s: rounds %d to %d", x.name, round, f.rounds.Load())
	}
	f.stop()
	for _, s := range pass {
		s.checkAll(t, from, f.rounds.Load())
	}
	for _, s := range stop {
		s.checkNone(t)
	}
}
