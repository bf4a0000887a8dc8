package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// TestBadPolicy gives the daemons large, odd or wrong objects: none blocks others, and nothing is left after their
// removal.
func TestBadPolicy(t *testing.T) {
	c := newPolicyLab(t, "x", map[string]string{"a": "n2", "b": "n2", "far": "n1"})
	n2, a, b := c.N2, c.Pods["a"], c.Pods["b"]
	echo(t, b.Namespace, 7001, 7002)
	c.enforced(t, c.change(t, c.labelled(t, "a", map[string]string{"role": "a"}),
		c.labelled(t, "b", map[string]string{"role": "b"})))
	before := content(table(t, n2))
	policy := func(name, spec string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: %s}\n"+
			"spec: {%s}\n---\n", name, spec)
	}
	from := func(pass1, pass2 bool) []probe {
		return []probe{{"a to b, 7001", a.Namespace, at(b.IP4(), 7001), pass1},
			{"a to b, 7002", a.Namespace, at(b.IP4(), 7002), pass2}}
	}
	udp := func(port int) string { return rule("Allow", port) }
	many := "" // in four sets, since the datastore takes 1.5 MB at most
	for part := range 4 {
		var text strings.Builder
		text.WriteString(a.IP4().String() + "/32")
		for i := part * 25000; i < (part+1)*25000; i++ {
			fmt.Fprintf(&text, ",172.%d.%d.%d/32", 16+i/65536, i/256%256, i%256)
		}
		many += fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\n"+
			"metadata: {name: large%d, labels: {size: large}}\nspec: {nets: [%s]}\n---\n", part, text.String())
	}
	long := strings.Repeat("a", 60) + strings.Repeat("."+strings.Repeat("b", 60), 3) + ".cccccccc"
	for _, x := range []struct {
		name, yaml string
		want       []probe
	}{
		{"networks that overlap", "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\n" +
			"metadata: {name: over, labels: {over: lap}}\nspec: {nets: [10.0.0.0/8, 10.244.0.0/16, " +
			a.IP4().String() + "/32, 10.244.0.0/17]}\n---\n" + policy("over", "selector: role == 'b', ingress: "+
			"[{action: Allow, protocol: UDP, source: {selector: over == 'lap', nets: [10.0.0.0/8, 10.244.0.0/16]}, "+
			"destination: {ports: [7001]}}]"), from(true, false)},
		{"a set of 100,000", many +
			policy("large", "selector: role == 'b', ingress: [{action: Allow, protocol: UDP, source: {selector: size "+
				"== 'large'}, destination: {ports: [7001]}}]"), from(true, false)},
		{"a long name", policy(long, "selector: role == 'b', ingress: ["+udp(7001)+"]"), from(true, false)},
		{"a selector that matches nothing", policy("nothing", "selector: role == 'nobody', ingress: ["+udp(7001)+"]"),
			from(true, true)},
		{"a selector that matches everything", policy("everything", "ingress: ["+udp(7002)+"]"), from(false, true)},
		{"a policy of a tier that is gone", policy("gone.x", "tier: gone, selector: role == 'b', ingress: ["+udp(7001)+
			"]"), from(true, false)},
	} {
		t.Run(x.name, func(t *testing.T) {
			start := time.Now()
			list := documents(t, x.yaml)
			last := int64(0)
			for _, d := range list {
				last = c.change(t, d)
			}
			c.enforced(t, last, n2)
			checkProbes(t, x.want)
			c.enforced(t, c.change(t, asDeleted(list)...), n2)
			checkProbes(t, from(true, true))
			if now := content(table(t, n2)); now != before {
				t.Errorf("something stayed behind:\n%s\nwas\n%s", now, before)
			}
			t.Logf("took %.1f s", time.Since(start).Seconds())
		})
	}
	t.Run("a policy that comes and goes 1,000 times", func(t *testing.T) {
		list := documents(t, policy("flaps", "selector: role == 'b', ingress: [{action: Allow, protocol: UDP, "+
			"source: {selector: role == 'a', notNets: [10.0.0.0/9, 172.16.0.0/12]}, destination: {ports: "+
			"[7001, 7003]}}]"))
		last := int64(0)
		for range 1000 {
			c.change(t, list...)
			last = c.change(t, asDeleted(list)...)
		}
		c.enforced(t, last, n2)
		checkProbes(t, from(true, true))
		if now := content(table(t, n2)); now != before {
			t.Errorf("something stayed behind:\n%s\nwas\n%s", now, before)
		}
	})
	t.Run("a pod that pretends to be another one", func(t *testing.T) {
		for _, x := range []struct {
			to, as netip.Addr
		}{{b.IP4(), c.Pods["far"].IP4()}, {b.IP6(), c.Pods["far"].IP6()}} {
			must(t, spoof(a, x.as))
			f := newFlood(time.Millisecond)
			s := f.add(t, "as "+x.as.String(), a.Namespace, at(x.to, 7003), b.Namespace)
			must(t, s.as(x.as))
			f.start(t)
			eventually(t, func() error { return atLeast("rounds of the flood", f.rounds.Load(), 100) })
			s.checkNone(t)
			allowed := documents(t, "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\n"+
				"metadata: {name: default}\nspec: {workloadSourceSpoofing: Any}")
			plain := c.endpoint(t, "a", func(map[string]any) {})
			c.enforced(t, c.change(t, append(allowed, c.endpoint(t, "a", func(o map[string]any) {
				o["spec"].(map[string]any)["allowSpoofedSourcePrefixes"] = []string{
					netip.PrefixFrom(x.as, x.as.BitLen()).String()}
			}))...), n2)
			f.flows(t, s)
			c.enforced(t, c.change(t, append(asDeleted(allowed), plain)...), n2)
			f.stop()
		}
	})
}

// spoof gives a pod another one's address, beside its own.
func spoof(p *lab.Pod, as netip.Addr) error {
	_, err := namespace.Command(p.Namespace, "ip", "addr", "add", as.String(), "dev", "lo", "nodad").CombinedOutput()
	if err != nil {
		_, err = namespace.Command(p.Namespace, "ip", "addr", "add", as.String(), "dev", "lo").CombinedOutput()
	}
	return err
}
