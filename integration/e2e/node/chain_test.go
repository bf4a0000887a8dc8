package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/stock"
)

// multus is a stand-in for Multus in the folder of plugins: it delegates to the network that manxd configures, as eth0,
// and to a further one, as net1. Paths: the further network's folder, cnitool.
const multus = `#!/bin/sh
verb=$(echo "$CNI_COMMAND" | tr A-Z a-z)
first() { CNI_IFNAME=eth0 "%[2]s" "$verb" net "$CNI_NETNS"; }
second() { NETCONFPATH=%[1]s CNI_IFNAME=net1 "%[2]s" "$verb" second "$CNI_NETNS" >/dev/null; }
case "$verb" in
add) result=$(first) && second && echo "$result" ;;
del) second && first ;;
check) first && second ;;
esac
`

// TestChainedPlugins runs plugins of the CNI project behind Manx, as a runtime does: some from the list of calico-node
// before, one that another program has added since, and all of them after manxd has written a new MTU. A stand-in for
// Multus calls Manx, and a further plugin of the project. The removal gives calico-node's list back, with the added
// one.
func TestChainedPlugins(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("h"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	conf, bin := filepath.Join(n.Dir, "net.d"), filepath.Join(n.Dir, "bin")
	must(t, errors.Join(os.Mkdir(conf, 0o755), os.Mkdir(bin, 0o755)))
	for _, p := range []stock.Program{stock.Portmap, stock.Bandwidth, stock.Tuning, stock.SBR, stock.PTP,
		stock.HostLocal} {
		path, err := p.Path()
		if err != nil {
			t.Skip(err)
		}
		must(t, os.Symlink(path, filepath.Join(bin, p.Name)))
	}
	_, err := n.Run(filepath.Join(l.Spec.Bin, "manx-cni"), "install", "--to="+bin)
	must(t, err)
	list := filepath.Join(conf, "10-calico.conflist")
	const before = `{"name": "net", "cniVersion": "0.3.1", "plugins": [
  {"type": "calico", "mtu": 1500, "ipam": {"type": "calico-ipam"}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "ingressRate": 800000000, "ingressBurst": 80000000},
  {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}}]}`
	must(t, os.WriteFile(list, []byte(before), 0o600))
	template, err := json.Marshal(map[string]any{"name": "net", "cniVersion": "1.0.0", "plugins": []any{
		map[string]any{"type": "calico", "datastore_type": "etcdv3", "mtu": "MTU", "manxd_socket": n.Socket(),
			"nodename_file": filepath.Join(n.Dir, "nodename"), "ipam_lock_file": filepath.Join(n.Dir, "ipam.lock"),
			"endpoint_status_dir": filepath.Join(n.Dir, "endpoint-status"),
			"ipam":                map[string]any{"type": "calico-ipam"}},
		map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}}}})
	must(t, err)
	start := func(mtu int, want string) {
		t.Helper()
		must(t, n.StartManxd(append(n.EmbedDatastore(), "--no-default-pools", "--cni-conf-dir="+conf,
			"--cni-network-config="+strings.Replace(string(template), `"MTU"`, "__CNI_MTU__", 1),
			fmt.Sprint("--cni-mtu=", mtu))...))
		must(t, n.Ready(limit))
		eventually(t, func() error {
			text, err := os.ReadFile(list)
			if plugins := chain(text); err == nil && plugins != fmt.Sprint(mtu, want) {
				err = fmt.Errorf("the list has %s", plugins)
			}
			return err
		})
	}
	start(1400, " calico portmap bandwidth tuning")
	must(t, n.Apply(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: four}
spec: {cidr: 10.244.0.0/16}
---
apiVersion: projectcalico.org/v3
kind: Profile
metadata: {name: net}
spec:
  ingress: [{action: Allow}]
  egress: [{action: Allow}]`))
	// Another program decodes the list, appends its plugin, and writes the list anew, with its keys in another order.
	var all map[string]any
	text, err := os.ReadFile(list)
	must(t, errors.Join(err, json.Unmarshal(text, &all)))
	all["plugins"] = append(all["plugins"].([]any), map[string]any{"type": "sbr", "table": 4711})
	text, err = json.Marshal(all)
	must(t, errors.Join(err, os.WriteFile(list+".tmp", text, 0o644), os.Rename(list+".tmp", list)))
	must(t, n.Manxd().Stop(limit))
	start(1390, " calico portmap bandwidth tuning sbr")

	cnitool, err := exec.Command("go", "tool", "-n", "cnitool").Output()
	must(t, err)
	second, chosen := filepath.Join(n.Dir, "second"), filepath.Join(conf, "00-multus.conf")
	const multusConf = `{"name": "multus", "cniVersion": "1.0.0", "type": "multus"}`
	must(t, errors.Join(os.Mkdir(second, 0o755), os.WriteFile(chosen, []byte(multusConf), 0o600),
		os.WriteFile(filepath.Join(bin, "multus"), fmt.Appendf(nil, multus, second, strings.TrimSpace(string(cnitool))),
			0o755),
		os.WriteFile(filepath.Join(second, "second.conflist"), fmt.Appendf(nil, `{"name": "second", "cniVersion": "1.0.0",
  "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.99.0.0/24"}}]}`, second),
			0o600)))
	pod, other := l.Spec.Name+"-pod", l.Spec.Name+"-other"
	names := map[string]string{pod: "pod-796582", other: "pod-952174"} // both have the interface caliddf2565c959
	for name := range names {
		must(t, namespace.Add(name))
		t.Cleanup(func() { _ = namespace.Remove(name) })
	}
	run := func(verb, pod string) (string, error) {
		cmd := namespace.Command(n.Namespace, strings.TrimSpace(string(cnitool)), verb, "multus", "/run/netns/"+pod)
		cmd.Env = append(os.Environ(), "NETCONFPATH="+conf, "CNI_PATH="+bin,
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+names[pod],
			`CAP_ARGS={"portMappings": [{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}]}`)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("cnitool %s: %w: %s", verb, err, out)
		}
		return string(out), err
	}
	_, err = run("add", pod)
	must(t, err)
	if _, err := run("add", other); err == nil || !strings.Contains(err.Error(),
		"pod default/pod-952174 is in use by default/pod-796582 on this node") {
		t.Errorf("a pod with the interface of another one: %v", err)
	}
	world.ListenTCP(t, pod, 80, func(c net.Conn) { c.Close() })
	if !world.ConnectsTCP(t, l.ToRs[0].Namespace, n.IP4, 8081, true) {
		t.Error("portmap: no connection to the host port")
	}
	if !world.ConnectsTCP(t, n.Namespace, netip.MustParseAddr("10.99.0.2"), 80, true) {
		t.Error("multus: no connection to the address of the second network")
	}
	for command, want := range map[string]string{"ip addr show net1": "inet 10.99.0.2",
		"ip link show eth0": "mtu 1390 ", "ip rule": "lookup 4711",
		"cat /proc/sys/net/ipv4/conf/eth0/arp_notify": "1"} {
		out, err := namespace.Command(pod, "sh", "-c", command).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: no %q in %s (%v)", command, want, out, err)
		}
	}
	if out, err := n.Run("tc", "qdisc"); err != nil || !strings.Contains(out, "qdisc tbf") {
		t.Errorf("bandwidth: %s, %v", out, err)
	}
	_, err = run("check", pod)
	must(t, err)
	_, err = run("del", pod)
	must(t, err)
	if out, err := n.Run("sh", "-c", "tc qdisc; ip link"); err != nil || strings.Contains(out, "tbf") ||
		strings.Contains(out, "cali") {
		t.Errorf("left after DEL: %s, %v", out, err)
	}

	must(t, n.Manxd().Stop(limit))
	out, err := n.Run(filepath.Join(l.Spec.Bin, "manx-cni"), "uninstall", "--to="+bin, "--conf-dir="+conf)
	must(t, err)
	text, err = os.ReadFile(list)
	if must(t, err); chain(text) != "1500 calico portmap bandwidth tuning sbr" ||
		!strings.Contains(out, "restored the network configuration") {
		t.Errorf("after the removal the list is %s: %s", text, out)
	}
	if text, err = os.ReadFile(chosen); err != nil || string(text) != multusConf {
		t.Errorf("after the removal the file of Multus is %s, %v", text, err)
	}
}

// chain returns the MTU and the types of the plugins of a network configuration list.
func chain(text []byte) string {
	var list struct {
		Plugins []struct {
			Type string
			MTU  int
		}
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Plugins) == 0 {
		return fmt.Sprintf("%q: %v", text, err)
	}
	out := fmt.Sprint(list.Plugins[0].MTU)
	for _, p := range list.Plugins {
		out += " " + p.Type
	}
	return out
}
