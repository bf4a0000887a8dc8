package main_test

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExampleOfPolicyTests runs the example of docs/policy.md verbatim.
func TestExampleOfPolicyTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### Test policies in CI\n")
	_, tests, _ := strings.Cut(section, "```yaml\n")
	tests, section, _ = strings.Cut(tests, "```\n")
	_, session, _ := strings.Cut(section, "```console\n$ ")
	session, _, ok := strings.Cut(session, "```\n")
	command, output, _ := strings.Cut(session, "\n")
	if !ok {
		t.Fatal("the page has no such example")
	}
	dir := t.TempDir()
	cluster, err := os.ReadFile(explainFiles)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "cluster/cluster.yaml", string(cluster))
	write(t, dir, "policy-tests.yaml", tests)
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + filepath.Dir(binary)}
	got, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 5 || string(got) != output {
		t.Errorf("%v: printed\n%s\nthe page has\n%s", err, got, output)
	}
}

func TestPolicyTests(t *testing.T) {
	t.Parallel()
	s := shell{t: t}
	for _, c := range []struct {
		test string
		code int
		out  string // or on standard error
	}{
		{"{from: shop/web, to: shop/db, port: tcp/5432, expect: allow}", 0, "1 tested, 0 failed"},
		{"{from: shop/web, to: shop/db, port: tcp/5432, expect: deny}", 5, "want deny, is allow by"},
		{"{from: shop/web, to: shop/db, port: tcp/5432, expect: allow, by: Profile/kns.shop}", 0, "0 failed"},
		{"{from: shop/web, to: shop/db, port: tcp/5432, expect: allow, by: Profile/kns}", 5,
			"want it by Profile/kns, is"},
		{"{from: shop/other, to: shop/db, port: tcp/80, expect: deny, by: Profile/kns.shop}", 5, "want it by"},
		{"{from: shop/other, to: shop/db, port: tcp/80, expect: deny, by: the end of tier default}", 0, "0 failed"},
		{"{from: '*/w?b', to: shop/db, port: tcp/5432, expect: allow}", 0, "shop/web -> shop/db"},
		{"{from: shop/db*, to: shop/db, expect: allow}", 5, `no pod matches "shop/db"`},
		{"{from: dev/*, to: shop/db, expect: deny}", 5, `no pod matches "dev/*"`},
		{"{from: shop/web, to: shop/nobody, expect: deny}", 5, "there is no pod"},
		{"{from: shop/web, too: shop/db, expect: deny}", 1, "-:1: too: there is no such field"},
		{"{from: shop/web, to: shop/db}", 1, "-:1: expect is missing"},
		{"{from: shop/web, to: shop/db, expect: Allow}", 1, `"Allow": want allow or deny`},
		{"{from: shop/web, to: shop/db, expect: allow, expect: deny}", 1, "twice"},
		{"{from: shop/web, to: shop/db, port: 5432, expect: allow}", 1, "did you mean tcp/5432?"},
		{"{from: '*', to: shop/db, expect: allow}", 1, "want NAMESPACE/POD"},
		{"{from: 'shop/[', to: shop/db, expect: allow}", 1, "syntax error in pattern"},
		{"shop/web", 1, "want a test with from, to and expect"},
	} {
		file := write(t, t.TempDir(), "-", "- "+c.test+"\n")
		r := s.run("test", "-f", explainFiles, file)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.out) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", c.test, r.code, c.code, c.out, r.out, r.err)
		}
	}
	s.run("test", "-f", explainFiles).want(t, 2, "", "name a file of tests")
	s.run("test", "-f", explainFiles, "no-such.yaml").want(t, 1, "", "no-such.yaml")
	s.pipe("{}", "test", "-f", explainFiles, "-").want(t, 1, "", "want a list of tests")

	r := s.pipe("- {from: shop/web, to: shop/db, port: tcp/5432, expect: allow}\n"+
		"- {from: shop/web, to: shop/db, expect: allow}\n", "test", "-f", explainFiles, "-", "-o", "junit")
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Cases    []struct {
			Name    string `xml:"name,attr"`
			Line    int    `xml:"line,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
			} `xml:"failure"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal([]byte(r.out), &suite); err != nil || r.code != 5 || suite.Tests != 2 ||
		suite.Failures != 1 || suite.Cases[0].Failure != nil || suite.Cases[1].Line != 2 ||
		!strings.HasPrefix(suite.Cases[1].Failure.Message, "want allow, is deny by") {
		t.Errorf("exit code %d, %v, %+v\n%s", r.code, err, suite, r.out)
	}
}

// TestPolicyTestsOfTheDatastore: without -f the objects come from the datastore.
func TestPolicyTestsOfTheDatastore(t *testing.T) {
	t.Parallel()
	s, _ := newShell(t)
	s.mustPipe(resource("Node", "name: n1", "bgp: {ipv4Address: 10.0.0.1/24}")+
		resource("HostEndpoint", "name: n1-eth0, labels: {role: host}",
			"node: n1, interfaceName: eth0, expectedIPs: [10.0.0.1]")+
		resource("GlobalNetworkPolicy", "name: hosts", "selector: role == 'host', types: [Ingress], ingress: "+
			"[{action: Allow, protocol: TCP, destination: {ports: [8080]}}]"), "apply", "-f", "-")
	s.pipe("- {from: 192.0.2.1, to: n1, port: tcp/8080, expect: allow, by: GlobalNetworkPolicy/hosts}\n"+
		"- {from: 192.0.2.1, to: n1, port: tcp/8081, expect: deny}\n", "test", "-").want(t, 0,
		"ok   192.0.2.1 -> n1 tcp/8080   allow by GlobalNetworkPolicy/hosts ingress 1 (ingress of node n1, interface "+
			"eth0)\nok   192.0.2.1 -> n1 tcp/8081   deny by the end of tier default, ingress of node n1, interface "+
			"eth0 at node n1\n"+
			"2 tested, 0 failed\n")
	s.must("delete", "gnp", "hosts")
	if r := s.pipe("- {from: 192.0.2.1, to: n1, port: tcp/8080, expect: allow}", "test", "-"); r.code != 5 {
		t.Errorf("without the policy: exit code %d\n%s%s", r.code, r.out, r.err)
	}
}

// TestExplainExpects checks the exit code of --expect.
func TestExplainExpects(t *testing.T) {
	t.Parallel()
	s := shell{t: t}
	for _, c := range []struct {
		args string
		code int
	}{
		{"shop/web shop/db tcp/5432 --expect allow", 0},
		{"shop/web shop/db tcp/5432 --expect deny", 5},
		{"shop/web shop/db tcp/80 --expect deny -o json", 0},
		{"shop/web shop/db tcp/80 --expect allow -o json", 5},
		{"shop/web shop/nobody tcp/80 --expect deny", 1},
		{"shop/web shop/db tcp/80 --expect denied", 2},
	} {
		r := s.run(append([]string{"explain", "-f", explainFiles}, strings.Fields(c.args)...)...)
		if r.code != c.code || c.code == 5 && !strings.Contains(r.err, "which --expect wants") {
			t.Errorf("%s: exit code %d, want %d\n%s", c.args, r.code, c.code, r.err)
		}
	}
	d, _ := newPlayedDaemon(t)
	if r := d.runWithDaemon("explain", "shop/web", "agrees", "--expect", "allow"); r.code != 5 {
		t.Errorf("another program drops the packet for certain: exit code %d, want 5\n%s%s", r.code, r.out, r.err)
	}
}
