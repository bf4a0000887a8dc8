package node

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestWithoutBGP takes BGP away from a node, and gives it back: pods of the node and their policy go on meanwhile,
// nothing is left of the routes of peers, and every command says why.
func TestWithoutBGP(t *testing.T) {
	t.Parallel()
	l := world.NewLab(t, lab.Spec{Name: world.LabName("w"), Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2", Rack: 1}}})
	c := &world.Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], ToR1: l.ToRs[0], Pods: map[string]*lab.Pod{}}
	n := c.N1
	args := append(n.EmbedDatastore(), "--no-default-pools", "--ip=autodetect")
	must(t, n.StartManxd(args...))
	must(t, n.Ready(limit))
	objects := "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n" +
		"spec: {cidr: " + world.Pool4.String() + ", blockSize: 28, ipipMode: Never, natOutgoing: false}\n"
	for _, x := range c.Nodes {
		objects += "---\n" + world.TorPeer(x, "tor-"+x.Name, c.ToR1.Address(x), "")
	}
	must(t, n.Apply(objects))
	must(t, c.N2.StartManxd(append(lab.UseDatastore(n), "--no-default-pools", "--ip=autodetect")...))
	for _, x := range c.Nodes {
		must(t, x.Ready(limit))
	}
	add := func(x *lab.Node, name string) {
		t.Helper()
		pod, err := x.AddPod(name)
		must(t, err)
		c.Pods[name] = pod
	}
	add(n, "n1-p1")
	add(n, "n1-p2")
	add(c.N2, "n2-p1")
	c.Reachable(t, "n1-p1", "n2-p1")
	learned := func() string { // not the blackholes of own blocks, which stay
		out, err := n.Run("ip", "route", "show", "type", "unicast", "proto", "bird")
		must(t, err)
		return strings.TrimSpace(out)
	}
	block := world.Blocks(t, c.N2, "-4")[0].String()
	if !strings.Contains(learned(), block) {
		t.Fatalf("BGP gave no route to %s: %q", block, learned())
	}

	flow, err := l.StartFlow(c.Pods["n1-p1"].Namespace, c.Pods["n1-p2"].IP4())
	must(t, err)
	must(t, n.Manxd().Stop(limit))
	must(t, n.StartManxd(append(args, "--networking=vxlan")...))
	must(t, n.Ready(limit))
	eventually(t, func() error {
		if got := learned(); got != "" {
			return fmt.Errorf("routes of peers are left: %s", got)
		}
		return nil
	})
	if sent, lost, err := flow.Stop(); err != nil || sent == 0 || lost > 0 {
		t.Errorf("of %d packets between pods of the node %d were lost: %v", sent, lost, err)
	}
	t.Run("what it says", func(t *testing.T) { saysThatBGPIsOff(t, n) })
	t.Run("pods and policy", func(t *testing.T) {
		add(n, "n1-p3")
		must(t, lab.Ping(c.Pods["n1-p1"].Namespace, c.Pods["n1-p3"].IP4()))
		must(t, n.Apply(world.GlobalPolicy("closed", "selector: projectcalico.org/namespace == 'default', "+
			"types: [Ingress]")))
		eventually(t, func() error {
			if lab.Ping(c.Pods["n1-p1"].Namespace, c.Pods["n1-p3"].IP4()) == nil {
				return errors.New("policy has no effect")
			}
			return nil
		})
		_, err := n.Manxctl("delete", "globalnetworkpolicy", "closed")
		must(t, err)
		eventually(t, func() error { return lab.Ping(c.Pods["n1-p1"].Namespace, c.Pods["n1-p3"].IP4()) })
	})

	must(t, n.Manxd().Stop(limit))
	must(t, n.StartManxd(args...))
	must(t, n.Ready(limit))
	for _, x := range c.Nodes {
		c.Established(t, x, 2) // the router, and the other node
	}
	eventually(t, func() error { return bgpNoted(n, false) })
	c.Reachable(t, "n1-p1", "n2-p1")
}

// bgpNoted returns an error unless the Node has the note that BGP is off, or has none.
func bgpNoted(n *lab.Node, want bool) error {
	out, err := n.Manxctl("get", "node", n.Name, "-o", "yaml")
	if err == nil && strings.Contains(out, "manx.io/bgp-off") != want {
		err = fmt.Errorf("the note that BGP is off, want %t:\n%s", want, out)
	}
	return err
}

