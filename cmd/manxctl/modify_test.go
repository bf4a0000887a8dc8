package main_test

import (
	"strings"
	"testing"
)

// TestLabelAndPatch: labels and fields of stored objects change, other fields stay, and errors say what would be right.
func TestLabelAndPatch(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	s.mustPipe(resource("Node", "name: n1", "bgp: {ipv4Address: 10.0.0.1/24}")+
		resource("NetworkPolicy", "name: web, namespace: shop", "selector: all()")+
		resource("BGPPeer", "name: tor, annotations: {manx.io/bfd: 'true'}", "peerIP: 10.0.1.1, asNumber: 65001"),
		"create", "-f", "-")
	for _, c := range []struct {
		args []string
		code int
		out  string
		err  string
	}{
		{[]string{"label", "node", "n1", "rack=1", "row=a"}, 0, "node/n1 labeled\n", ""},
		{[]string{"label", "node", "n1", "rack=1"}, 0, "node/n1 unchanged\n", ""},
		{[]string{"label", "node/n1", "rack=2"}, 1, "", `Node n1: label rack is "1" already: --overwrite replaces it`},
		{[]string{"label", "node", "n1", "rack=2", "--overwrite"}, 0, "node/n1 labeled\n", ""},
		{[]string{"label", "node", "n1", "rack", "--remove"}, 0, "node/n1 labeled\n", ""},
		{[]string{"label", "node", "n1", "rack-"}, 1, "", "there is no label rack to remove"},
		{[]string{"label", "node", "n1", "rack=1", "--remove"}, 2, "", "--remove takes the key alone: rack"},
		{[]string{"label", "node", "n1", "rack"}, 2, "", `"rack": want KEY=VALUE`},
		{[]string{"label", "node", "n1"}, 2, "", "name a label: KEY=VALUE"},
		{[]string{"label", "node", "n1", "a b=c"}, 1, "", `metadata.labels`},
		{[]string{"label", "node", "n2", "a=b"}, 1, "", "get Node n2: does not exist"},
		{[]string{"label", "np", "web", "-n", "shop", "team=blue"}, 0, "networkpolicy/web labeled\n", ""},
		{[]string{"label", "node"}, 2, "", "name the Node to label"},
		{[]string{"label", "ipamblock", "x", "a=b"}, 2, "", "belongs to the address allocator"},

		{[]string{"patch", "bgppeer", "tor", "-p", `{"spec":{"asNumber":65002}}`}, 0, "bgppeer/tor patched\n", ""},
		{[]string{"patch", "bgppeer", "tor", "-p", "spec: {asNumber: 65002}"}, 0, "bgppeer/tor unchanged\n", ""},
		{[]string{"patch", "bgppeer", "tor", "-t", "merge", "-p", `{"metadata":{"annotations":null}}`}, 0,
			"bgppeer/tor patched\n", ""},
		{[]string{"patch", "bgppeer", "tor", "--type=json", "-p",
			`[{"op":"add","path":"/spec/nodeSelector","value":"rack == '1'"}]`}, 0, "bgppeer/tor patched\n", ""},
		{[]string{"patch", "bgppeer", "tor", "--type=json", "-p", `[{"op":"remove","path":"/spec/nope"}]`}, 1, "",
			"the patch does not fit"},
		{[]string{"patch", "bgppeer", "tor", "-p", `{"spec":{"asNumbr":1}}`}, 1, "",
			"spec.asNumbr: there is no such field here"},
		{[]string{"patch", "bgppeer", "tor", "-p", `{"spec":{"peerIP":"x"}}`}, 1, "",
			`BGPPeer tor is invalid: spec.peerIP = "x": must be`},
		{[]string{"patch", "bgppeer", "tor", "-p", `{"metadata":{"name":"other"}}`}, 1, "", "cannot be changed"},
		{[]string{"patch", "bgppeer", "tor", "-p", `{"spec":{"filters":["none"]}}`}, 1, "", "BGPFilter that exists"},
		{[]string{"patch", "np", "web", "-n", "shop", "-p", `{"spec":{"tier":"secc"}}`}, 1, "",
			`NetworkPolicy shop/web is invalid: spec.tier = "secc": must be a tier that exists: create it first`},
		{[]string{"patch", "bgppeer", "tor"}, 2, "", "patch needs -p PATCH"},
		{[]string{"patch", "bgppeer", "tor", "-p", "x"}, 2, "", "want an object such as"},
		{[]string{"patch", "bgppeer", "tor", "-t", "json", "-p", "{}"}, 2, "", "wants a list of operations"},
		{[]string{"patch", "bgppeer", "tor", "-t", "xml", "-p", "{}"}, 2, "", "want strategic, merge or json"},
	} {
		r := s.run(c.args...)
		if r.code != c.code || r.out != c.out || !strings.Contains(r.err, c.err) || c.err == "" && r.err != "" {
			t.Errorf("%q: %+v, want exit code %d, %q and %q", c.args, r, c.code, c.out, c.err)
		}
	}
	s.mustPipe(resource("FelixConfiguration", "name: default", ""), "create", "-f", "-")
	s.run("patch", "felixconfig", "default", "-p", "spec: {bpfEnabled: true}").want(t, 0,
		"felixconfiguration/default patched\n", `Warning: FelixConfiguration/default: spec.bpfEnabled = "true" is not`)
	s.run("patch", "bgppeer", "tor", "-p", "metadata: {annotations: {manx.io/bdf: 'on'}}").want(t, 0,
		"bgppeer/tor patched\n", `Warning: BGPPeer/tor: annotation manx.io/bdf `)
	s.run("patch", "bgppeer", "tor", "-p", "metadata: {annotations: null}").want(t, 0, "bgppeer/tor patched\n")
	moved := resource("NetworkPolicy", "name: web, namespace: shop", "selector: all(), tier: secc")
	for _, line := range []string{"apply -f -", "replace -f -", "apply --dry-run=server -f -"} {
		s.pipe(moved, strings.Fields(line)...).want(t, 1, "", `spec.tier = "secc": must be a tier that exists`)
	}
	stored := s.must("get", "bgppeer", "tor", "-o", "yaml")
	if !strings.Contains(stored, "asNumber: 65002\n  nodeSelector: rack == '1'\n  peerIP: 10.0.1.1\n") ||
		strings.Contains(stored, "manx.io") {
		t.Errorf("stored is\n%s", stored)
	}
	s.run("get", "node", "n1", "--show-labels", "--no-headers").want(t, 0, "n1   row=a\n")
}

