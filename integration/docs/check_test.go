package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// testMethod is the test of the commands that begin with a prefix.
type testMethod struct {
	prefix string
	check  func(*testing.T, command) // nil: the lab runs it
	reason string                    // why it does not run here
}

// testMethods is searched from the top; a command that no row matches fails.
var testMethods = []testMethod{
	{"manxctl --server", checkFlags, "TestControlAPI runs it, with certificates"},
	{"manxctl node drain --server", checkFlags, "TestControlAPI drains from another host"},
	{"manxctl ipam release ", checkFlags, "TestIPAMCommands releases addresses"},
	{"manxctl ipam repair", checkFlags, "TestIPAMRepair repairs"},
	{"manxctl ipam upgrade", checkFlags, "TestIPAMUpgrade and TestUpgradeOfAddresses upgrade"},
	{"manxctl ipam split", checkFlags, "TestIPAMCommands splits a pool"},
	{"manxctl ipam configure", checkFlags, "TestIPAMCommands changes the settings"},
	{"manxctl datastore", checkFlags, "TestIPAMCommands locks the datastore, TestExportAndImport does the rest"},
	{"manxctl", checkFlags, ""}, // in blocks and in --help they run in the lab as well
	{"cat peers.json | manxctl", nil, ""},
	{"manxd cleanup", checkSettings, "TestCleanup removes everything from a node"},
	{"manxd client-certificate", checkSettings, ""},
	{"manxd", checkSettings, "one daemon runs in a network namespace, and the lab has it"},
	{"gobgp", nil, ""},
	{"make", checkTarget, "the tests call themselves through make"},
	{"sudo make", checkTarget, "the tests call themselves through make"},
	{"sudo integration/debian-need", checkFiles, "the Makefile calls it for the packages of the tests"},
	{"sudo go run", checkGo, "TestKernelGivesTheCells and `make conformance` run it"},
	{"go run", checkGo, "`make test-k8s-e2e` and the tests run these programs"},
	{"go test", checkGo, "make test runs it"},
	{"sudo go test", checkGo, "make test runs it"},
	{"sudo ip netns exec manxdemo-n1", checkFiles, "TestDemo has the namespace"},
	{"go build", checkGo, "make programs and make demo run it"},
	{"go", checkHelp, "a command of Go"},
	{"BENCH=", checkBenchmark, "benchmarks take minutes"},
	{"helm show", checkChart, ""},
	{"helm install", checkChart, "TestCluster installs the chart in a cluster"},
	{"helm upgrade", checkChart, "TestCluster upgrades the chart in a cluster"},
	{"helm template", checkChart, "TestAnotherNamespace renders it"},
	{"helm rollback", checkFiles, "TestUpgradeAndRollback rolls a release back"},
	{"helm test", checkFiles, "TestHelmTest, and TestCluster with real kubelets"},
	{"helm uninstall", checkFiles, "TestCluster uninstalls the chart from a cluster"},
	{"kubeadm", checkFiles, "TestFreshCluster compares its flags: the clusters of the tests are made without kubeadm"},
	{"kubectl manx", checkPlugin, "it needs a cluster: TestCluster"},
	{"kubectl", checkFiles, "it needs a cluster: TestFreshCluster runs the quickstart's; TestCluster, TestManifests"},
	{"kubeconform", checkFiles, "TestSchemasOfThePage runs it"},
	{"ssh-keygen -Y", checkFiles, "TestRelease signs and verifies a statement"},
	{"sha256sum", checkFiles, "TestRelease compares the sum"},
	{"apt install ./dist/", checkFiles, "TestRelease installs the package on a fresh machine"},
	{`"${EDITOR:-vi}"`, checkFiles, "it is for a person"},
	{"[ -e /etc/manx/manxd.env ]", checkFiles, "TestByHand runs the whole block on a fresh machine"},
	{"ansible-playbook", checkFiles, "TestAnsible runs it against three machines"},
	{"manx-cni", checkFiles, "TestPluginAndDaemon installs the plugins into a folder"},
	{"install -", checkFiles, "TestByHand runs the whole block on a fresh machine"},
	{"systemd-sysusers", checkFiles, "TestUnit does it on a host of its own"},
	{"systemctl", checkFiles, "TestUnit starts and stops the unit on a host of its own"},
	{"sed -i", checkFiles, "TestUnit does it on a host of its own"},
	{"chown -R --reference", checkFiles, "it is a step of a restore on a host"},
	{"chown -R root:manx", checkFiles, "TestUnit gives files to the group on a host of its own"},
	{"new=", checkFiles, "TestControlAPI runs the whole block"},
	{"sign=", checkFiles, "TestControlAPI runs the whole block"},
	{"$new", checkFiles, "TestControlAPI runs the whole block"},
	{"grpcurl", checkFiles, "TestControlAPI runs the whole block"},
	{"export ETCDCTL_API=3", checkFiles, "it is the first line of a backup, which is a row below"},
	{"etcdctl", checkFiles, "TestStranger takes a snapshot; Debian's etcd-client is no package of the tests"},
	{"mv /var/lib/manx/etcd", checkFiles, "it is a step of a restore on a host"},
	{`for table in "ip calico"`, checkFiles, "it removes the rules of calico/node, and there is none in the lab"},
	{`for table in "inet manx"`, checkFiles, "manxd restores the table in the lab, and there is no calico/node"},
	{"for t in iptables", checkFiles, "it removes the rules of calico/node, and there is none in the lab"},
	{"iptables -I DOCKER-USER", checkFiles, "TestBesideOthers has the chain and runs the block"},
	{"iptables -I FORWARD", checkFiles, "TestBesideOthers has the policy and runs the block"},
	{"nft insert rule inet filter", checkFiles, "TestBesideOthers has the chain and runs the block"},
	{"ufw", checkFiles, "TestBesideOthers has ufw and runs the block"},
	{"firewall-cmd", checkFiles, "TestBesideOthers has firewalld and runs the block"},
	{"for family in -4 -6", nil, ""},
	{"ip -d link show dev vxlan", checkFiles, "TestVXLANPacketsInTheKernel has such a device"},
	{"bridge fdb show dev vxlan", checkFiles, "TestVXLANPacketsInTheKernel has such a device"},
	{"ip neigh show dev vxlan", checkFiles, "TestVXLANPacketsInTheKernel has such a device"},
	{"ip route show dev vxlan", checkFiles, "TestVXLANPacketsInTheKernel has such a device"},
	{"ip rule show priority 99", checkFiles, "TestVMWireGuard has such a rule"},
	{"ip rule show priority 98", checkFiles, "TestVMWireGuard has such rules"},
	{"ip route show table 1", checkFiles, "TestVMWireGuard has such a table"},
	{"dir=$(mktemp -d)", checkFiles, "it needs minutes to compile"},
	{"CGO_ENABLED=1 go build", checkGo, "it needs minutes to compile"},
	{"MANX_BIN=$dir", checkGo, "it needs minutes"},
}

