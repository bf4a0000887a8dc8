package policy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// limits writes the qosControls of a pod with manxctl, nil for none, and waits until its node has them.
func (c *cluster) limits(t *testing.T, pod string, q map[string]any) {
	t.Helper()
	p := c.Pods[pod]
	must(t, p.EditEndpoint(func(e lab.Resource) {
		if delete(e.Spec(), "qosControls"); q != nil {
			e.Spec()["qosControls"] = q
		}
	}))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := c.Etcd.Get(ctx, c.endpoint(t, pod, func(map[string]any) {}).path)
	must(t, err)
	c.enforced(t, r.Kvs[0].ModRevision, p.Node)
}

// sendBurst sends datagrams of one connection as fast as it can. It returns how many arrive, and the time from the
// first sent to the last received datagram.
func sendBurst(t *testing.T, from string, to netip.AddrPort, listener string, n int) (arrived int, took time.Duration) {
	t.Helper()
	var sink, source net.Conn
	var err error
	must(t, namespace.Inside(listener, func() { sink, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(to.Port())}) }))
	must(t, err)
	defer sink.Close()
	must(t, namespace.Inside(from, func() { source, err = net.Dial("udp", to.String()) }))
	must(t, err)
	defer source.Close()
	start := time.Now()
	received := make(chan int)
	go func() {
		got := 0
		for buf := make([]byte, 64); got < n; got++ {
			if _, err := sink.Read(buf); err != nil {
				break
			}
			took = time.Since(start)
		}
		received <- got
	}()
	for range n {
		_, err := source.Write([]byte("volley"))
		must(t, err)
	}
	_ = sink.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // all of it is on this machine
	return <-received, took
}

// testPacketRates limits packets a second, one direction at a time: the burst passes, packets beyond the rate do not.
func (c *cluster) testPacketRates(t *testing.T) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	const port, all = 7100, 150
	err := b.EditEndpoint(func(e lab.Resource) { e.Spec()["qosControls"] = map[string]any{"ingressPacketRate": -1} })
	if err == nil || !strings.Contains(err.Error(),
		`spec.qosControls.ingressPacketRate = "-1": must be from 1 to 10000`) {
		t.Errorf("a negative rate is stored: %v", err)
	}
	for _, x := range []struct {
		name     string
		pod      string
		controls map[string]any
		// most is how many packets of a volley may pass at once, and how many more each second.
		in, out struct{ burst, rate int }
	}{
		{name: "none"},
		{name: "what comes in", pod: "b", controls: map[string]any{"ingressPacketRate": 10, "ingressPacketBurst": 20},
			in: struct{ burst, rate int }{20, 10}},
		{name: "a lower one", pod: "b", controls: map[string]any{"ingressPacketRate": 5}, in: struct{ burst, rate int }{
			5, 5}},
		{name: "what goes out", pod: "b", controls: map[string]any{"egressPacketRate": 10, "egressPacketBurst": 20},
			out: struct{ burst, rate int }{20, 10}},
		{name: "more than is sent", pod: "b", controls: map[string]any{"ingressPacketRate": 10000,
			"ingressPacketBurst": 10000, "egressPacketRate": 10000, "egressPacketBurst": 10000}},
		{name: "none any more", pod: "b"},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.pod != "" {
				c.limits(t, x.pod, x.controls)
			}
			for _, v := range []struct {
				way   string
				from  string
				to    netip.Addr
				sink  string
				limit struct{ burst, rate int }
			}{
				{"from the same host", a.Namespace, b.IP4(), b.Namespace, x.in},
				{"from another host", far.Namespace, b.IP6(), b.Namespace, x.in},
				{"to another host", b.Namespace, far.IP4(), far.Namespace, x.out},
				{"to the same host", b.Namespace, a.IP6(), a.Namespace, x.out},
				{"to the host itself", b.Namespace, c.N2.IP4, c.N2.Namespace, x.out},
			} {
				if v.limit.rate > 0 {
					// The bucket was used by the volley before: a new one is full.
					c.limits(t, x.pod, nil)
					c.limits(t, x.pod, x.controls)
				}
				arrived, took := sendBurst(t, v.from, at(v.to, port), v.sink, all)
				least, most := all, all
				if v.limit.rate > 0 {
					// Packets of earlier connections may have taken a little.
					least, most = v.limit.burst-2, v.limit.burst+int(float64(v.limit.rate)*took.Seconds())+1
				}
				if arrived < least || arrived > most {
					t.Errorf("%s: %d of %d packets arrive within %s, want %d to %d", v.way, arrived, all, took, least,
						most)
				}
			}
		})
	}
}

// openConns are connections that stay open.
type openConns struct {
	t    *testing.T
	ns   string
	list []net.Conn
}

// open makes one more connection, and returns whether it is established.
func (h *openConns) open(network string, to netip.AddrPort) string {
	h.t.Helper()
	var conn net.Conn
	var err error
	must(h.t, namespace.Inside(h.ns, func() {
		conn, err = net.DialTimeout(network, to.String(), 300*time.Millisecond)
	}))
	if err == nil && network == "udp" {
		_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err = conn.Write([]byte("hello")); err == nil {
			_, err = conn.Read(make([]byte, 128))
		}
	}
	switch {
	case err == nil:
		h.list = append(h.list, conn)
		return answered
	case strings.Contains(err.Error(), syscall.ECONNREFUSED.Error()):
		return refused
	}
	if conn != nil {
		conn.Close()
	}
	return lost
}

