package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMistakes checks that the error of a wrong command line names the mistake and what is meant.
func TestMistakes(t *testing.T) {
	t.Parallel()
	s := shell{t: t}
	for _, c := range []struct {
		args string
		text string
	}{
		{"aply -f x", `unknown command "aply" for "manxctl"; did you mean "apply"?`},
		{"lint -f x", `unknown command "lint" for "manxctl"; did you mean "validate"?`},
		{"gett peers", `did you mean "get" or "test"?`},
		{"problems", `did you mean "node problems"?`},
		{"node drian n1 --timeout=1s", `unknown command "drian" for "manxctl node"; did you mean "node drain"?`},
		{"nodes drain", `did you mean "node"?`},
		{"ipam relase", `did you mean "ipam releases" or "ipam release"?`},
		{"help descibe", `did you mean "describe"?`},
		{"--vresion", "unknown flag: --vresion"},
		{"get peers --dwon", "unknown flag: --dwon"},
		{"status extra", `manxctl status takes no argument: "extra"`},
		{"loglevel verbose", `log level "verbose": want debug, info, warn or error`},
		{"get IPool", `kind "IPool" is not known: did you mean IPPool?`},
		{"get bgppers", `did you mean BGPPeer?`},
		{"get CiliumNetworkPolicies", "it is another product's; the kind for that is NetworkPolicy here"},
		{"node run --node-image=x", `manxctl has no "node run": manxd runs a node`},
		{"node checksystem", `manxctl has no "node checksystem": manxd checks the kernel when it starts`},
		{"get AdminNetworkPolicy", "it is an earlier form of ClusterNetworkPolicy that Manx does not enforce; " +
			"the kind for that is ClusterNetworkPolicy or GlobalNetworkPolicy here"},
		{"history tor-1", "want peer NAME or peer/NAME"},
		{"history peer", "name a peer"},
		{"explain web db 80 tcp", `"tcp" is too much`},
		{"apply x.yaml", `manxctl apply takes no argument: "x.yaml"; did you mean "-f x.yaml"?`},
		{"diff x.yaml", `did you mean "-f x.yaml"?`},
		{"plan --node=n1 x.yaml", `did you mean "-f x.yaml"?`},
		{"describe", `name what to describe (peer, bgppeer, endpoint, node, pool or a kind of policy) and its name`},
		{"describe service web", "describe service: want peer, bgppeer, endpoint, node, pool or a kind of policy"},
		{"describe pod", `name the one to describe, for instance "manxctl describe pod shop/web"`},
		{"describe peer", `for instance "manxctl describe peer 10.0.1.1"`},
		{"describe 10.0.1.1", `want "describe peer 10.0.1.1" for a BGP session, or "describe endpoint 10.0.1.1"`},
		{"apply -f x --dry-run=maybe", "want none, client, server"},
	} {
		r := s.run(strings.Fields(c.args)...)
		if r.code != 2 || !strings.Contains(r.err, c.text) || r.out != "" {
			t.Errorf("%s: exit code %d, want 2; %q, want %q", c.args, r.code, r.err, c.text)
		}
	}
	if r := s.run("help", "node", "drain"); r.code != 0 || r.out != s.must("node", "drain", "--help") {
		t.Errorf("help node drain: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if out := s.must("--version"); !strings.HasPrefix(out, "manxctl dev (commit unknown, Go ") {
		t.Errorf("--version prints %q", out)
	}
	if out := s.must("__complete", "help", "node", "dra"); !strings.Contains(out, "drain\t") {
		t.Errorf("help completes with %s", out)
	}
}

// TestHelpOfThePlugin: on a laptop there is no "this node", and no local manxd that would answer.
func TestHelpOfThePlugin(t *testing.T) {
	t.Parallel()
	plugin := filepath.Join(t.TempDir(), "kubectl-manx")
	if err := os.Symlink(binary, plugin); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"", "status", "peers", "routes", "drops", "explain", "describe", "node",
		"node endpoints", "watch", "loglevel", "dump"} {
		r := shell{t: t}.program(plugin, "", append(strings.Fields(command), "--help")...)
		own, _, _ := strings.Cut(r.out, "Global Flags:")
		if command == "" {
			own, _, _ = strings.Cut(r.out, "\nFlags:")
		}
		for _, wrong := range []string{"this node", "local manxd", "local node", "manxctl"} {
			if r.code != 0 || strings.Contains(own, wrong) {
				t.Errorf("the help of %q has %q (exit code %d):\n%s", command, wrong, r.code, own)
			}
		}
	}
}

const invalidPeers = `apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: good}
spec: {peerIP: 10.0.1.1, asNumber: 65001}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: bad}
spec:
  asNumber: 65001
  peerIP: 10.0.1.300
`

// TestFilesAreCheckedWithoutDatastore: a value that breaks a rule is reported with file and line, and no datastore is
// needed for that.
func TestFilesAreCheckedWithoutDatastore(t *testing.T) {
	t.Parallel()
	s := shell{t: t}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte(invalidPeers), 0o600); err != nil {
		t.Fatal(err)
	}
	const rule = `bad.yaml:11: BGPPeer bad is invalid: spec.peerIP = "10.0.1.300": must be an IP address`
	for _, verb := range []string{"create", "apply", "replace"} {
		s.run(verb, "-f", bad, "--dry-run").want(t, 1, "", rule)
		s.run(verb, "-f", bad).want(t, 1, "", rule, "no datastore is set")
	}
	s.run("diff", "-f", bad).want(t, 1, "", rule, "no datastore is set")
	good, _, _ := strings.Cut(invalidPeers, "---\n")
	s.pipe(good, "apply", "-f", "-", "--dry-run=client").want(t, 0, "bgppeer/good valid (dry run)\n")
}

