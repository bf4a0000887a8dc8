package main_test

import (
	"strings"
	"testing"
)

// TestTemplatesAndCompletion: fields by template, and names for the shell.
func TestTemplatesAndCompletion(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	s.mustPipe(resource("BGPPeer", "name: tor-1, labels: {rack: a}", "peerIP: 192.0.2.1, asNumber: 65001")+
		resource("BGPPeer", "name: tor-2", "peerIP: 192.0.2.2, asNumber: 65002, filters: []")+
		resource("Node", "name: n1", "bgp: {ipv4Address: 10.0.0.1/24}")+
		resource("Tier", "name: a", "order: 100")+resource("Tier", "name: b", "order: 20")+
		resource("Tier", "name: none", "")+
		resource("NetworkPolicy", "name: web, namespace: shop", "selector: all()"), "create", "-f", "-")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "bgppeer", "tor-1", "-o", "jsonpath={.spec.peerIP}"}, "192.0.2.1"},
		{[]string{"get", "bgppeer", "tor-1", "-o", "jsonpath=.spec.asNumber"}, "65001"},
		{[]string{"get", "bgppeers", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.labels.rack}{"\n"}{end}`},
			"tor-1 a\ntor-2 \n"},
		{[]string{"get", "bgppeers", "-o", "go-template={{range .items}}{{.spec.peerIP}},{{end}}"},
			"192.0.2.1,192.0.2.2,"},
		{[]string{"get", "bgppeers", "-o", "custom-columns=NAME:.metadata.name,RACK:.metadata.labels.rack," +
			"AS:.spec.asNumber"},
			"NAME    RACK     AS\ntor-1   a        65001\ntor-2   <none>   65002\n"},
		{[]string{"get", "bgppeer", "tor-2", "--no-headers", "-o", "custom-columns=NAME:metadata.name"}, "tor-2\n"},
		{[]string{"get", "bgppeers", "-o", "custom-columns=NAME,asn,RACK:.metadata.labels.rack"},
			"NAME    asn     RACK\ntor-1   65001   a\ntor-2   65002   <none>\n"},
		{[]string{"get", "node", "-o", "custom-columns=NAME,ASN"}, "NAME   ASN\nn1     (64512)\n"},
		{[]string{"get", "bgppeers", "-o",
			"jsonpath-file=" + write(t, t.TempDir(), "a", "{.items[1].spec.peerIP}\n")},
			"192.0.2.2"},
		{[]string{"get", "bgppeer", "tor-1", "-o",
			"go-template-file=" + write(t, t.TempDir(), "b", "{{.spec.peerIP}}")},
			"192.0.2.1"},
		{[]string{"get", "tiers", "--sort-by", ".spec.order", "-o", "name"}, "tier/b\ntier/a\ntier/none\n"},
		{[]string{"get", "bgppeers", "--sort-by={.spec.peerIP}", "-o", "name"}, "bgppeer/tor-1\nbgppeer/tor-2\n"},
		{[]string{"get", "np", "-a", "--no-headers"}, "shop   web   default\n"},
		{[]string{"get", "np", "web", "-n", "shop", "-o", "yaml", "--export"}, "apiVersion: projectcalico.org/v3\n" +
			"kind: NetworkPolicy\nmetadata:\n  creationTimestamp: null\n  labels:\n" +
			"    projectcalico.org/tier: default\n  name: web\nspec:\n  selector: all()\n" +
			"  tier: default\n  types:\n  - Ingress\n"},
	} {
		s.run(c.args...).want(t, 0, c.want)
	}
	for output, text := range map[string]string{
		"jsonpath": "want jsonpath=TEMPLATE", "jsonpath={.a": "unclosed action", "go-template={{": "template:",
		"custom-columns=": "want custom-columns=TEMPLATE", "go-template-file": "want go-template-file=FILE",
		"jsonpath-file=/none": "no such file", "custom-columns=A:{": "path",
	} {
		if r := s.run("get", "bgppeers", "-o", output); r.code != 2 || !strings.Contains(r.err, text) {
			t.Errorf("-o %s: exit code %d, %q; want 2 and %q", output, r.code, r.err, text)
		}
	}
	s.run("get", "bgppeers", "-o", "custom-columns=COLOR").want(t, 1, "", `a BGPPeer has no column "COLOR": want one `+
		"of NAME, PEERIP, NODE, ASN, or HEADING:PATH")
	s.run("get", "bgppeers", "--sort-by", "{.a").want(t, 2, "", "--sort-by: ")
	s.run("get", "peers", "-o", "jsonpath={.x}").want(t, 2, "", "is for objects of the datastore")

	for args, want := range map[string]string{
		"get bgppeers ": "tor-1\ntor-2\n", "get bgppeers tor-1 ": "tor-2\n", "delete bgppeer ": "tor-1\ntor-2\n",
		"node drain ": "n1\n", "get np -n shop ": "web\n", "get np ": "", "get pigeons ": "",
		"get bgppeers -o ": "table\nwide\nyaml\njson\nname\njsonpath=\njsonpath-file=\n" +
			"go-template=\ngo-template-file=\ncustom-columns=\n",
		"describe node ": "n1\n", "describe bgppeer ": "tor-1\ntor-2\n", "describe pool ": "",
		"describe np -n shop ": "web\n",
		"routes --phase ":      "pending\napplied\nfailed\nblocked\nleftover\nremoving\n",
		"routes --source ":     "bgp\nipam\nblock\nworkload\nstatic\n",
	} {
		out := s.must(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		offered, _, _ := strings.Cut(out, ":4\n")
		if offered != want {
			t.Errorf("%q is completed with\n%s, want\n%s", args, offered, want)
		}
	}
	none := shell{t: t}
	if r := none.run("__complete", "get", "nodes", ""); !strings.HasPrefix(r.out, ":4\n") ||
		strings.Contains(r.err, "datastore") {
		t.Errorf("without a datastore: %q %q", r.out, r.err)
	}
}