// close resets the oldest connection, after which neither side waits for more packets of it.
func (h *openConns) close() {
	if tcp, ok := h.list[0].(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	h.list[0].Close()
	h.list = h.list[1:]
}

func (h *openConns) closeAll() {
	for len(h.list) > 0 {
		h.close()
	}
}

// acceptTCP keeps accepted connections, until the other side ends them.
func acceptTCP(t *testing.T, ns string, port int) {
	t.Helper()
	world.ListenTCP(t, ns, port, func(c net.Conn) {
		go func() { _, _ = c.Read(make([]byte, 1)); c.Close() }()
	})
}

// testMaxConnections limits how many connections a pod has at a time: further TCP clients are refused, further packets
// of other protocols are dropped, and established connections continue.
func (c *cluster) testMaxConnections(t *testing.T) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	acceptTCP(t, b.Namespace, 7101)
	acceptTCP(t, far.Namespace, 7101)
	defer c.limits(t, "b", nil)

	t.Run("to the pod", func(t *testing.T) {
		c.limits(t, "b", map[string]any{"ingressMaxConnections": 3})
		for i, to := range b.IPs {
			h := &openConns{t: t, ns: a.Namespace}
			c.counts(t, h, "tcp", at(to, 7101), 3, refused)
			if i == 0 { // another daemon finds the count in the kernel
				must(t, c.N2.Manxd().Stop(limit))
				must(t, c.N2.StartManxd())
				awaitPolicy(t, c.N2)
				if got := h.open("tcp", at(to, 7101)); got != refused {
					t.Errorf("one more than are allowed is %s after a restart, want %s", got, refused)
				}
			}
			h.closeAll()
		}
	})
	t.Run("to the pod, by UDP", func(t *testing.T) {
		c.limits(t, "b", nil)
		c.limits(t, "b", map[string]any{"ingressMaxConnections": 3})
		h := &openConns{t: t, ns: far.Namespace}
		defer h.closeAll()
		for i := range 3 {
			if got := h.open("udp", at(b.IP4(), 7001)); got != answered {
				t.Fatalf("connection %d is %s", i+1, got)
			}
		}
		if got := h.open("udp", at(b.IP4(), 7001)); got != lost {
			t.Errorf("one more than are allowed is %s, want %s", got, lost)
		}
	})
	t.Run("of the pod", func(t *testing.T) {
		c.limits(t, "b", map[string]any{"egressMaxConnections": 2})
		h := &openConns{t: t, ns: b.Namespace}
		c.counts(t, h, "tcp", at(far.IP6(), 7101), 2, refused)
		// Connections of others are not counted.
		if got := (&openConns{t: t, ns: a.Namespace}).open("tcp", at(far.IP6(), 7101)); got != answered {
			t.Errorf("another pod's connection is %s", got)
		}
		h.closeAll()
	})
	t.Run("another limit", func(t *testing.T) {
		c.limits(t, "b", map[string]any{"ingressMaxConnections": 1})
		h := &openConns{t: t, ns: far.Namespace}
		c.counts(t, h, "tcp", at(b.IP4(), 7101), 1, refused)
		h.closeAll()
	})
	t.Run("none any more", func(t *testing.T) {
		c.limits(t, "b", nil)
		h := &openConns{t: t, ns: far.Namespace}
		defer h.closeAll()
		for i := range 6 {
			if got := h.open("tcp", at(b.IP4(), 7101)); got != answered {
				t.Errorf("connection %d is %s", i+1, got)
			}
		}
	})
}

// counts opens as many connections as are allowed, and then one more, which is refused. Changes of policy meanwhile
// make no difference. When a connection ends there is room for another.
func (c *cluster) counts(t *testing.T, h *openConns, network string, to netip.AddrPort, allowed int, beyond string) {
	t.Helper()
	open := func(what string) {
		t.Helper()
		eventually(t, func() error { // a connection that has just ended may still count
			if got := h.open(network, to); got != answered {
				return fmt.Errorf("%s: %s is %s", to, what, got)
			}
			return nil
		})
	}
	for i := range allowed {
		open(fmt.Sprintf("connection %d of %d", i+1, allowed))
	}
	more := func(when string) {
		t.Helper()
		if got := h.open(network, to); got != beyond {
			t.Errorf("%s: one more than %d connections is %s %s, want %s", to, allowed, got, when, beyond)
		}
	}
	more("at first")
	another := documents(t, world.GlobalPolicy("another",
		"selector: role == 'b', types: [Ingress, Egress], ingress: [{action: "+
			"Allow}], egress: [{action: Allow}]"))
	c.enforced(t, c.change(t, another...))
	more("after a policy came")
	c.enforced(t, c.change(t, asDeleted(another)...))
	more("after a policy went")
	h.close()
	open("a connection after one has ended")
	more("after one has ended and another came")
}