func testMethodOf(c command) *testMethod {
	for i := range testMethods {
		if strings.HasPrefix(c.text, testMethods[i].prefix) {
			return &testMethods[i]
		}
	}
	return nil
}

// Each command of the documents has a test method, each method has a command, and the checks that need no lab pass.
func TestCommands(t *testing.T) {
	used, done := map[string]bool{}, map[string]bool{}
	for _, c := range all(t) {
		if done[c.text] {
			continue
		}
		done[c.text] = true
		w := testMethodOf(c)
		if w == nil {
			t.Errorf("%s: %s: no row of the table of ways matches", c.where, c.text)
			continue
		}
		used[w.prefix] = true
		if w.check == nil {
			continue
		}
		t.Run(c.where, func(t *testing.T) { w.check(t, c) })
	}
	for _, w := range testMethods {
		if !used[w.prefix] {
			t.Errorf("no document shows a command that begins with %q: remove the row", w.prefix)
		}
	}
}

// The tests that the table names as tests of a command exist, and those that a page names.
func TestNamedTests(t *testing.T) {
	exist := testsLike(t, root, ".")
	for prefix, name := range otherOutputs {
		if !slices.Contains(exist, name) {
			t.Errorf("%q: there is no %s", prefix, name)
		}
	}
	for _, file := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			if !slices.ContainsFunc(exist, func(have string) bool { return strings.HasPrefix(have, name) }) {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
	}
	for _, w := range testMethods {
		for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(w.reason, -1) {
			if !slices.Contains(exist, name) {
				t.Errorf("%q: there is no %s", w.prefix, name)
			}
		}
	}
}

