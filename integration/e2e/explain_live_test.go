package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
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

// live is a running manxctl explain --live.
type live struct {
	t      *testing.T
	cmd    *exec.Cmd
	errors strings.Builder
	out    chan string // what it prints after it was ready
}

// startLive runs it until it waits for packets.
func startLive(t *testing.T, n *lab.Node, args ...string) *live {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(binaries(t), "manxctl"))
	must(t, err)
	x := &live{t: t, out: make(chan string, 1)}
	x.cmd = lab.InNamespace(n.Namespace, bin, append([]string{"--socket=" + n.Socket(), "explain", "--live", "--live-timeout=60s"}, args...)...)
	x.cmd.Stderr = &x.errors
	out, err := x.cmd.StdoutPipe()
	must(t, err)
	must(t, x.cmd.Start())
	t.Cleanup(func() { _ = x.cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			_ = x.cmd.Wait()
			t.Fatalf("manxctl explain %v ended early: %s%s", args, line, x.errors.String())
		}
		if strings.HasSuffix(line, "; send one now\n") {
			break
		}
	}
	go func() {
		rest, _ := io.ReadAll(lines)
		x.out <- string(rest)
	}()
	return x
}

// end waits for the end and wants an exit code and texts.
func (x *live) end(code int, say ...string) string {
	x.t.Helper()
	out := <-x.out
	_ = x.cmd.Wait()
	if have := x.cmd.ProcessState.ExitCode(); have != code {
		x.t.Errorf("exit code %d, want %d:\n%s%s", have, code, out, x.errors.String())
	}
	for _, want := range say {
		if !strings.Contains(out+x.errors.String(), want) {
			x.t.Errorf("does not say %q:\n%s%s", want, out, x.errors.String())
		}
	}
	return out
}

var countersInText = regexp.MustCompile(`counter packets \d+ bytes \d+`)

// TestExplainLive asks the kernel whether explanations are right.
func TestExplainLive(t *testing.T) {
	l := newLab(t, lab.Spec{Name: labName("l"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
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
	if !connects(t, client.Namespace, near.IP4(), 7002, true) || !connects(t, client.Namespace, far.IP4(), 7002, true) {
		t.Fatal("the pods do not reach each other")
	}
	clean := table(t, n1)
	tables := func() string {
		out, err := n1.Run("nft", "list", "tables")
		must(t, err)
		return out
	}
	before := tables()
	from := client.IP4().String()
	dial := func(to netip.Addr, port int) { connects(t, client.Namespace, to, port, false) }

	t.Run("allowed", func(t *testing.T) {
		x := startLive(t, n1, from, near.IP4().String(), "tcp/7002")
		if !strings.Contains(tables(), "manx-trace-") {
			t.Error("no table traces")
		}
		dial(near.IP4(), 7002)
		out := x.end(0, "forward-to-workload: accept by GlobalNetworkPolicy/server ingress 4", "The kernel agrees: ALLOWED by Profile/k8s-pod-network egress 1", "(connection: new)", "=> sent out cali")
		if now := tables(); now != before {
			t.Errorf("tables that are left: %s", now)
		}
		t.Log(out)
	})
	t.Run("denied", func(t *testing.T) {
		x := startLive(t, n1, from, near.IP4().String(), "tcp/7001")
		dial(near.IP4(), 7001)
		x.end(0, "=> dropped by GlobalNetworkPolicy/server ingress 1", "The kernel agrees: DENIED by GlobalNetworkPolicy/server ingress 1")
	})
	_ = net.Dial
	_ = fmt.Sprint
	_ = time.Second
	_ = syscall.SIGINT
	_ = json.Unmarshal
	_ = countersInText
	_ = clean
}
