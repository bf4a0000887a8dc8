package policy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// TestPolicyFeatures tests the features of policies beyond plain access, each as a user would: objects in the
// datastore, packets of real sockets, and their arrival at the other end.
func TestPolicyFeatures(t *testing.T) {
	c := newPolicyLab(t, "f", map[string]string{"a": "n2", "b": "n2", "far": "n1"})
	var list []entry
	for name, p := range c.Pods {
		list = append(list, c.labelled(t, name, map[string]string{"role": name}))
		echo(t, p.Namespace, 7001, 7002, 7003, 7004)
		serveTCP(t, p.Namespace, 7001, 7002, 7003, 7004)
	}
	for _, n := range c.Nodes {
		echo(t, n.Namespace, 7001, 7002)
		serveTCP(t, n.Namespace, 7001)
	}
	c.enforced(t, c.change(t, list...))
	for _, test := range []struct {
		name string
		run  func(*cluster, *testing.T)
	}{
		{"what is denied may be refused instead of dropped", (*cluster).testReject},
		{"packets a second are limited", (*cluster).testPacketRates},
		{"connections are limited", (*cluster).testMaxConnections},
		{"a tier goes and comes back", (*cluster).testTierGoes},
		{"a policy has two spellings", (*cluster).testSpellings},
		{"host endpoints decide before connections are tracked", (*cluster).testUntracked},
		{"host endpoints decide before addresses are translated", (*cluster).testPreDNAT},
		{"conditions on protocols and ports", (*cluster).testConditions},
		{"named ports differ from pod to pod", (*cluster).testNamedPorts},
		{"profiles change", (*cluster).testProfiles},
		{"a pod may pretend to be whom its endpoint names", (*cluster).testSpoofedSources},
		{"packets that no workload should send", (*cluster).testOddPackets},
		{"what is established goes on", (*cluster).testEstablished},
		{"large datagrams", (*cluster).testFragments},
		{"what leaves the cluster is translated", (*cluster).testTranslation},
		{"services that nobody serves", (*cluster).testServiceLoop},
		{"rules about services follow their endpoints", (*cluster).testServiceRules},
		{"interfaces of host endpoints come and go", (*cluster).testHostInterfaces},
		{"service accounts and namespaces", (*cluster).testAccounts},
		{"settings change under traffic", (*cluster).testSettingsUnderTraffic},
		{"dropped and logged packets are reported", (*cluster).testFlowLog},
		{"policy is switched off and on", (*cluster).testPolicyOff},
		{"the folder of status files follows FelixConfiguration", (*cluster).testStatusFolder},
	} {
		before := content(table(t, c.N2))
		ok := t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			test.run(c, t)
			t.Logf("took %.1f s", time.Since(start).Seconds())
		})
		if now := content(table(t, c.N2)); ok && now != before { // each restores it
			t.Errorf("%s: something stayed behind:\n%s\nwas\n%s", test.name, now, before)
		}
		if !ok {
			break
		}
	}
}

// The possible results of a client's first packet, as seen by the client.
const (
	answered = "answered"
	refused  = "refused" // ECONNREFUSED
	lost     = "lost"
)

// attempt is a new connection of a client, and its expected result.
type attempt struct {
	name    string
	ns      string
	network string // tcp, udp, sctp or ping
	to      netip.AddrPort
	want    string
}

// try makes connections until one is not lost, or the time is over.
func (k attempt) try(patience time.Duration) string {
	for end := time.Now().Add(patience); ; {
		var timeout net.Error
		switch err := k.tryOnce(); {
		case err == nil:
			return answered
		case errors.Is(err, syscall.ECONNREFUSED):
			return refused
		// The host itself gets an error when its own packet is dropped.
		case !errors.Is(err, syscall.EPERM) && (!errors.As(err, &timeout) || !timeout.Timeout()):
			return err.Error()
		case time.Now().After(end):
			return lost
		}
	}
}

// lastPort is the source port of the last UDP attempt. The kernel accepts the packets of a known flow, so a port of an
// earlier attempt must not be reused. Other programs do not use ports from 10000 on.
var lastPort atomic.Uint32

func freshPort() *net.UDPAddr { return &net.UDPAddr{Port: int(10000 + lastPort.Add(1)%20000)} }

