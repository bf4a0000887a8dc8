package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/untar"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// TestDiagsHaveNoSecrets collects the state of two nodes: one with a session that has a password, and one whose
// datastore does not answer. Both have passwords of etcd in their settings.
func TestDiagsHaveNoSecrets(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("w"), PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	n, away, tor := l.Nodes[0], l.Nodes[1], l.ToRs[0]
	const secret = "hunter2"
	file := filepath.Join(world.Secrets(n), "bgp", "tor")
	must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must(t, os.WriteFile(file, []byte(secret+"-bgp\n"), 0o600))
	must(t, n.StartManxd(append(n.EmbedDatastore(), "--bgp-password-dir", world.Secrets(n), "--etcd-username=root",
		"--etcd-password="+secret+"-etcd")...))
	must(t, away.StartManxd("--datastore=etcdv3", "--etcd-endpoints=http://127.0.0.1:1",
		"--etcd-username=root", "--etcd-password="+secret+"-etcd"))
	must(t, n.Ready(limit))
	at := func(last byte) netip.Addr {
		a := tor.Address(n).As4()
		a[3] = last
		return netip.AddrFrom4(a)
	}
	world.Trouble{Address: 53, Bird: `password "` + secret + `-bgp";`}.StartBIRD(t, n, tor, at)
	must(t, n.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: tor}\n"+
		"spec: {node: n1, peerIP: %s, asNumber: 65000, password: {secretKeyRef: {name: bgp, key: tor}}}\n", at(53))))
	world.AwaitPeer(t, n, at(53), "up", func(p *manxv1.Peer) bool { return p.GetPhase() == "Established" })

	for node, want := range map[*lab.Node]map[string]string{
		n: {"status.json": `"node": "n1"`, "settings.json": `"value": "(set)"`, "peers.json": `"password": "set"`,
			"history.json": `"to": "Established"`, "kernel/nft-table.txt": "table inet manx",
			"kernel/ip-route.txt": "proto kernel", "kernel/ip-addr.txt": at(0).String()[:9], "routes.json": `"routes"`,
			"ruleset.txt": "table inet manx", "kernel/version.txt": "Linux", "notices.json": "notices",
			"versions.json": "gobgp"},
		away: {"status.json": `"connected": false`, "settings.json": `"value": "(set)"`,
			"kernel/ip-rule.txt": "main"},
	} {
		name := filepath.Join(t.TempDir(), "d.tar.gz")
		out, err := node.Manxctl("diags", "-o", name)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Logf("%s: %s", node.Name, out)
		packed, err := os.ReadFile(name)
		must(t, err)
		files := untar.Files[string](t, packed)
		for part, text := range want {
			if !strings.Contains(files["manx-diags/"+part], text) {
				t.Errorf("%s of %s lacks %q: %s%s", part, node.Name, text, files["manx-diags/"+part],
					files["manx-diags/"+part+".error"])
			}
		}
		for part, text := range files {
			if strings.Contains(text, secret) {
				t.Errorf("%s of %s has a secret: %s", part, node.Name, world.LineWith(text, secret))
			}
		}
	}
}