// words returns the words of a command, without comments and quotes, up to a pipe or semicolon.
func words(text string) (list []string) {
	text, _, _ = strings.Cut(text, " # ")
	text = regexp.MustCompile(`\s+(#|\||;|&&)\s.*|;.*`).ReplaceAllString(text+" ", "")
	quoted := regexp.MustCompile(`'([^']*)'|"([^"]*)"`)
	for _, field := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(text, -1) {
		list = append(list, quoted.ReplaceAllString(field, "$1$2"))
	}
	return list
}

// run runs a program at the root of the repository and returns its output.
func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// checkFlags parses the words with manxctl's own commands: the command exists and accepts the flags. (--help comes
// before the arguments are counted.)
func checkFlags(t *testing.T, c command) {
	args := slices.DeleteFunc(words(c.text)[1:], func(w string) bool { return strings.Trim(w, ".") == "" })
	for i, a := range args { // [--peer X] is optional
		args[i] = strings.Trim(a, "[]")
	}
	args = slices.DeleteFunc(args, func(w string) bool { return strings.Contains(w, "FLAG") })
	at := len(args)
	if !c.whole && strings.HasPrefix(args[at-1], "-") { // its value is left out
		at--
	}
	out, err := run(t, program(t, "manxctl"), slices.Insert(slices.Clone(args), at, "--help")...)
	if !c.whole && strings.Contains(out, "flag needs an argument: ") {
		return
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", c.text, err, out)
	}
	usage := regexp.MustCompile(`(?m)^  manxctl(?: ([a-z-]+))?(?: ([a-z-]+))?`).FindStringSubmatch(out)
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") && usage[1] != args[0] {
		t.Errorf("%s: manxctl has no command %s", c.text, args[0])
	}
	groups := []string{"node", "ipam", "datastore", "cluster"}
	if slices.Contains(groups, usage[1]) && len(args) > 1 && usage[2] != args[1] {
		t.Errorf("%s: manxctl %s has no command %s", c.text, usage[1], args[1])
	}
}

// checkPlugin is checkFlags for manxctl as plugin of kubectl.
func checkPlugin(t *testing.T, c command) {
	c.text = "manxctl " + strings.TrimPrefix(strings.TrimPrefix(c.text, "kubectl manx"), " ")
	if c.text != "manxctl " {
		checkFlags(t, c)
	}
}

// checkSettings parses the words with manxd: the command exists and the settings are valid.
func checkSettings(t *testing.T, c command) {
	args := words(c.text)[1:]
	command := slices.ContainsFunc(args, func(w string) bool { return !strings.HasPrefix(w, "-") })
	if !command && !slices.Contains(args, "--help") {
		if last := args[len(args)-1]; !strings.Contains(last, "=") { // a flag that is named without its value
			out, _ := run(t, program(t, "manxd"), "--help")
			if !strings.Contains(out, last+" ") {
				t.Errorf("%s: %s is no flag of manxd", c.text, last)
			}
			return
		}
		args = append([]string{"config", "explain"}, args...)
	} else {
		args = append(args, "--help")
	}
	if out, err := run(t, program(t, "manxd"), args...); err != nil {
		t.Errorf("%s: %v\n%s", c.text, err, out)
	} else if command && !strings.Contains(out, "manxd "+args[0]) {
		t.Errorf("%s: manxd has no command %s", c.text, args[0])
	}
}

// checkTarget parses the words with make, and checks that each variable is used.
func checkTarget(t *testing.T, c command) {
	args := words(strings.TrimPrefix(c.text, "sudo "))[1:]
	if out, err := run(t, "make", append([]string{"-n"}, args...)...); err != nil {
		t.Errorf("%s: %v\n%s", c.text, err, out)
	}
	for _, a := range args {
		name, value, isVariable := strings.Cut(a, "=")
		if !isVariable {
			continue
		}
		if _, err := run(t, "grep", "-rqw", name, "Makefile", "integration", "bgp"); err != nil {
			t.Errorf("%s: nothing reads %s", c.text, name)
		}
		if name == "BENCH" {
			checkBenchmark(t, command{where: c.where, text: "BENCH=" + value, whole: true})
		}
	}
}

var benchmarkRow = regexp.MustCompile(`(?m)^  run \S+ (\./\S+) (.+)$`)