// tryOnce makes one connection, or sends one ping, and waits for a reply.
func (k attempt) tryOnce() error {
	if k.network == "ping" {
		if err := namespace.Command(k.ns, "ping", "-n", "-q", "-c", "1", "-W", "0.3",
			k.to.Addr().String()).Run(); err != nil {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	var conn net.Conn
	var err error
	inside := namespace.Inside(k.ns, func() {
		dialer := net.Dialer{Timeout: 200 * time.Millisecond}
		switch k.network {
		case "sctp":
			conn, err = net.Dial("ip:132", k.to.Addr().String())
		case "udp":
			dialer.LocalAddr = freshPort()
			fallthrough
		default:
			conn, err = dialer.Dial(k.network, k.to.String())
		}
	})
	if err = errors.Join(inside, err); err != nil || k.network == "tcp" {
		if conn != nil {
			conn.Close()
		}
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	if k.network == "sctp" {
		return associate(conn.(*net.IPConn), k.to.Port())
	}
	if _, err = conn.Write([]byte("hello")); err == nil {
		_, err = conn.Read(make([]byte, 128))
	}
	return err
}

// associate sends an INIT and waits for the reply.
func associate(conn *net.IPConn, port uint16) error {
	own := uint16(freshPort().Port) // the kernel passes packets of a known association
	_, err := conn.Write(lab.SCTPPacket{Source: own, Destination: port, Chunk: lab.SCTPInit,
		Initiate: uint32(own)}.Encode())
	for buf := make([]byte, 256); err == nil; {
		var n int
		if n, _, err = conn.ReadFrom(buf); err != nil { // without the header of IPv4
			break
		}
		// A kernel with SCTP refuses the association itself, which is a reply from there, too.
		if p, ok := lab.DecodeSCTP(buf[:n]); ok && p.Source == port && p.Destination == own &&
			(p.Chunk == lab.SCTPInitAck || p.Chunk == lab.SCTPAbort) {
			return nil
		}
	}
	return err
}

// tryAll makes all the connections at once. Those that should not be lost may take their time.
func tryAll(t *testing.T, list []attempt) {
	t.Helper()
	results := make([]string, len(list))
	var all sync.WaitGroup
	for i, k := range list {
		all.Go(func() {
			patience := 20 * time.Second // the kernel sends each client one refusal a second at most
			if k.want == lost {
				patience = 0
			}
			results[i] = k.try(patience)
		})
	}
	all.Wait()
	for i, k := range list {
		if results[i] != k.want {
			t.Errorf("%s (%s %s): %s, want %s", k.name, k.network, k.to, results[i], k.want)
		}
	}
}

// both are the addresses of each family.
func both(v4, v6 netip.Addr) []netip.Addr { return []netip.Addr{v4, v6} }

// apply writes objects with manxctl and waits until the nodes' kernels have the resulting rules.
func (c *cluster) apply(t *testing.T, yaml string) {
	t.Helper()
	must(t, c.N1.Apply(yaml))
	last := int64(0)
	for _, d := range documents(t, yaml) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		r, err := c.Etcd.Get(ctx, d.path)
		must(t, err)
		for _, kv := range r.Kvs {
			last = max(last, kv.ModRevision)
		}
	}
	c.enforced(t, last)
}

// awaitPolicy waits until a started daemon reports its policy.
func awaitPolicy(t *testing.T, n *lab.Node) {
	t.Helper()
	eventually(t, func() error {
		out, err := n.Get("/metrics")
		if err == nil && lines(out, "manx_policy_revision ") == "" {
			err = fmt.Errorf("%s does not report its policy", n.Name)
		}
		return err
	})
}

// temporary writes objects unchanged, and restores the earlier ones when the test ends.
func (c *cluster) temporary(t *testing.T, list ...entry) {
	t.Helper()
	var before []entry
	for _, d := range list {
		before = append(before, entry{d.path, c.Raw(t, d.path)[d.path]})
	}
	t.Cleanup(func() { c.enforced(t, c.change(t, before...)) })
	c.enforced(t, c.change(t, list...))
}

// felix is a FelixConfiguration.
func felix(name, spec string) string {
	return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: %s}\n"+
		"spec: {%s}\n---\n", name, spec)
}
