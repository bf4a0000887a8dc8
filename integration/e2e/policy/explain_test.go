package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

const explainedPolicies = `
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: four}
spec: {cidr: 10.244.0.0/16, natOutgoing: true}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: first}
spec: {order: 10}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: first.server}
spec:
  tier: first
  selector: projectcalico.org/name == 'server' || role == 'server'
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [7001]}}
  - {action: Allow, protocol: TCP, destination: {ports: [7002]}}
  - {action: Pass, protocol: TCP, destination: {ports: [7003]}}
---
apiVersion: projectcalico.org/v3
kind: StagedGlobalNetworkPolicy
metadata: {name: later}
spec:
  selector: all()
  types: [Egress]
  egress:
  - {action: Deny}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: n2-eth0, labels: {role: host}}
spec: {node: n2, interfaceName: eth0}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: hosts}
spec:
  selector: role == 'host'
  types: [Ingress, Egress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [7001]}}
  - {action: Allow}
  egress:
  - {action: Allow}
`

// explained is the part of an answer that the test checks.
type explained struct {
	Allowed bool   `json:"allowed"`
	By      string `json:"by"`
	Stages  []struct {
		Node       string `json:"node"`
		Programmed bool   `json:"programmed"`
	} `json:"stages"`
	Routes []struct {
		Node      string `json:"node"`
		Installed bool   `json:"installed"`
	} `json:"routes"`
}

func explainOn(t *testing.T, n *lab.Node, from, to, flow string) explained {
	t.Helper()
	out, err := n.Manxctl("explain", from, to, flow, "-o", "json")
	must(t, err)
	var x explained
	if err := json.Unmarshal([]byte(out), &x); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return x
}

// serveTCP accepts connections in a namespace.
func serveTCP(t *testing.T, ns string, ports ...int) {
	t.Helper()
	for _, port := range ports {
		world.ListenTCP(t, ns, port, func(c net.Conn) { c.Close() })
	}
}