// saysThatBGPIsOff asks a node without BGP in each way in which users ask.
func saysThatBGPIsOff(t *testing.T, n *lab.Node) {
	const off = "BGP is off (CALICO_NETWORKING_BACKEND=vxlan)"
	conn, err := n.Dial("tcp", "127.0.0.1:179")
	if err == nil {
		conn.Close()
		t.Error("something listens on port 179")
	}
	ready, err := n.Get("/readyz?verbose")
	if err != nil || strings.Contains(ready, "bgp") {
		t.Errorf("readiness: %v\n%s", err, ready)
	}
	metrics, err := n.Get("/metrics")
	if err != nil || strings.Contains(metrics, "\nmanx_bgp_") {
		t.Errorf("metrics of BGP, %v", err)
	}
	for _, ask := range [][]string{{"status"}, {"node", "status"}} {
		if out, err := n.Manxctl(ask...); err != nil || !strings.Contains(out, off) {
			t.Errorf("%s: %v\n%s", ask, err, out)
		}
	}
	status, _ := n.Manxctl("status")
	for _, want := range []string{"no route to other nodes without BGP: pool pods4 (10.244.0.0/16) has no vxlanMode",
		"BGPPeer/tor-n1: " + off + ": this node has no session with this peer"} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	if strings.Contains(status, "BGPPeer/tor-n2") {
		t.Errorf("a peer of another node is named:\n%s", status)
	}
	eventually(t, func() error { return bgpNoted(n, true) })
	for _, ask := range [][]string{{"get", "peers"}, {"get", "peers", "-w"}, {"describe", "peer", "tor-n1"},
		{"routes", "--rejected"}, {"history"}, {"reset", "peer", "tor-n1", "--soft"}, {"watch", "--peers"},
		{"node", "drain"}, {"node", "drain", "n1"}, {"node", "drain", "n1", "--peer", "tor-n1"}} {
		began := time.Now()
		out, err := n.Manxctl(ask...)
		if err == nil || !strings.Contains(out+err.Error(), off) {
			t.Errorf("%s: %v\n%s", ask, err, out)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s answers after %v", ask, took)
		}
	}
	if path, err := exec.LookPath("gobgp"); err == nil {
		if out, err := n.Run(path, "neighbor"); err == nil || !strings.Contains(out+err.Error(), off) {
			t.Errorf("gobgp neighbor: %v\n%s", err, out)
		}
	}
}

// foreignPod is a pod that the CNI plugin of a cloud has connected: by a pair of veth, with a host route of its own.
type foreignPod struct{ iface, namespace, address string }

// plugForeign makes such a pod.
func plugForeign(t *testing.T, n *lab.Node, p foreignPod) {
	t.Helper()
	must(t, exec.Command("ip", "netns", "add", p.namespace).Run())
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", p.namespace).Run() })
	inside := func(args ...string) {
		t.Helper()
		world.IP(t, n, strings.Join(append([]string{"-n", p.namespace}, args...), " "))
	}
	const mac = "ee:ee:ee:ee:ee:ee"
	world.IP(t, n, fmt.Sprintf("link add %s netns %s address %s type veth peer name eth0 netns %s", p.iface,
		n.Namespace, mac, p.namespace))
	inside("addr", "add", p.address+"/32", "dev", "eth0")
	inside("link", "set", "eth0", "up")
	inside("link", "set", "lo", "up")
	inside("route", "add", "169.254.1.1", "dev", "eth0")
	inside("neigh", "add", "169.254.1.1", "lladdr", mac, "dev", "eth0", "nud", "permanent")
	inside("route", "add", "default", "via", "169.254.1.1", "dev", "eth0")
	world.IP(t, n, fmt.Sprintf("-n %s link set %s up", n.Namespace, p.iface))
	if strings.HasPrefix(p.iface, "cali") {
		return // Manx makes the rest
	}
	world.IP(t, n, fmt.Sprintf("-n %s route add %s/32 dev %s proto static scope link", n.Namespace, p.address, p.iface))
}

// hostNetwork is the state of a host that belongs to other programs: routes, rules, devices, addresses, permanent
// neighbours and the settings of interfaces.
func hostNetwork(t *testing.T, n *lab.Node) (lines []string) {
	t.Helper()
	for _, command := range []string{"ip route show table all", "ip -6 route show table all", "ip rule", "ip -o link",
		"ip -o addr", "ip neigh show nud permanent", "tc qdisc", "grep -r . /proc/sys/net/ipv4/conf",
		"grep -r . /proc/sys/net/ipv6/conf --exclude=stable_secret", "grep -r . /proc/sys/net/ipv4/neigh",
		"cat /proc/sys/net/ipv4/ip_forward"} {
		out, err := n.Run("sh", "-c", command+" | sed -e /cali/d -e /fe80::/d")
		must(t, err)
		lines = append(lines, strings.Split(out, "\n")...)
	}
	return lines
}