// checkBenchmark: the expression selects benchmarks of integration/run-bench, and these exist.
func checkBenchmark(t *testing.T, c command) {
	text, err := os.ReadFile(filepath.Join(root, "integration/run-bench"))
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := regexp.Compile(strings.TrimPrefix(words(c.text)[0], "BENCH="))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, row := range benchmarkRow.FindAllStringSubmatch(string(text), -1) {
		for _, name := range strings.Fields(row[2]) {
			if !chosen.MatchString(name) {
				continue
			}
			count++
			if len(testsLike(t, filepath.Join(root, row[1]), "^Benchmark"+name+"$")) == 0 {
				t.Errorf("%s: %s has no Benchmark%s", c.text, row[1], name)
			}
		}
	}
	if count == 0 {
		t.Errorf("%s: chooses no benchmark of integration/run-bench", c.text)
	}
}

// testsLike returns the tests and benchmarks below a folder with matching names.
func testsLike(t *testing.T, folder, expression string) (names []string) {
	t.Helper()
	like, err := regexp.Compile(expression)
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	err = filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range declared.FindAllStringSubmatch(string(text), -1) {
			if like.MatchString(found[1]) {
				names = append(names, found[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// checkGo: the packages exist, they have the tests that -run names, and the programs accept the flags.
func checkGo(t *testing.T, c command) {
	args := words(c.text)
	args = args[slices.Index(args, "go")+1:]
	i := slices.IndexFunc(args, func(w string) bool { return strings.HasPrefix(w, "./") })
	switch {
	case i < 0 && c.whole:
		t.Fatalf("%s: no package", c.text)
	case i < 0: // a sentence about a flag of the command
		checkHelp(t, c)
		return
	}
	if out, err := run(t, "go", "list", args[i]); err != nil {
		t.Fatalf("%s: %v\n%s", c.text, err, out)
	}
	if r := slices.Index(args, "-run"); r >= 0 {
		for _, name := range strings.Split(args[r+1], "|") {
			name, _, _ = strings.Cut(name, "/") // a part of the test
			if len(testsLike(t, filepath.Join(root, strings.TrimSuffix(args[i], "...")), name)) == 0 {
				t.Errorf("%s: %s has no test %s", c.text, args[i], name)
			}
		}
	}
	if args[0] != "run" || !slices.ContainsFunc(args[i+1:], func(w string) bool { return strings.HasPrefix(w, "-") }) {
		return
	}
	help, _ := run(t, "go", "run", args[i], "-h")
	for _, w := range args[i+1:] {
		flag, isFlag := strings.CutPrefix(w, "--")
		if isFlag && !regexp.MustCompile(`(?m)^\s+--?`+flag+`\b`).MatchString(help) {
			t.Errorf("%s: --%s is no flag of\n%s", c.text, flag, help)
		}
		if strings.Contains(w, "/") {
			exists(t, c, w)
		}
	}
}

// checkHelp: the go command has this subcommand.
func checkHelp(t *testing.T, c command) {
	args := words(c.text)[1:]
	if i := slices.IndexFunc(args, func(w string) bool { return strings.HasPrefix(w, "-") }); i >= 0 {
		args = args[:i]
	}
	if out, err := run(t, "go", append([]string{"help"}, args...)...); err != nil {
		t.Errorf("%s: %v\n%s", c.text, err, out)
	}
}

// checkChart renders the chart with the values of the command.
func checkChart(t *testing.T, c command) {
	args := words(c.text)[1:]
	if args[0] != "show" {
		args[0] = "template"
		// TestObjectsByValues installs the page's values.
		args = slices.DeleteFunc(args, func(w string) bool {
			return strings.HasSuffix(w, "reuse-values") || w == "-f" || w == "values.yaml"
		})
	}
	if out, err := run(t, "integration/deploy/tool", append([]string{"helm"}, args...)...); err != nil {
		t.Errorf("%s: %v\n%s", c.text, err, out)
	}
}

// ours matches the folders of the repository whose files commands name.
var ours = regexp.MustCompile(`^(deploy|integration|docs|cmd)/`)

// checkFiles: the files of this repository that the command names exist.
func checkFiles(t *testing.T, c command) {
	for _, w := range strings.FieldsFunc(c.text, func(r rune) bool { return strings.ContainsRune(" =;|'\"", r) }) {
		if ours.MatchString(w) {
			exists(t, c, w)
		}
	}
}

func exists(t *testing.T, c command, file string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		t.Error(fmt.Errorf("%s: %w", c.text, err))
	}
}
