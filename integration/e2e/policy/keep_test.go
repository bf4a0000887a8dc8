package policy

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// printed is a program's output so far.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// inBackground runs a program on a node until the test ends; out gets its output.
func inBackground(t *testing.T, n *lab.Node, out io.Writer, name string, args ...string) {
	t.Helper()
	cmd := namespace.Command(n.Namespace, name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// ruleWatch records nftables' events of changes on a node.
type ruleWatch struct{ printed }

// String is the recorded events, without the lines that only mark the end of a transaction.
func (m *ruleWatch) String() string {
	var list []string
	for line := range strings.Lines(m.printed.String()) {
		if !strings.HasPrefix(line, "# new generation") {
			list = append(list, line)
		}
	}
	return strings.Join(list, "")
}

func watchRules(t *testing.T, n *lab.Node) *ruleWatch {
	t.Helper()
	m := &ruleWatch{}
	inBackground(t, n, m, "nft", "monitor")
	// It is listening once it reports a table of the test's own.
	for i := 0; ; i++ {
		if i == 100 {
			t.Fatal("nft monitor reports nothing")
		}
		_, err := n.Run("sh", "-c", "nft add table ip listening && nft delete table ip listening")
		must(t, err)
		time.Sleep(10 * time.Millisecond)
		if strings.Contains(m.String(), "listening") {
			break
		}
	}
	m.mu.Lock()
	m.text.Reset()
	m.mu.Unlock()
	return m
}

// ourChanges are those of Manx's table.
func (m *ruleWatch) ourChanges() (list []string) {
	for line := range strings.Lines(m.String()) {
		if strings.Contains(line, "inet manx") {
			list = append(list, line)
		}
	}
	return list
}

// guarded is a policy that allows one port of the server and denies another, and a flood of both.
const guardPolicy = `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: guard}
spec: {selector: role == 'server', types: [Ingress], ingress: [{action: Allow, protocol: UDP, source: {selector: has(role)}, destination: {ports: [7003]}}]}
`

type guarded struct {
	*flood
	allowed, denied []*stream
}

func (c *cluster) guard(t *testing.T) *guarded {
	t.Helper()
	list := documents(t, guardPolicy)
	for _, name := range []string{"client", "remote", "server"} {
		list = append(list, c.labelled(t, name, map[string]string{"role": name}))
	}
	c.enforced(t, c.change(t, list...))
	t.Cleanup(func() { c.change(t, asDeleted(documents(t, guardPolicy))...) })
	g, server := &guarded{flood: newFlood(time.Millisecond)}, c.Pods["server"]
	for _, a := range server.IPs {
		for _, from := range []string{"client", "remote"} {
			ns := c.Pods[from].Namespace
			g.allowed = append(g.allowed, g.add(t, from+" to "+a.String(), ns, at(a, freePort), server.Namespace))
			g.denied = append(g.denied, g.add(t, from+" to "+a.String(), ns, at(a, deniedPort), server.Namespace))
		}
	}
	return g
}

// testRestartKeepsPolicy ends and kills the daemon under a flood, and starts it again: nothing is written, no denied
// packet passes, and no allowed packet is lost.
func (c *cluster) testRestartKeepsPolicy(t *testing.T) {
	n, g := c.N2, c.guard(t)
	before, m := table(t, n), watchRules(t, n)
	g.start(t)
	for _, s := range g.allowed {
		g.flows(t, s)
	}
	from := g.rounds.Load() + 1
	for i := range 3 {
		if i%2 == 0 {
			must(t, n.Manxd().Stop(limit))
		} else {
			n.Manxd().Kill()
		}
		down := g.rounds.Load()
		for _, s := range g.allowed {
			must(t, g.waitFor(s, down))
		}
		must(t, n.StartManxd())
		eventually(t, func() error { // it has compared the kernel's table with the desired one
			page, err := n.Get("/metrics")
			if err == nil && !strings.Contains(page, "\nmanx_policy_in_sync 1\n") {
				err = fmt.Errorf("%s is not in sync", n.Name)
			}
			return err
		})
		up := g.rounds.Load()
		for _, s := range g.allowed {
			must(t, g.waitFor(s, up))
		}
	}
	must(t, n.Ready(limit))
	g.stop()
	for _, s := range g.allowed {
		s.checkAll(t, from, g.rounds.Load())
	}
	for _, s := range g.denied {
		s.checkNone(t)
	}
	if list := m.ourChanges(); len(list) > 0 {
		t.Errorf("the restarted daemon wrote %d times:\n%s", len(list), strings.Join(list[:min(20, len(list))], ""))
	}
	if now := table(t, n); uncounted(now) != uncounted(before) {
		t.Errorf("the table is another one:\n%s\nwas\n%s", now, before)
	}
	t.Logf("3 restarts in %d rounds of %d datagrams", g.rounds.Load()-from, len(g.streams))
}

// testResyncWritesNothing makes the daemon read the datastore and the kernel again.
func (c *cluster) testResyncWritesNothing(t *testing.T) {
	n := c.N2
	before, m := table(t, n), watchRules(t, n)
	transactions, compared := world.Metric(t, n, "manx_policy_transactions_total"),
		world.Metric(t, n, "manx_policy_full_comparisons_total")
	logged := len(n.Log())
	c.N1.Manxd().Kill() // the datastore
	must(t, c.N1.StartManxd())
	must(t, c.N1.Ready(limit))
	eventually(t, func() error {
		if !strings.Contains(n.Log()[logged:], "datastore in sync") {
			return fmt.Errorf("%s has not read the datastore again", n.Name)
		}
		return nil
	})
	must(t, n.Ready(limit))
	// A transaction for a chain of the table without a change: only a read of the table shows this.
	_, err := n.Run("nft", "add chain inet manx to-workload")
	must(t, err)
	eventually(t, func() error {
		if now := world.Metric(t, n, "manx_policy_full_comparisons_total"); now <= compared {
			return fmt.Errorf("%s has not compared", n.Name)
		}
		return nil
	})
	if now := world.Metric(t, n, "manx_policy_transactions_total"); now != transactions {
		t.Errorf("%.0f transactions for nothing", now-transactions)
	}
	if list := m.ourChanges(); len(list) > 1 { // the one above
		t.Errorf("something was written:\n%s", strings.Join(list, ""))
	}
	if now := table(t, n); uncounted(now) != uncounted(before) {
		t.Errorf("the table is another one:\n%s\nwas\n%s", now, before)
	}
}

var counts = regexp.MustCompile(`packets \d+ bytes \d+`)

// uncounted is a table's text without the counts of its named counters.
func uncounted(text string) string { return counts.ReplaceAllString(text, "") }

// accidental is what a table's text has beside its rules: handles, and named counters, which stay when no rule counts.
var accidental = regexp.MustCompile(` # handle \d+|(?m)^\tcounter [^{]*\{[^}]*\}\n\n?`)

// content is a table's text that does not depend on the order in which its objects were made.
func content(text string) string {
	text = strings.TrimSuffix(strings.TrimPrefix(accidental.ReplaceAllString(text, ""), "table inet manx {\n"), "}\n")
	blocks := strings.Split(text, "\n\t}\n")
	for i, b := range blocks {
		if head, rest, ok := strings.Cut(b, "elements = {"); ok {
			elements := strings.Split(strings.Trim(strings.TrimSpace(rest), "}"), ",")
			for k := range elements {
				elements[k] = strings.Join(strings.Fields(elements[k]), " ")
			}
			slices.Sort(elements)
			blocks[i] = head + strings.Join(elements, "\n")
		}
		blocks[i] = strings.TrimSpace(blocks[i])
	}
	slices.Sort(blocks)
	return strings.Join(blocks, "\n")
}

// testPolicyDrift has other programs edit Manx's table.
func (c *cluster) testPolicyDrift(t *testing.T) {
	n, g := c.N2, c.guard(t)
	want := content(table(t, n))
	g.start(t)
	iface := regexp.MustCompile(`"(cali[0-9a-f]+)"`).FindStringSubmatch(table(t, n))[1]
	quickest := limit
	for _, x := range []struct{ name, do string }{
		{"all rules of the host flushed", "flush ruleset"},
		{"the table deleted", "delete table inet manx"},
		{"an element deleted", "delete element inet manx to-workload { " + iface + " }"},
		{"an element added", "add element inet manx pools4 { 192.0.2.0/24 }"},
		{"a chain flushed", "flush chain inet manx pi/GlobalNetworkPolicy/guard"},
		{"a rule put in front", "insert rule inet manx forward-to-workload accept"},
		{"a rule added", "add rule inet manx pi/GlobalNetworkPolicy/guard accept"},
		{"a chain added", "add chain inet manx mine"},
		{"the table made dormant", "add table inet manx { flags dormant; }"},
	} {
		logged, start := len(n.Log()), time.Now()
		_, err := n.Run("nft", x.do)
		must(t, err)
		eventually(t, func() error {
			text, err := n.Run("nft", "-a", "list", "table", "inet", "manx")
			if err != nil {
				return err // it is not back yet
			}
			if now := content(text); now != want {
				return fmt.Errorf("%s: the table is not as it was:\n%s\nwas\n%s", x.name, now, want)
			}
			return nil
		})
		took := time.Since(start)
		quickest = min(quickest, took)
		eventually(t, func() error {
			if !strings.Contains(n.Log()[logged:], "repaired what another program had changed") {
				return fmt.Errorf("%s: the log has nothing about it:\n%s", x.name, n.Log()[logged:])
			}
			return nil
		})
		t.Logf("%s: repaired after at most %d ms: %s", x.name, took.Milliseconds(),
			world.LineWith(n.Log()[logged:], "repaired"))
		// Each open port is closed, and each closed one is open.
		round := g.rounds.Load() + 1 // it may have begun before the repair
		for _, s := range g.allowed {
			must(t, g.waitFor(s, round+20))
		}
		for _, s := range g.denied {
			if last := s.last(); last > round {
				t.Errorf("%s: %s: datagrams that are denied passed after the repair, until round %d", x.name, s.name,
					last)
			}
		}
	}
	if quickest > time.Second {
		t.Errorf("the quickest repair took %d ms", quickest.Milliseconds())
	}
	g.stop()
}
