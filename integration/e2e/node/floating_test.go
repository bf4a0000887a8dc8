package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// Floating addresses, of pools without addresses for pods.
var floating = []netip.Addr{netip.MustParseAddr("10.250.0.7"), netip.MustParseAddr("fd00:250::7")}

const floatingPort = 7100

// TestFloatingAddresses reaches a pod by its floating addresses: from another pod of the node, from the host, from a
// pod of another node and from itself. Then it moves the addresses to another pod, and disables them.
func TestFloatingAddresses(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("v"), IPv6: true, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	flags := []string{"--no-default-pools", "--ip=autodetect", "--ip6=autodetect",
		"--ip-autodetection-method=interface=eth0", "--ip6-autodetection-method=interface=eth0"}
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), flags...)...))
	must(t, n1.Ready(limit))
	must(t, n2.StartManxd(append(lab.UseDatastore(n1), flags...)...))
	must(t, n2.Ready(limit))
	for name, cidr := range map[string]string{"four": world.Pool4.String(), "six": world.Pool6.String()} {
		must(t, n1.Apply(fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: %s}, spec: "+
			"{cidr: %q}}", name, cidr)))
	}
	for name, cidr := range map[string]string{"floating4": "10.250.0.0/24", "floating6": "fd00:250::/64"} {
		must(t, n1.Apply(fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: %s, "+
			"annotations: {manx.io/floating: 'true'}}, spec: {cidr: %q, disabled: true}}", name, cidr)))
	}
	pods := map[string]*lab.Pod{}
	for name, n := range map[string]*lab.Node{"first": n1, "second": n1, "remote": n2} {
		p, err := n.AddPod(name, lab.DualStack)
		must(t, err)
		pods[name] = p
		serveName(t, p)
	}
	sources := map[string]string{"the pod beside it": pods["second"].Namespace, "the host": n1.Namespace,
		"a pod of another node": pods["remote"].Namespace, "the pod itself": pods["first"].Namespace}

	must(t, pods["first"].EditEndpoint(func(e lab.Resource) { e.Spec()["ipNATs"] = nats(pods["first"]) }))
	for _, a := range floating {
		if got, err := query(t, pods["second"].Namespace, a); err == nil {
			t.Errorf("%s answers at %s before floating addresses are enabled", got, a)
		}
	}
	setFloating(t, n1, "Enabled")
	for name, ns := range sources {
		awaitName(t, name, ns, "first")
	}

	// A connection continues with the new pod of the address.
	conns := map[netip.Addr]*net.UDPConn{}
	for _, a := range floating {
		conns[a] = dialFrom(t, pods["remote"].Namespace, a)
		must(t, checkName(conns[a], "first"))
	}
	must(t, pods["first"].EditEndpoint(func(e lab.Resource) { delete(e.Spec(), "ipNATs") }))
	must(t, pods["second"].EditEndpoint(func(e lab.Resource) { e.Spec()["ipNATs"] = nats(pods["second"]) }))
	for name, ns := range sources {
		awaitName(t, name, ns, "second")
	}
	for a, conn := range conns {
		if err := lab.Eventually(limit, func() error { return checkName(conn, "second") }); err != nil {
			t.Errorf("a conversation with %s that began before the move: %v", a, err)
		}
	}

	setFloating(t, n1, "Disabled")
	eventually(t, func() error {
		for i, family := range []string{"-4", "-6"} {
			for _, n := range l.Nodes {
				if r := world.Routes(t, n.Namespace, family, floating[i].String()); len(r) > 0 {
					return fmt.Errorf("%s has a route to %s: %v", n.Name, floating[i], r)
				}
			}
		}
		return nil
	})
	for _, a := range floating {
		eventually(t, func() error {
			if got, err := query(t, pods["first"].Namespace, a); err == nil {
				return fmt.Errorf("%s answers at %s after floating addresses were disabled", got, a)
			}
			return nil
		})
	}
}

func setFloating(t *testing.T, n *lab.Node, to string) {
	t.Helper()
	must(t, n.Apply(fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: "+
		"default}, spec: {floatingIPs: %s}}", to)))
}

// nats translates the floating addresses to those of a pod.
func nats(p *lab.Pod) []map[string]string {
	return []map[string]string{
		{"externalIP": floating[0].String(), "internalIP": p.IP4().String()},
		{"externalIP": floating[1].String(), "internalIP": p.IP6().String()},
	}
}

// serveName makes a pod reply with its name.
func serveName(t *testing.T, p *lab.Pod) {
	t.Helper()
	var conn *net.UDPConn
	var err error
	must(t, errors.Join(namespace.Inside(p.Namespace,
		func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: floatingPort}) }), err))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 64); ; {
			_, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort([]byte(p.Name), from)
		}
	}()
}

// dialFrom opens a connected socket: it receives replies only from the address itself.
func dialFrom(t *testing.T, ns string, to netip.Addr) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	var err error
	must(t, namespace.Inside(ns, func() {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, floatingPort)))
	}))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// queryOn sends a datagram and returns the reply.
func queryOn(conn *net.UDPConn) (string, error) {
	if _, err := conn.Write([]byte("who?")); err != nil {
		return "", err
	}
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

func checkName(conn *net.UDPConn, want string) error {
	got, err := queryOn(conn)
	if err == nil && got != want {
		err = fmt.Errorf("%s answers, want %s", got, want)
	}
	return err
}

func query(t *testing.T, ns string, to netip.Addr) (string, error) {
	t.Helper()
	var conn *net.UDPConn
	var err error
	must(t, namespace.Inside(ns, func() {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, floatingPort)))
	}))
	if err != nil { // no route
		return "", err
	}
	defer conn.Close()
	return queryOn(conn)
}

// awaitName waits until this pod replies at all floating addresses.
func awaitName(t *testing.T, source, ns, want string) {
	t.Helper()
	for _, a := range floating {
		err := lab.Eventually(limit, func() error {
			got, err := query(t, ns, a)
			if err == nil && got != want {
				err = fmt.Errorf("%s answers", got)
			}
			return err
		})
		if err != nil {
			t.Fatalf("%s queries %s of %s: %v", source, a, want, err)
		}
	}
}