// TestPolicyBesideAnotherNetwork enforces policy for pods that the CNI plugins of clouds have connected, and for one of
// Calico's own plugin, as beside flannel. Nothing else of the host changes.
func TestPolicyBesideAnotherNetwork(t *testing.T) {
	t.Parallel()
	l := world.NewLab(t, lab.Spec{Name: world.LabName("f"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	var pods []foreignPod
	for i, prefix := range []string{"eni", "azv", "gke", "cali"} {
		pods = append(pods, foreignPod{prefix + "12345678901", fmt.Sprintf("%s-%s", l.Spec.Name, prefix),
			fmt.Sprintf("172.30.0.%d", i+2)})
	}
	_, err := n.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	must(t, err)
	for _, p := range pods {
		plugForeign(t, n, p)
	}
	world.IP(t, n, fmt.Sprintf("-n %s link add cni0 type bridge", n.Namespace))
	world.IP(t, n, fmt.Sprintf("-n %s addr add 172.31.0.1/24 dev cni0", n.Namespace))
	world.IP(t, n, fmt.Sprintf("-n %s link set cni0 up", n.Namespace))
	before := hostNetwork(t, n)

	must(t, n.StartManxd(append(n.EmbedDatastore(), "--networking=none", "--interface-prefix=eni,azv,gke,cali")...))
	must(t, n.Ready(limit))
	objects := "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: open}\n" +
		"spec: {ingress: [{action: Allow}], egress: [{action: Allow}]}\n"
	behind := foreignPod{"gke99999999999", "", "172.31.0.9"} // of a bridge, so that its interface has another name
	for _, p := range append(slices.Clone(pods), behind) {
		objects += fmt.Sprintf("---\napiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n"+
			"metadata: {namespace: default, name: n1-k8s-%s-eth0, labels: {role: %s}}\n"+
			"spec: {node: n1, orchestrator: k8s, pod: %s, endpoint: eth0, interfaceName: %s, profiles: [open], "+
			"ipNetworks: [%s/32]}\n", p.iface, p.iface[:3], p.iface, p.iface, p.address)
	}
	must(t, n.Apply(objects))
	reach := func(to foreignPod) error {
		for _, from := range pods {
			if from == to {
				continue
			}
			if out, err := exec.Command("ip", "netns", "exec", from.namespace, "ping", "-c1", "-W1",
				to.address).CombinedOutput(); err != nil {
				return fmt.Errorf("%s to %s: %w: %s", from.iface, to.iface, err, out)
			}
		}
		return nil
	}
	for _, p := range pods {
		eventually(t, func() error { return reach(p) })
	}
	for _, p := range pods {
		must(t, n.Apply(world.GlobalPolicy("closed", "selector: role == '"+p.iface[:3]+"', types: [Ingress]")))
		eventually(t, func() error {
			if reach(p) == nil {
				return fmt.Errorf("policy of %s has no effect", p.iface)
			}
			return nil
		})
	}
	after := hostNetwork(t, n)
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("gone from the host: %s", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("new on the host: %s", line)
		}
	}
	out, err := n.Run("ip", "route", "show", pods[3].address)
	if err != nil || !strings.Contains(out, "dev "+pods[3].iface) {
		t.Errorf("the pod of Calico's own plugin has no route: %v %s", err, out)
	}
	status, err := n.Manxctl("status")
	if err != nil || !strings.Contains(status, "BGP is off (CALICO_NETWORKING_BACKEND=none)") {
		t.Errorf("status: %v\n%s", err, status)
	}
	endpoints, err := n.Manxctl("node", "endpoints")
	if err != nil || !strings.Contains(endpoints, "interface gke99999999999, where its policy would be enforced, "+
		"does not exist") || strings.Count(endpoints, "applied") != len(pods) {
		t.Errorf("endpoints: %v\n%s", err, endpoints)
	}
	for _, kind := range []string{"ippools", "blockaffinities"} {
		if out, err := n.Manxctl("get", kind, "-o", "name"); err != nil || strings.TrimSpace(out) != "" {
			t.Errorf("%s: %v %s", kind, err, out)
		}
	}
}