// TestObjectsOfOthers: what other programs own is refused by all commands that write.
func TestObjectsOfOthers(t *testing.T) {
	t.Parallel()
	s, server := newShell(t)
	loadUpstream(t, server)
	copied := resource("NetworkPolicy", "name: knp.default.web, namespace: shop", "selector: all()")
	const (
		policy = "NetworkPolicy shop/knp.default.web is the copy of a NetworkPolicy of Kubernetes: change that with " +
			"kubectl, as web in namespace shop"
		info = "ClusterInformation default is written by manxd and calico/node alone"
	)
	for _, verb := range []string{"create", "apply"} {
		s.pipe(copied, verb, "-f", "-").want(t, 1, "", policy)
	}
	s.run("delete", "np", "knp.default.web", "-n", "shop").want(t, 1, "", policy)
	shown := s.must("get", "clusterinfo", "default", "-o", "yaml")
	s.pipe(shown, "apply", "-f", "-").want(t, 0, "clusterinformation/default unchanged\n")
	changed := strings.Replace(shown, "datastoreReady: true", "datastoreReady: false", 1)
	for _, verb := range []string{"apply", "replace"} {
		s.pipe(changed, verb, "-f", "-").want(t, 1, "", info)
	}
	s.run("delete", "clusterinfo", "default").want(t, 1, "", info)
	s.run("label", "clusterinfo", "default", "a=b").want(t, 1, "", info)
	s.run("patch", "clusterinfo", "default", "-p", "spec: {datastoreReady: false}").want(t, 1, "", info)
}
