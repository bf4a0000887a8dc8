package policy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

// newcomers applies to pods without labels.
const newcomers = `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: newcomers}
spec:
  selector: "!has(role)"
  types: [Ingress, Egress]
  ingress: [{action: Allow, protocol: UDP, destination: {ports: [7003]}}]
  egress: [{action: Allow, protocol: UDP, destination: {ports: [7003]}}]
`

// testNewPods attaches pods while datagrams to their addresses and out of their namespaces are on their way already.
// Denied packets never pass; allowed ones pass as soon as the CNI plugin has returned.
func (c *cluster) testNewPods(t *testing.T) {
	const pods = 20
	server := c.Pods["server"]
	for _, name := range []string{"client", "remote", "server"} {
		c.change(t, c.labelled(t, name, map[string]string{"role": name}))
	}
	c.enforced(t, c.change(t, documents(t, newcomers)...))
	next := c.highest(c.N2)
	sent, six := int64(0), 0
	for i := range pods {
		f := newFlood(time.Millisecond)
		var allowed, denied []*stream
		name := fmt.Sprintf("new%d", i)
		p, err := c.N2.AddPod(name, lab.DualStack, func(map[string]any) {
			ns := c.Spec.Name + "-" + name
			for k := range next {
				next[k] = next[k].Next()
				for _, from := range []string{"client", "remote"} {
					source := c.Pods[from].Namespace
					allowed = append(allowed, f.add(t, fmt.Sprint(from, " to ", name, " ", next[k]), source,
						at(next[k], freePort), ns))
					denied = append(denied, f.add(t, fmt.Sprint(from, " to ", name, " ", next[k]), source,
						at(next[k], deniedPort), ns))
				}
				allowed = append(allowed, f.add(t, fmt.Sprint(name, " to server ", server.IPs[k]), ns,
					at(server.IPs[k], freePort), server.Namespace))
				denied = append(denied, f.add(t, fmt.Sprint(name, " to server ", server.IPs[k]), ns,
					at(server.IPs[k], deniedPort), server.Namespace))
			}
			f.start(t)
		})
		must(t, err)
		from := f.rounds.Load() + 2
		if p.IP4() != next[0] || p.IP6() != next[1] {
			t.Fatalf("pod %s has %v, and the flood goes to %v", name, p.IPs, next)
		}
		eventually(t, func() error { return atLeast("rounds of the flood", f.rounds.Load(), from+50) })
		last := i == pods-1
		if !last {
			f.stop()
		}
		to := f.rounds.Load() - 20
		for _, s := range allowed {
			first := from
			if s.to.Addr().Is6() {
				// An early datagram has left an unanswered neighbour request, which the kernel repeats only after a
				// second.
				for first <= to && !s.received(first) {
					first++
				}
				if first > to {
					continue
				}
				six++
			}
			s.checkAll(t, first, to)
		}
		for _, s := range denied {
			s.checkNone(t)
		}
		sent += f.rounds.Load() * int64(len(f.all()))
		if last { // the same datagrams do arrive when there is no policy
			c.change(t, asDeleted(documents(t, newcomers))...)
			for _, s := range denied {
				f.flows(t, s)
			}
			f.stop()
		}
		must(t, p.Delete())
		if t.Failed() {
			return
		}
	}
	if six < pods {
		t.Errorf("of %d streams of IPv6 only %d arrived", 3*pods, six)
	}
	t.Logf("%d pods under %d datagrams", pods, sent)
}

// highest are the last addresses that pods of a node have, of both families. The next pod has those after them.
func (c *cluster) highest(n *lab.Node) (last []netip.Addr) {
	last = make([]netip.Addr, 2)
	for _, p := range c.Pods {
		for k, a := range p.IPs {
			if p.Node == n && last[k].Less(a) {
				last[k] = a
			}
		}
	}
	return last
}