// TestDryRunAndDiff: neither writes, both say what apply would do, and later documents see earlier ones.
func TestDryRunAndDiff(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	const kept = "apiVersion: projectcalico.org/v3\nkind: BGPPeer\nmetadata: {name: tor}\n" +
		"spec: {peerIP: 10.0.1.1, asNumber: 65001}\n"
	s.mustPipe(kept, "create", "-f", "-")
	changed := strings.Replace(kept, "65001", "65002", 1)
	more := "---\napiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: platform}\nspec: {order: 5}\n" +
		"---\n" + resource("GlobalNetworkPolicy", "name: platform.web", "tier: platform, selector: all()")
	s.pipe(changed+more, "apply", "-f", "-", "--dry-run=server").want(t, 0, "bgppeer/tor configured (server dry run)\n"+
		"tier/platform created (server dry run)\nglobalnetworkpolicy/platform.web created (server dry run)\n")
	s.pipe(changed, "create", "-f", "-", "--dry-run=server").want(t, 1, "", "exists")
	s.pipe(kept, "diff", "-f", "-").want(t, 0, "")
	r := s.pipe(changed+more, "diff", "-f", "-")
	for _, line := range []string{"--- stored BGPPeer tor\n", "-  asNumber: 65001\n", "+  asNumber: 65002\n",
		"+++ files  Tier platform\n", "+  order: 5\n"} {
		if r.code != 3 || !strings.Contains(r.out, line) {
			t.Errorf("exit code %d, want 3, and %q:\n%s%s", r.code, line, r.out, r.err)
		}
	}
	s.pipe(invalidPeers, "diff", "-f", "-").want(t, 1, s.pipe(strings.Split(invalidPeers, "---\n")[0], "diff", "-f",
		"-").out, "standard input:11: BGPPeer bad is invalid")
	s.run("get", "bgppeers", "--no-headers").want(t, 0, "tor   10.0.1.1   (global)   65001\n") // nothing was written
	s.run("get", "gnp").want(t, 0, "", "No globalnetworkpolicies found.")
}

const ignoredSettings = `apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata:
  name: tor
  annotations:
    example.com/other: "1"
    manx.io/max-prefix: "10"
    manx.io/max-prefixes: many
spec: {peerIP: 10.0.1.1, asNumber: 65001, filters: [stored-elsewhere], nodeSelector: rack == '1'}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: racks}
spec:
  peerSelector: all()
  keepaliveTime: 90s
  numAllowedLocalASNumbers: 1
---
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {asNumber: 64512, serviceClusterIPs: [{cidr: 10.96.0.0/12}]}
`

// TestIgnoredSettings: what a datastore takes and manxd does not use is an error of a dry run, and a warning of apply.
func TestIgnoredSettings(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte(ignoredSettings), 0o600); err != nil {
		t.Fatal(err)
	}
	found := []string{
		file + ":7: BGPPeer/tor: annotation manx.io/max-prefix is ignored: it has no meaning on a BGPPeer",
		file + `:8: BGPPeer/tor: annotation manx.io/max-prefixes = "many" is ignored: want a number`,
		file + ":16: BGPPeer/racks: spec.keepaliveTime = 1m30s is limited to",
		file + ":17: BGPPeer/racks: spec.numAllowedLocalASNumbers has no effect",
	}
	r := shell{t: t}.run("apply", "-f", file, "--dry-run")
	r.want(t, 1, "", found...)
	if n := strings.Count(r.err, "\n"); n != len(found) {
		t.Errorf("%d lines, want %d:\n%s", n, len(found), r.err)
	}
	s.mustPipe("apiVersion: projectcalico.org/v3\nkind: BGPFilter\nmetadata: {name: stored-elsewhere}\n", "create",
		"-f", "-")
	r = s.run("apply", "-f", file, "--dry-run=server")
	r.want(t, 1, "bgppeer/tor created (server dry run)\nbgppeer/racks created (server dry run)\n"+
		"bgpconfiguration/default created (server dry run)\n", found...)
	r = s.run("apply", "-f", file)
	r.want(t, 0, "bgppeer/tor created\nbgppeer/racks created\nbgpconfiguration/default created\n", found...)
	if n := strings.Count(r.err, "Warning: "); n != len(found) {
		t.Errorf("%d warnings, want %d:\n%s", n, len(found), r.err)
	}
}
