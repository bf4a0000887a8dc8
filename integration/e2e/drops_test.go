package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/flowlog"
	"github.com/manxnet/manx/integration/lab"
)

const denyPing = `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: no-ping}
spec:
  selector: all()
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: ICMP}
  - {action: Allow}
`

// TestDrops tells who was dropped by which rule: in the file, to subscribers, and only to those whose filter wants it.
func TestDrops(t *testing.T) {
	l := newLab(t, lab.Spec{Name: labName("d"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	file := filepath.Join(n.Dir, "drops.json")
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--ipv4pool-cidr=10.244.0.0/16", "--flow-log="+file)...))
	must(t, n.Ready(limit))
	a, err := n.AddPod("a")
	must(t, err)
	b, err := n.AddPod("b")
	must(t, err)
	must(t, lab.Ping(a.Namespace, b.IP4()))
	must(t, n.Apply(denyPing))
	eventually(t, func() error {
		if lab.Ping(a.Namespace, b.IP4()) == nil {
			return fmt.Errorf("the ping still passes")
		}
		return nil
	})
	var drop flowlog.Entry
	eventually(t, func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if err := json.Unmarshal([]byte(line), &drop); err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			if drop.Source == a.IP4() && drop.Destination == b.IP4() {
				return nil
			}
		}
		return fmt.Errorf("no line tells of it:\n%s", text)
	})
	if drop.Rule != "GlobalNetworkPolicy/no-ping ingress 1" || drop.Protocol != "icmp" || drop.ICMPType == nil || *drop.ICMPType != 8 ||
		!strings.HasPrefix(drop.SourceEndpoint, "default/n1-cni-") || drop.SourceEndpoint == drop.DestinationEndpoint {
		t.Errorf("wrong line: %s", drop)
	}
	// Subscribers hear of flows that are new: each ping is one with another ICMP identifier, but the same flow for the log
	// until ten seconds have passed, so the other direction is asked about.
	heard := make(chan string, 1)
	go func() {
		out, _ := n.Run("timeout", "6", filepath.Join(l.Spec.Bin, "manxctl"), "--socket="+n.Socket(), "drops", "--net", b.IP4().String(), "--rule", "no-ping")
		heard <- out
	}()
	quiet, _ := n.Run("timeout", "1", filepath.Join(l.Spec.Bin, "manxctl"), "--socket="+n.Socket(), "drops", "--port", "81")
	if lab.Ping(b.Namespace, a.IP4()) == nil {
		t.Error("the ping back passes")
	}
	out := <-heard
	if !strings.Contains(out, fmt.Sprintf("%s (default/", b.IP4())) || !strings.Contains(out, "icmp type 8 code 0  dropped by GlobalNetworkPolicy/no-ping ingress 1") {
		t.Errorf("manxctl drops printed %q", out)
	}
	if quiet != "" {
		t.Errorf("manxctl drops --port 81 printed %q", quiet)
	}
}

// TestCleanup: an ended daemon leaves its rules in force, and "manxd cleanup" removes them.
func TestCleanup(t *testing.T) {
	l := newLab(t, lab.Spec{Name: labName("x"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--ipv4pool-cidr=10.244.0.0/16")...))
	must(t, n.Ready(limit))
	a, err := n.AddPod("a")
	must(t, err)
	b, err := n.AddPod("b")
	must(t, err)
	must(t, n.Apply(denyPing))
	blocked := func() error {
		if lab.Ping(a.Namespace, b.IP4()) == nil {
			return fmt.Errorf("the ping passes")
		}
		return nil
	}
	eventually(t, blocked)
	must(t, n.Manxd().Stop(limit))
	must(t, blocked())
	out, err := n.Run(filepath.Join(l.Spec.Bin, "manxd"), "cleanup", "--run-dir="+filepath.Join(n.Dir, "run"))
	must(t, err)
	if !strings.Contains(out, "removed the table inet manx") {
		t.Errorf("manxd cleanup printed %q", out)
	}
	if tables, err := n.Run("nft", "list", "tables"); err != nil || strings.Contains(tables, "manx") {
		t.Errorf("tables that are left: %q, %v", tables, err)
	}
}
