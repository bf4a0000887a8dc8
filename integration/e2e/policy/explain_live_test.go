package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

const livePolicies = `
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: four}
spec: {cidr: 10.244.0.0/16, natOutgoing: true}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: server}
spec:
  selector: all()
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [7001]}}
  - {action: Allow, protocol: TCP, source: {ports: [4242]}, destination: {ports: [7003]}}
  - {action: Deny, protocol: TCP, destination: {ports: [7003]}}
  - {action: Allow}
`

// TestExplainLive compares explanations with the kernel's decisions.
func TestExplainLive(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("l"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools", "--policy-counters")...))
	must(t, n2.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools")...))
	must(t, errors.Join(n1.Ready(limit), n2.Ready(limit)))
	must(t, n1.Apply(livePolicies))
	client, err := n1.AddPod("client")
	must(t, err)
	near, err := n1.AddPod("near")
	must(t, err)
	far, err := n2.AddPod("far")
	must(t, err)
	for _, p := range []*lab.Pod{near, far} {
		serveTCP(t, p.Namespace, 7001, 7002, 7003)
	}
	keepTCP(t, near.Namespace, 7010)
	if !world.ConnectsTCP(t, client.Namespace, near.IP4(), 7002, true) || !world.ConnectsTCP(t, client.Namespace,
		far.IP4(), 7002, true) {
		t.Fatal("the pods do not reach each other")
	}
	clean := table(t, n1)
	commits := world.Metric(t, n1, "manx_policy_transactions_total")
	tables := func() string {
		out, err := n1.Run("nft", "list", "tables")
		must(t, err)
		return out
	}
	before := tables()
	from := client.IP4().String()
	dial := func(to netip.Addr, port int) { world.ConnectsTCP(t, client.Namespace, to, port, false) }

	t.Run("allowed", func(t *testing.T) {
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp/7002")
		if !strings.Contains(tables(), "manx-trace-") {
			t.Error("no table traces")
		}
		dial(near.IP4(), 7002)
		x.End(0, "forward-to-workload: accept by GlobalNetworkPolicy/server ingress 4",
			"The kernel agrees: ALLOWED by Profile/k8s-pod-network egress 1", "(connection: new)", "=> sent out cali")
		if now := tables(); now != before {
			t.Errorf("tables that are left: %s", now)
		}
	})
	t.Run("denied", func(t *testing.T) {
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp/7001")
		dial(near.IP4(), 7001)
		x.End(0, "=> dropped by GlobalNetworkPolicy/server ingress 1",
			"The kernel agrees: DENIED by GlobalNetworkPolicy/server ingress 1")
	})
	t.Run("the port of the packet decides", func(t *testing.T) {
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp") // explained without a port as allowed
		dial(near.IP4(), 7001)
		x.End(0, "The kernel agrees: DENIED by GlobalNetworkPolicy/server ingress 1")
		x = world.StartLiveExplain(t, n1, from, near.IP4().String(),
			"tcp/7003") // without the port of the source as denied
		connectFrom(t, client.Namespace, 4242, near.IP4(), 7003)
		x.End(0, "forward-to-workload: accept by GlobalNetworkPolicy/server ingress 2", "The kernel agrees: ALLOWED by")
	})
	t.Run("on both nodes", func(t *testing.T) {
		x, y := world.StartLiveExplain(t, n1, from, far.IP4().String(), "tcp/7001"),
			world.StartLiveExplain(t, n2, from, far.IP4().String(), "tcp/7001")
		dial(far.IP4(), 7001)
		x.End(0, "=> sent out", "The kernel agrees: DENIED by GlobalNetworkPolicy/server ingress 1")
		y.End(0, "=> dropped by GlobalNetworkPolicy/server ingress 1", "The kernel agrees: DENIED by")
		_, err := n2.Manxctl("explain", "--live", from, near.IP4().String())
		if err == nil || !strings.Contains(err.Error(), "do not come through node n2: ask on node n1") {
			t.Errorf("on a node that has nothing to do with it: %v", err)
		}
	})
	t.Run("from a node", func(t *testing.T) {
		x := world.StartLiveExplain(t, n1, "node/n1", near.IP4().String(), "tcp/7002")
		world.ConnectsTCP(t, n1.Namespace, near.IP4(), 7002, false)
		// a host always reaches its own pods
		x.End(0, "=> sent out cali", "The kernel agrees: ALLOWED: no policy is about it")
		x, y := world.StartLiveExplain(t, n1, "node/n1", far.IP4().String(), "tcp/7001"),
			world.StartLiveExplain(t, n2, "node/n1", far.IP4().String(), "tcp/7001")
		world.ConnectsTCP(t, n1.Namespace, far.IP4(), 7001, false)
		x.End(0, "=> sent out eth0", "The kernel agrees: DENIED by")
		y.End(0, "=> dropped by GlobalNetworkPolicy/server ingress 1", "The kernel agrees: DENIED by")
		x = world.StartLiveExplain(t, n1, from, "node/n1", "icmp")
		must(t, lab.Ping(client.Namespace, n1.IP4))
		x.End(0, "=> delivered to this host", "The kernel agrees: ALLOWED by")
	})
	t.Run("dropped by another table", func(t *testing.T) {
		_, err := n1.Run("nft",
			`add table ip other; add chain ip other FORWARD { type filter hook forward priority 10; policy accept; }; add rule ip other FORWARD tcp dport 7002 counter drop comment "maintenance"`)
		must(t, err)
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp/7002")
		dial(near.IP4(), 7002)
		x.End(1,
			`The kernel does otherwise: policy allows it, but it was dropped by table ip other, chain FORWARD, rule 1 (handle 2) "maintenance"`, "its rules: nft -a list chain ip other FORWARD", "explained: ALLOWED by")
		_, err = n1.Run("nft", "delete table ip other; add table ip other; add chain ip other FORWARD { type filter "+
			"hook forward priority -10; policy drop; }")
		must(t, err)
		x = world.StartLiveExplain(t, n1, "--output=json", from, near.IP4().String(), "tcp/7002")
		dial(near.IP4(), 7002)
		var explanation struct {
			Allowed bool
			Live    struct {
				Node    string
				Agrees  bool
				Packets []struct {
					Dropped bool
					Verdict string
					Reasons []string
				}
			}
		}
		if err := json.Unmarshal([]byte(x.End(1)), &explanation); err != nil {
			t.Error(err)
		}
		if p := explanation.Live.Packets; !explanation.Allowed || explanation.Live.Agrees ||
			explanation.Live.Node != "n1" || len(p) != 1 ||
			!p[0].Dropped || p[0].Verdict != "differs" ||
			p[0].Reasons[0] != "policy allows it, but it was dropped by table ip other, chain FORWARD (policy drop)" {
			t.Errorf("got %+v", explanation)
		}
		_, err = n1.Run("nft", "delete table ip other")
		must(t, err)
	})
	t.Run("not routed", func(t *testing.T) {
		_, err := n1.Run("ip", "rule", "add", "to", near.IP4().String(), "prohibit", "priority", "5")
		must(t, err)
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp/7002")
		dial(near.IP4(), 7002)
		x.End(1, "The kernel does otherwise: policy allows it, but it was lost behind prerouting: the host does "+
			"not route it")
		_, err = n1.Run("ip", "rule", "del", "priority", "5")
		must(t, err)
	})
	t.Run("a service", func(t *testing.T) {
		_, err := n1.Run("nft", "add table ip proxy; add chain ip proxy pre { type nat hook prerouting priority "+
			"dstnat; }; add rule ip proxy pre ip daddr 10.96.0.10 tcp dport 80 dnat to "+near.IP4().String()+":7001")
		must(t, err)
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp/7001") // the pod behind it
		y := world.StartLiveExplain(t, n1, from, "10.96.0.10", "tcp/80")          // the service
		dial(netip.MustParseAddr("10.96.0.10"), 80)
		x.End(0, "The kernel agrees: DENIED by GlobalNetworkPolicy/server ingress 1")
		y.End(0, "now from "+from+" to "+near.IP4().String(), "The kernel agrees: DENIED by "+
			"GlobalNetworkPolicy/server ingress 1")
		_, err = n1.Run("nft", "delete table ip proxy")
		must(t, err)
	})
	t.Run("a known connection", func(t *testing.T) {
		var c net.Conn
		must(t, namespace.Inside(client.Namespace, func() { c, err = net.Dial("tcp", at(near.IP4(), 7010).String()) }))
		must(t, err)
		defer c.Close()
		x := world.StartLiveExplain(t, n1, "--live-timeout=2s", from, near.IP4().String(), "tcp/7010")
		_, err = c.Write([]byte("more"))
		must(t, err)
		x.End(1, "(connection: established)", "This is no evidence about the explanation: it belongs to a connection "+
			"that was already known",
			"no packet to compare came through node n1 within 2s")
	})
	t.Run("no packet, and interrupted", func(t *testing.T) {
		world.StartLiveExplain(t, n1, "--live-timeout=100ms", from, near.IP4().String(), "tcp/7009").End(1,
			"no packet of this flow came through node n1 within 100ms")
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp/7009")
		must(t, x.Cmd.Process.Signal(syscall.SIGINT))
		x.End(1, "interrupted: no packet of this flow came through node n1")
		eventually(t, func() error {
			if now := tables(); now != before {
				return fmt.Errorf("tables that are left: %s", now)
			}
			return nil
		})
	})
	t.Run("Manx's table is not touched", func(t *testing.T) {
		if now := world.Metric(t, n1, "manx_policy_transactions_total"); now != commits ||
			world.Metric(t, n1, "manx_policy_drift_repairs_total") != 0 {
			t.Errorf("Manx has changed its table: %v transactions, were %v", now, commits)
		}
		counted := regexp.MustCompile(`packets (\d+) bytes \d+`)
		now := table(t, n1)
		if counted.ReplaceAllString(now, "") != counted.ReplaceAllString(clean, "") {
			t.Errorf("the rules are now\n%s\nand were\n%s", now, clean)
		}
		old := counted.FindAllStringSubmatch(clean, -1)
		for i, m := range counted.FindAllStringSubmatch(now, -1) {
			if len(m[1]) < len(old[i][1]) || len(m[1]) == len(old[i][1]) && m[1] < old[i][1] {
				t.Errorf("counter %d went from %s to %s", i, old[i][0], m[0])
			}
		}
	})
	t.Run("the daemon is killed", func(t *testing.T) {
		x := world.StartLiveExplain(t, n1, from, near.IP4().String(), "tcp/7009")
		if !strings.Contains(tables(), "manx-trace-") {
			t.Error("no table traces")
		}
		n1.Manxd().Kill()
		x.End(1, "manxd cannot be reached")
		if now := tables(); now != before {
			t.Errorf("tables that are left: %s", now)
		}
	})
}

// connectFrom connects from a fixed port and resets the connection, so that it can connect again.
func connectFrom(t *testing.T, ns string, port int, to netip.Addr, toPort int) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Timeout: time.Second}
	must(t, namespace.Inside(ns, func() {
		if c, err := d.Dial("tcp", at(to, uint16(toPort)).String()); err == nil {
			c.Close()
		}
	}))
}

// keepTCP accepts connections and keeps them.
func keepTCP(t *testing.T, ns string, port int) {
	t.Helper()
	world.ListenTCP(t, ns, port, func(c net.Conn) { t.Cleanup(func() { c.Close() }) })
}
