package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	"github.com/manxnet/manx/integration/stock"
)

// patience is the time for which a command may fail: an earlier command may have reset a session.
const patience = 20 * time.Second

// example is a node with a peer, pods and policies, with the names of the documents.
type example struct {
	*lab.Lab
	n     *lab.Node
	tools string
	names *strings.Replacer
}

// world has the objects that commands name but the documents do not show as YAML.
const world = `
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: tor-1}
spec: {peerIP: 10.0.1.1, asNumber: 65000}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: n2}
spec: {bgp: {ipv4Address: 10.200.1.12/24}}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: node-2}
spec: {bgp: {ipv4Address: 10.200.1.13/24}}
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: NAME}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: first}
spec: {order: 1, defaultAction: Pass}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: first.server}
spec: {tier: first, selector: role == 'server', ingress: [{action: Allow}]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: deny-all}
spec: {selector: role == 'nobody', types: [Ingress]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {selector: app == 'web', ingress: [{action: Allow}]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: shop, labels: {app: web}}
spec: {orchestrator: k8s, node: node-1, pod: web, endpoint: eth0, interfaceName: cali1, ipNetworks: [192.168.9.1]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: shop, labels: {app: web}}
spec: {orchestrator: k8s, node: node-1, pod: web-0, endpoint: eth0, interfaceName: cali2, ipNetworks: [192.168.9.2]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: shop, labels: {app: db}}
spec: {orchestrator: k8s, node: node-1, pod: db, endpoint: eth0, interfaceName: cali3, ipNetworks: [192.168.9.3]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: shop, labels: {app: db}}
spec: {orchestrator: k8s, node: node-1, pod: db-0, endpoint: eth0, interfaceName: cali4, ipNetworks: [192.168.9.4]}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: shop, labels: {app: other}}
spec: {orchestrator: k8s, node: node-1, pod: other, endpoint: eth0, interfaceName: cali5, ipNetworks: [192.168.9.5]}
`

// peers, pool and nodes are files that commands name.
const (
	peers = `{"apiVersion": "projectcalico.org/v3", "kind": "BGPPeer", "metadata": {"name": "spine"},
 "spec": {"peerIP": "10.0.1.77", "asNumber": 65077}}`
	policyTests = "- {from: shop/web, to: shop/db, port: tcp/5432, expect: deny}"
	pool        = `{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: more}, spec: {cidr: 10.245.0.0/16}}`
	node        = `{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: node-1},
 spec: {bgp: {ipv4Address: 10.200.1.11/24}}}`
)

// TestCommandsInLab runs, unchanged, the commands that a node with a peer can serve.
func TestCommandsInLab(t *testing.T) {
	bin, err := lab.Require("ip", "bird", "birdc", "gobgp", "nft", "unshare", "timeout")
	if err != nil {
		t.Skip(err)
	}
	e := newExample(t, bin)
	seen := map[string]bool{}
	var last []command
	for _, c := range all(t) {
		w := testMethodOf(c)
		if w == nil || !c.whole || w.reason != "" || seen[c.text] || strings.HasPrefix(c.text, "helm") {
			continue
		}
		seen[c.text] = true
		if removes(c) {
			last = append(last, c)
			continue
		}
		t.Run(c.where+" "+c.text, func(t *testing.T) { e.try(t, c) })
	}
	if len(seen) < 60 {
		t.Errorf("only %d commands ran", len(seen))
	}
	// A command that removes rules and routes runs while no manxd restores them.
	if err := e.n.Manxd().Stop(patience); err != nil {
		t.Error(err)
	}
	for _, c := range last {
		t.Run(c.where+" "+c.text, func(t *testing.T) { e.succeeds(t, c, 0) })
	}
}

// removes reports whether a command removes objects that a running manxd restores.
func removes(c command) bool {
	return strings.HasPrefix(c.text, "nft") || strings.HasPrefix(c.text, "for family")
}

