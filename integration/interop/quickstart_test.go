package interop

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

var fenced = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// The quickstart's configuration of FRR and its objects, unchanged, give sessions by which the nodes of a rack reach
// each other's pods, and the switch the public addresses.
func TestQuickstartSwitch(t *testing.T) {
	page, err := os.ReadFile("../../docs/quickstart.md")
	must(t, err)
	var config, status string
	var objects []string
	for _, m := range fenced.FindAllStringSubmatch(string(page), -1) {
		switch {
		case m[1] == "yaml":
			objects = append(objects, m[2])
		case strings.Contains(m[2], "/manxctl node status\n"):
			_, status, _ = strings.Cut(m[2], "/manxctl node status\n")
		case strings.Contains(m[2], "route-map from-nodes"):
			config = m[2]
		}
	}
	if config == "" || len(objects) < 3 {
		t.Fatalf("the page has this configuration of FRR: %q, and %d blocks of objects", config, len(objects))
	}
	if !strings.Contains(status, "| 10.0.1.1 ") {
		t.Fatalf("the page has this status of a node: %q", status)
	}
	bin, missing := lab.Require("ip", frrFolder+"bgpd", "vtysh")
	if missing != nil {
		t.Skip(missing)
	}
	l, err := lab.New(lab.Spec{Name: fmt.Sprint("q", os.Getpid()%1e6), Bin: bin, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	must(t, err)
	f := &frr{site: newSite(t, l, 0), daemons: map[string]*exec.Cmd{}}
	t.Cleanup(func() {
		f.stop()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	inQuickstart(t, f.ns, "10.0.1.1")
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools")...))
	must(t, n1.Ready(patience))
	must(t, n2.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools")...))
	must(t, n1.Apply("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\n"+
		"spec: {cidr: 10.244.0.0/16, ipipMode: Never, natOutgoing: true}\n"))
	must(t, n1.Apply(strings.Join(objects, "---\n")))
	blocks := map[string]netip.Prefix{} // by the address of the node
	for i, n := range l.Nodes {
		address := fmt.Sprintf("10.0.1.1%d", i+1)
		inQuickstart(t, n.Namespace, address)
		must(t, n1.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Node\nmetadata: {name: %s, labels: "+
			"{rack: '1'}}\nspec: {bgp: {ipv4Address: %s/24, asNumber: 64601}}\n", n.Name, address)))
		p, err := n.AddPod(fmt.Sprint("p", i+1))
		must(t, err)
		blocks[address] = netip.PrefixFrom(p.IP4(), 26).Masked()
	}
	f.write(t, "frr.conf", config)
	f.launch(t, "zebra")
	f.launch(t, "bgpd")
	learned := func(p netip.Prefix, from string) {
		t.Helper()
		eventually(t, func() error {
			if routes := f.routes(p); !strings.Contains(routes, from+" from") {
				peers, _ := n1.Manxctl("get", "peers", "-o", "wide")
				return errors.New(routes + peers)
			}
			return nil
		})
	}
	for address, block := range blocks {
		learned(block, address)
		learned(netip.MustParsePrefix("198.51.100.0/28"), address)
	}
	if gr := f.vtysh("show bgp neighbors 10.0.1.11"); !strings.Contains(gr, "Remote GR Mode: Restart") {
		t.Errorf("graceful restart: %s", gr)
	}
	form := func(line string) string {
		return regexp.MustCompile(`\d+:\d+:\d+`).ReplaceAllString(strings.Join(strings.Fields(line), " "), "TIME")
	}
	out, err := n1.Manxctl("node", "status")
	var rows []string
	for line := range strings.Lines(out) {
		rows = append(rows, form(line))
	}
	for line := range strings.Lines(status) {
		if !strings.HasPrefix(line, "+") && !slices.Contains(rows, form(line)) {
			t.Errorf("the page shows %q, there is (%v)\n%s", line, err, out)
		}
	}
	eventually(t, func() error {
		want := blocks["10.0.1.12"].String() + " via 10.0.1.12 "
		out, err := n1.Run("ip", "route", "show", blocks["10.0.1.12"].String())
		if err == nil && !strings.Contains(out, want) {
			rejected, _ := n1.Manxctl("routes", "--rejected")
			err = fmt.Errorf("%q, want %q\n%s", out, want, rejected)
		}
		return err
	})
}

// inQuickstart adds an address of the page's subnet to the interface of the underlay.
func inQuickstart(t *testing.T, ns, address string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", fmt.Sprintf("dev=$(ip -n %[1]s -o -4 addr show to 10.200.1.0/24 | "+
		"awk '{print $2}') && ip -n %[1]s addr add %[2]s/24 dev $dev", ns, address)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