// TestExplain compares the output of explain on either node with the kernel's decision about packets.
func TestExplain(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("x"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools", "--policy-counters")...))
	must(t, n2.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools", "--policy-counters")...))
	must(t, errors.Join(n1.Ready(limit), n2.Ready(limit)))
	must(t, n1.Apply(explainedPolicies))
	client, err := n1.AddPod("client")
	must(t, err)
	near, err := n1.AddPod("near")
	must(t, err)
	server, err := n2.AddPod("server")
	must(t, err)
	bare, err := n2.AddPod("bare")
	must(t, err)
	out, err := n1.Manxctl("get", "weps", "-A", "-o", "json")
	must(t, err)
	var list struct {
		Items []map[string]any `json:"items"`
	}
	must(t, json.Unmarshal([]byte(out), &list))
	names := map[string]string{} // by address
	for _, item := range list.Items {
		meta, spec := item["metadata"].(map[string]any), item["spec"].(map[string]any)
		name := fmt.Sprintf("wep/%s/%s", meta["namespace"], meta["name"])
		address, _, _ := strings.Cut(spec["ipNetworks"].([]any)[0].(string), "/")
		names[address] = name
		switch address {
		case server.IP4().String():
			meta["labels"] = map[string]any{"role": "server"}
		case bare.IP4().String():
			spec["profiles"] = []any{}
		}
	}
	for _, item := range list.Items {
		raw, err := json.Marshal(item)
		must(t, err)
		must(t, n1.Apply(string(raw)))
	}
	serveTCP(t, server.Namespace, 7001, 7002, 7003, 7004)
	serveTCP(t, near.Namespace, 7001)
	serveTCP(t, bare.Namespace, 7001)
	serveTCP(t, n2.Namespace, 7001, 7002)
	serveTCP(t, n1.Namespace, 7001)
	eventually(t, func() error {
		out, err := n2.Manxctl("get", "policies", "--no-headers")
		if err == nil && !strings.Contains(out, "first.server") {
			err = errors.New("n2 does not know the policies yet")
		}
		return err
	})

	tests := []struct {
		name     string
		ns, from string
		to       netip.Addr
		port     int
		allowed  bool
		by       string // part of the decider's name
	}{
		{"denied by a policy", client.Namespace, client.IP4().String(), server.IP4(), 7001, false,
			"GlobalNetworkPolicy/first.server ingress 1"},
		{"allowed by a policy", client.Namespace, client.IP4().String(), server.IP4(), 7002, true,
			"GlobalNetworkPolicy/first.server ingress 2"},
		{"passed to the profile", client.Namespace, client.IP4().String(), server.IP4(), 7003, true,
			"Profile/k8s-pod-network ingress 1"},
		{"denied by the end of a tier", client.Namespace, client.IP4().String(), server.IP4(), 7004, false,
			"the end of tier first"},
		{"a staged policy changes nothing", client.Namespace, client.IP4().String(), near.IP4(), 7001, true,
			"Profile/k8s-pod-network egress 1"},
		{"no profile allows", client.Namespace, client.IP4().String(), bare.IP4(), 7001, false,
			"no policy and no profile allows it"},
		{"denied by a host's policy", client.Namespace, client.IP4().String(), n2.IP4, 7001, false,
			"GlobalNetworkPolicy/hosts ingress 1"},
		{"allowed by a host's policy", client.Namespace, client.IP4().String(), n2.IP4, 7002, true,
			"GlobalNetworkPolicy/hosts ingress 2"},
		{"between hosts", n1.Namespace, "node/n1", n2.IP4, 7001, false, "GlobalNetworkPolicy/hosts ingress 1"},
		{"from a host to a pod of another", n1.Namespace, "node/n1", server.IP4(), 7001, false,
			"GlobalNetworkPolicy/first.server ingress 1"},
		{"from a pod to its own host", client.Namespace, client.IP4().String(), n1.IP4, 7001, true,
			"Profile/k8s-pod-network egress 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if did := world.ConnectsTCP(t, test.ns, test.to, test.port, test.allowed); did != test.allowed {
				t.Fatalf("a connection comes about: %v, want %v", did, test.allowed)
			}
			for _, n := range []*lab.Node{n1, n2} {
				from, to, flow := test.from, test.to.String(), fmt.Sprintf("tcp/%d", test.port)
				if name, ok := names[from]; ok {
					from = name
				}
				x := explainOn(t, n, from, to, flow)
				if x.Allowed != test.allowed || !strings.Contains(x.By, test.by) {
					text, err := n.Manxctl("explain", from, to, flow)
					t.Errorf("on %s: allowed %v by %s, want %v by %s\n%s%v", n.Name, x.Allowed, x.By, test.allowed,
						test.by, text, err)
				}
				for _, s := range x.Stages {
					if s.Programmed != (s.Node == n.Name) {
						t.Errorf("on %s: the rules of %s are programmed: %v", n.Name, s.Node, s.Programmed)
					}
				}
			}
		})
	}

	t.Run("counters", func(t *testing.T) {
		out, err := n2.Manxctl("describe", "gnp", "first.server")
		must(t, err)
		if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
			return strings.Contains(line, "2. Allow tcp to port 7002") && strings.Contains(line, ": packets 1,")
		}) {
			t.Errorf("one connection to port 7002 is not counted once:\n%s", out)
		}
		if n := world.Metric(t, n2, `manx_policy_rule_packets_total{direction="ingress",kind="GlobalNetworkPolicy",`+
			`namespace="",policy="first.server",rule="2"}`); n != 1 {
			t.Errorf("the metric of one connection to port 7002 is %v", n)
		}
	})
	t.Run("ruleset", func(t *testing.T) {
		out, err := n2.Manxctl("dump", "ruleset", "--elements", "1")
		must(t, err)
		if !strings.HasPrefix(out, "table inet manx {") ||
			!strings.Contains(out, "chain pi/GlobalNetworkPolicy/first.server {") {
			t.Errorf("not the table of this node:\n%s", out)
		}
	})
}