func newExample(t *testing.T, bin string) *example {
	t.Helper()
	l, err := lab.New(lab.Spec{Name: "docs", Bin: bin, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	e := &example{Lab: l, n: l.Nodes[0], tools: filepath.Join(l.Dir, "tools")}
	e.names = strings.NewReplacer("10.0.1.1 ", l.ToRs[0].Address(e.n).String()+" ", "10.0.1.1\n",
		l.ToRs[0].Address(e.n).String()+"\n", "10.0.1.1,", l.ToRs[0].Address(e.n).String()+",", "node-1", "n1",
		"/root/n2", "client-n2", "NAME", "n9")
	gobgp4, err := stock.Gobgp4.Path()
	must(t, err)
	must(t, os.MkdirAll(e.tools, 0o755))
	must(t, os.Symlink(gobgp4, filepath.Join(e.tools, "gobgp")))
	must(t, e.n.StartManxd(append(e.n.EmbedDatastore(), "--flow-log=stream", "--controllers=on")...))
	must(t, e.n.Ready(patience))
	e.fillFolder(t)
	must(t, e.restore())
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (e *example) folder() string { return filepath.Join(e.Dir, "reader") }

// fillFolder writes the files that commands name: the world, and the objects that the documents show as YAML.
func (e *example) fillFolder(t *testing.T) {
	t.Helper()
	documented := ""
	for _, file := range documents(t) {
		blocks, _ := split(t, file)
		for _, b := range blocks {
			if b.language == "yaml" && strings.Contains(b.text, "apiVersion: projectcalico.org/v3") {
				documented += "---\n" + b.text
			}
		}
	}
	if strings.Count(documented, "---") < 4 {
		t.Fatalf("only these objects in the documents:\n%s", documented)
	}
	for name, text := range map[string]string{"world/world.yaml": world, "world/documented.yaml": documented,
		"pools-and-peers.yaml": pool + "\n---\n" + peers, "pool.yaml": pool, "peers.yaml": peers, "peers.json": peers,
		"policy-tests.yaml": policyTests, "nodes.yaml": node, "change.yaml": peers, "policies/world.yaml": world,
		"cluster/world.yaml": world, "cluster/node.yaml": node, "cluster/sub/peers.json": peers,
		"new/node.yaml": node, "new/peers.yaml": peers, "current/node.yaml": node,
		"current/world.yaml": world, "hosts.yaml": documented, "host.yaml": documented} {
		path := filepath.Join(e.folder(), name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(e.names.Replace(text)), 0o644))
	}
}

// restore restores the objects that earlier commands may have removed.
func (e *example) restore() error {
	out, err := e.shell("manxctl apply -f world/")
	if err != nil {
		return fmt.Errorf("the objects of the documents: %w\n%s", err, out)
	}
	return nil
}

// host mounts the node's folders at their usual paths, for the shell alone.
const host = `
mount --make-rprivate / && mount -t tmpfs docs /run && mkdir /run/manx && mount --bind "$RUN" /run/manx &&
mount -t tmpfs docs /var/lib && mkdir /var/lib/manx && mount --bind "$DATA" /var/lib/manx &&
eval "$COMMAND"
`

// shell runs an unchanged command on the node, in the folder with the files.
func (e *example) shell(text string) (string, error) {
	path := e.Spec.Bin + ":" + os.Getenv("PATH")
	if strings.Contains(text, "gobgp.sock") { // the socket speaks version 4
		path = e.tools + ":" + path
	}
	cmd := namespace.Command(e.n.Namespace, "unshare", "--mount", "bash", "-c", host)
	cmd.Dir = e.folder()
	cmd.Env = append(os.Environ(), "PATH="+path, "RUN="+filepath.Dir(e.n.Socket()),
		"DATA="+filepath.Join(e.n.Dir, "data"), "COMMAND="+e.names.Replace(text+"\n"), "EDITOR=true")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// try runs a command. A command that follows events must still run after some seconds.
func (e *example) try(t *testing.T, c command) {
	codes := []int{0}
	text, _, _ := strings.Cut(c.text, " #")
	if otherOutput(c) {
		c.shows = ""
	}
	has := func(w string) bool { return slices.Contains(strings.Fields(text), w) }
	switch {
	case has("watch") || has("drops") || has("monitor") || has("--live") || has("-w"):
		c.text = "timeout 3 " + c.text
		codes = []int{124}
	case has("retry"):
		codes = []int{0, 4} // 4: something still fails, such as the pods that have no interface
	case has("status"), has("wait"):
		codes = []int{0, 4} // 4: a session is down
	case has("check"):
		c.text = "rm -f report.json && " + c.text // it overwrites nothing
	case has("test"), has("--expect"):
		codes = []int{0, 5} // 5: a verdict is another
	case has("plan"), has("diff"):
		codes = []int{0, 3} // 3: the change changes something
	case has("create"):
		c.text = "manxctl delete -s -R -f cluster/ -f pool.yaml && " + c.text
	case has("replace"):
		c.text = "manxctl apply -R -f cluster/ -f pool.yaml && " + c.text
	case has("delete"):
		c.text = "manxctl apply -f peers.yaml && " + c.text
	case has("diags"):
		c.text = "rm -f n2.tar.gz && " + c.text // it overwrites nothing
	}
	e.succeeds(t, c, codes...)
	must(t, e.restore())
}

// succeeds repeats a command until it ends with one of the codes.
func (e *example) succeeds(t *testing.T, c command, codes ...int) {
	err := lab.Eventually(patience, func() error {
		out, err := e.shell(c.text)
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			return err
		}
		if !slices.Contains(codes, code) {
			return fmt.Errorf("%s: %s: exit code %d, want %d\n%s", c.where, c.text, code, codes, out)
		}
		if missing := missingForms(c.shows, out, e.names.Replace); len(missing) > 0 {
			return fmt.Errorf("%s: %s: no line has the form of %q\n%s", c.where, c.text, missing, out)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
