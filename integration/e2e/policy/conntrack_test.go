package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// TestAddressMovesToAProtectedPod moves an address with running connections to a pod whose policy denies them. Packets
// of connections with the previous pod must not reach it, in either direction.
func TestAddressMovesToAProtectedPod(t *testing.T) {
	n := startSingle(t, "m")
	must(t, n.Apply(`
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: only-one-port}
spec:
  selector: app == 'protected'
  types: [Ingress]
  ingress: [{action: Allow, protocol: UDP, destination: {ports: [7001]}}]
`))
	pods := map[string]*lab.Pod{}
	for _, name := range []string{"client", "old", "next"} {
		p, err := n.AddPod(name)
		must(t, err)
		pods[name] = p
	}
	client, old, next := pods["client"], pods["old"], pods["next"]
	address := old.IP4()

	// Two connections between the client and the old pod, one from each side.
	fromClient, toOld := udpIn(t, client.Namespace, 7010), udpIn(t, old.Namespace, 7002)
	toClient, fromOld := udpIn(t, client.Namespace, 7011), udpIn(t, old.Namespace, 7003)
	there := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(address, port) }
	establish(t, fromClient, toOld, there(7002))
	establish(t, fromOld, toClient, netip.AddrPortFrom(client.IP4(), 7011))

	world.IP(t, n, fmt.Sprintf("-n %s addr add %s/32 dev eth0", next.Namespace, address))
	var stolen, answered atomic.Int64
	for _, port := range []int{7002, 7003} {
		count(udpIn(t, next.Namespace, port), &stolen, false)
	}
	count(udpIn(t, next.Namespace, 7001), new(atomic.Int64), true)
	prober := udpIn(t, client.Namespace, 7012)
	count(prober, &answered, false)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // the client is not notified
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_, _ = fromClient.WriteToUDPAddrPort([]byte("on"), there(7002))
				_, _ = toClient.WriteToUDPAddrPort([]byte("on"), there(7003))
				_, _ = prober.WriteToUDPAddrPort([]byte("open?"), there(7001))
			}
		}
	}()
	defer func() { close(stop); <-done }()

	must(t, next.EditEndpoint(func(e lab.Resource) { e.Label("app", "protected") }))
	must(t, old.EditEndpoint(func(e lab.Resource) { e.Spec()["ipNetworks"] = []string{"10.244.99.1/32"} }))
	must(t, next.EditEndpoint(func(e lab.Resource) {
		e.Spec()["ipNetworks"] = []string{next.IP4().String() + "/32", address.String() + "/32"}
	}))
	eventually(t, func() error {
		if answered.Load() == 0 {
			out, _ := n.Routes("-4")
			return fmt.Errorf("the next pod does not answer at %s:\n%s", address, out)
		}
		return nil
	})
	before := answered.Load() + 20 // more of all three connections
	eventually(t, func() error { return atLeast("answers", answered.Load(), before) })
	if got := stolen.Load(); got != 0 {
		t.Errorf("the next pod received %d datagrams of the old pod's connections, which its policy denies", got)
	}

	// The address moves back, now to a pod without policy, and works.
	must(t, next.EditEndpoint(func(e lab.Resource) { e.Spec()["ipNetworks"] = []string{next.IP4().String() + "/32"} }))
	must(t, old.EditEndpoint(func(e lab.Resource) { e.Spec()["ipNetworks"] = []string{address.String() + "/32"} }))
	eventually(t, func() error { return lab.Ping(client.Namespace, address) })
}

// startSingle starts a node with its own datastore and the pool 10.244.0.0/16.
func startSingle(t *testing.T, name string) *lab.Node {
	t.Helper()
	l := world.NewLab(t, lab.Spec{Name: world.LabName(name), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools")...))
	must(t, n.Ready(limit))
	must(t, n.Apply("{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: four}, spec: {cidr: "+
		"10.244.0.0/16}}"))
	return n
}

// udpIn opens a socket in a namespace.
func udpIn(t *testing.T, ns string, port int) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	var err error
	inside := namespace.Inside(ns, func() { conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}) })
	must(t, errors.Join(inside, err))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// establish exchanges datagrams until the connection is established.
func establish(t *testing.T, from, to *net.UDPConn, address netip.AddrPort) {
	t.Helper()
	buf := make([]byte, 64)
	eventually(t, func() error {
		if _, err := from.WriteToUDPAddrPort([]byte("hello"), address); err != nil {
			return err
		}
		_ = to.SetReadDeadline(time.Now().Add(time.Second))
		_, back, err := to.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		if _, err := to.WriteToUDPAddrPort([]byte("hello"), back); err != nil {
			return err
		}
		_ = from.SetReadDeadline(time.Now().Add(time.Second))
		_, _, err = from.ReadFromUDPAddrPort(buf)
		return err
	})
}

// count counts the datagrams that a socket receives, and sends them back if echo is set, until it is closed.
func count(conn *net.UDPConn, n *atomic.Int64, echo bool) {
	go func() {
		for buf := make([]byte, 64); ; {
			length, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			n.Add(1)
			if echo {
				_, _ = conn.WriteToUDPAddrPort(buf[:length], from)
			}
		}
	}()
}
