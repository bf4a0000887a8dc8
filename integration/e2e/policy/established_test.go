package policy

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// exchangeLine sends a line and waits for it to come back.
func exchangeLine(conn net.Conn) error {
	buf := make([]byte, 4096)
	var err error
	for range 20 { // datagrams may get lost on a busy machine
		_ = conn.SetDeadline(time.Now().Add(250 * time.Millisecond))
		if _, err = conn.Write([]byte("hello")); err == nil {
			if _, err = conn.Read(buf); err == nil {
				return nil
			}
		}
	}
	return err
}

// testEstablished: policy decides the first packet. Established connections continue after any change, in both
// directions and at both ends. New denied connections are not established.
func (c *cluster) testEstablished(t *testing.T) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	echoTCP(t, b.Namespace, 7801)
	echoTCP(t, far.Namespace, 7801)
	echo(t, b.Namespace, 7801)
	echo(t, far.Namespace, 7801)
	type line struct {
		name string
		conn net.Conn
	}
	var open []line
	var again []attempt
	for i := range b.IPs {
		for _, network := range []string{"tcp", "udp"} {
			for _, x := range []struct {
				name     string
				from, to *lab.Pod
			}{{"from another host", far, b}, {"from the same host", a, b}, {"to another host", b, far}} {
				to := at(x.to.IPs[i], 7801)
				k := attempt{x.name, x.from.Namespace, network, to, lost}
				var conn net.Conn
				var err error
				must(t, namespace.Inside(x.from.Namespace,
					func() { conn, err = net.DialTimeout(network, to.String(), limit) }))
				must(t, err)
				defer conn.Close()
				must(t, exchangeLine(conn))
				open, again = append(open, line{fmt.Sprintf("%s, %s %s", x.name, network, to), conn}), append(again, k)
			}
		}
	}
	goOn := func(t *testing.T) {
		t.Helper()
		for _, l := range open {
			if err := exchangeLine(l.conn); err != nil {
				t.Errorf("%s: an established connection is cut: %v", l.name, err)
			}
		}
		tryAll(t, again)
	}
	profile := documents(t, "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: closed}\nspec: {}\n")
	for _, x := range []struct {
		name    string
		objects []entry
	}{
		{"both directions are denied", documents(t, world.GlobalPolicy("deny",
			"selector: role == 'b', types: [Ingress, Egress]"))},
		{"a tier before all others denies",
			documents(t, "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: first}\n"+
				"spec: {order: 1}\n---\n"+
				world.GlobalPolicy("first.deny",
					"tier: first, selector: role == 'b', types: [Ingress, Egress], ingress: [{action: "+
						"Deny}], egress: [{action: Deny}]"))},
		{"the profile lets nobody in",
			append(profile, c.endpoint(t, "b", func(o map[string]any) {
				o["spec"].(map[string]any)["profiles"] = []string{"closed"}
			}))},
	} {
		t.Run(x.name, func(t *testing.T) {
			c.temporary(t, x.objects...)
			goOn(t)
		})
	}
}

// echoTCP sends received data back.
func echoTCP(t *testing.T, ns string, port int) {
	t.Helper()
	world.ListenTCP(t, ns, port, func(c net.Conn) {
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	})
}

// testFragments: the ports of datagrams that are larger than the link are matched as those of others, also where
// connections are not tracked.
func (c *cluster) testFragments(t *testing.T) {
	a, b, far, n1, n2 := c.Pods["a"], c.Pods["b"], c.Pods["far"], c.N1, c.N2
	large := func(ns string, k attempt) error {
		var conn net.Conn
		var err error
		must(t, namespace.Inside(ns, func() { conn, err = net.Dial("udp", k.to.String()) }))
		must(t, err)
		defer conn.Close()
		patience := 5 * time.Second
		if k.want == lost {
			patience = 0
		}
		for end := time.Now().Add(patience); ; {
			_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err = conn.Write(make([]byte, 4000)); err == nil {
				if _, err = conn.Read(make([]byte, 4096)); err == nil {
					return nil
				}
			}
			if time.Now().After(end) {
				return err
			}
		}
	}
	udp := func(end string) string {
		return fmt.Sprintf("{action: Allow, protocol: UDP, %s: {ports: [7001]}}", end)
	}
	c.temporary(t, documents(t, world.GlobalPolicy("fragments", "selector: role == 'b', types: [Ingress], ingress: ["+
		udp("destination")+"]")+
		"apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: n2-eth0, labels: {host: n2}}\n"+
		"spec: {node: n2, interfaceName: eth0}\n---\n"+
		world.GlobalPolicy("untracked",
			"selector: host == 'n2', applyOnForward: true, doNotTrack: true, types: [Ingress, "+
				"Egress], ingress: ["+udp("destination")+"], egress: ["+udp("source")+"]"))...)
	for i := range b.IPs {
		host := both(n2.IP4, n2.IP6)[i]
		if b.IPs[i].Is6() != host.Is6() {
			host = both(n2.IP6, n2.IP4)[i]
		}
		for _, k := range []attempt{
			{"to a pod of the same host", a.Namespace, "udp", at(b.IPs[i], 7001), answered},
			{"to a pod of the same host, denied", a.Namespace, "udp", at(b.IPs[i], 7002), lost},
			{"to a pod of another host", b.Namespace, "udp", at(far.IPs[i], 7001), answered},
			{"to the host, before connections are tracked", n1.Namespace, "udp", at(host, 7001), answered},
			{"to the host, denied", n1.Namespace, "udp", at(host, 7002), lost},
		} {
			if err := large(k.ns, k); (err == nil) != (k.want == answered) {
				t.Errorf("%s (%s): %v, want %s", k.name, k.to, err, k.want)
			}
		}
	}
}
