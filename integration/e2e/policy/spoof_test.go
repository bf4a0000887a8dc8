package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// testSpoofedSources: a pod uses foreign source addresses. They pass while the node allows it and the endpoint names
// the prefix. (TestBadPolicy has a first case.)
func (c *cluster) testSpoofedSources(t *testing.T) {
	a, b := c.Pods["a"], c.Pods["b"]
	const port = 7601
	inside := [][]netip.Addr{{netip.MustParseAddr("10.99.1.7"), netip.MustParseAddr("fd99:1::7")},
		{netip.MustParseAddr("10.99.2.7"), netip.MustParseAddr("fd99:2::7")}}
	f := newFlood(time.Millisecond)
	var own []*stream
	var as [2][]*stream // one for each prefix
	for i, to := range b.IPs {
		own = append(own, f.add(t, "as itself", a.Namespace, at(to, port), b.Namespace))
		for k := range as {
			from := inside[k][slices.IndexFunc(inside[k], func(x netip.Addr) bool { return x.Is6() == to.Is6() })]
			must(t, spoof(a, from))
			s := f.add(t, fmt.Sprintf("as %s, %d", from, i), a.Namespace, at(to, port), b.Namespace)
			must(t, s.as(from))
			as[k] = append(as[k], s)
		}
	}
	sourceSpoofing := func(value string) []entry {
		return documents(t, felix("default", "workloadSourceSpoofing: "+value))
	}
	names := func(prefixes ...string) entry {
		return c.endpoint(t, "a", func(o map[string]any) {
			if spec := o["spec"].(map[string]any); len(prefixes) > 0 {
				spec["allowSpoofedSourcePrefixes"] = prefixes
			} else {
				delete(spec, "allowSpoofedSourcePrefixes")
			}
		})
	}
	c.temporary(t, append(sourceSpoofing("Disabled"), names())...)
	f.start(t)
	f.flows(t, own[0])
	step := func(when string, pass, stop []*stream, objects ...entry) {
		t.Helper()
		c.enforced(t, c.change(t, objects...))
		f.checkStreams(t, when, append(pass, own...), stop)
	}
	all := slices.Concat(as[0], as[1])
	step("nobody may", nil, all)
	step("the pod would like to, the node does not let it", nil, all, names("10.99.1.0/24", "fd99:1::/64"))
	step("both", as[0], as[1], sourceSpoofing("Any")...)
	step("single addresses", as[0], as[1], names("10.99.1.7/32", "fd99:1::7/128"))
	step("others than before", as[1], as[0], names("10.99.2.0/24", "fd99:2::/64"))
	step("all of one family", slices.Concat(as[0][:1], as[1][:1]), slices.Concat(as[0][1:], as[1][1:]),
		names(map[bool]string{true: "0.0.0.0/0", false: "::/0"}[b.IPs[0].Is4()]))
	step("none any more", nil, all, names())
	step("both again", as[0], as[1], names("10.99.1.0/24", "fd99:1::/64"))
	step("the node lets it no longer", nil, all, sourceSpoofing("Disabled")...)
	f.stop()
}
