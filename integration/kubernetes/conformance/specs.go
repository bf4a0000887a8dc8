package main

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/kubernetes/cluster"
	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// groups of tests that the table is about, by the beginning of their names.
var groups = []string{"Networking Granular Checks: Pods", "Networking Granular Checks: Services", "Services", "DNS",
	"EndpointSlice ", "EndpointSliceMirroring", "Connectivity Pod Lifecycle", "HostPort", "NoSNAT", "Conntrack",
	"Proxy version v1", "Service endpoints latency", "CVE-2021-29923", "Networking should", "LoadBalancers", "Netpol",
	dualStack}

// dualStack is the group of tests that need a dual cluster.
const dualStack = "[Feature:IPv6DualStack]"

// featureGates that tests of these groups need.
const featureGates = "RelaxedDNSSearchValidation=true"

// excluded are tests that are meaningless here, by a part of their names, and why.
var excluded = []struct{ part, why string }{
	{"[Disruptive]", "restarts programs over SSH or as pods, which the lab runs in another way"},
	{"Internet connection", "the network of the lab has no way out"},
	{"[Provider:GCE]", "needs names of Google's cloud"},
	{"cleanup finalizer", "a cloud's controller needs the finalizer to remove its objects in the cloud; " +
		"Manx makes nothing outside of the cluster, and sets none"},
	{"Forward PTR lookup", "begins with the name of 8.8.8.8 in the DNS of the Internet, and the network of the lab " +
		"has no way out"},
}

// result of a test.
type result struct {
	name    string
	outcome string // passed, failed, skipped or not run
	why     string // it was skipped or not run
	took    time.Duration
}

var listed = regexp.MustCompile(`(?m)^\s+\S+: (\[sig-network\] .*)$`)

// list returns the tests that match the focus; without a focus, all tests of the groups.
func list(focus string, n cluster.Network) ([]string, error) {
	programs, err := lab.Programs()
	if err != nil {
		return nil, err
	}
	out, err := exec.Command(filepath.Join(programs, "e2e.test"), "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("e2e.test --list-tests: %w", err)
	}
	match, err := regexp.Compile(focus)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range listed.FindAllStringSubmatch(string(out), -1) {
		name := strings.TrimSpace(m[1])
		if focus == "" && (group(name) == "" || group(name) == dualStack && n.Families != lab.Dual) {
			continue
		}
		if match.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no test matches %q", focus)
	}
	return names, nil
}

// group of a test in the table, or none.
func group(name string) string {
	for _, g := range groups {
		if strings.HasPrefix(name, "[sig-network] "+g) {
			return g
		}
	}
	return ""
}

// skipReason is why a test does not run on a cluster with that network; empty if it runs.
func skipReason(name string, n cluster.Network) string {
	if strings.Contains(name, "[Feature:SCTPConnectivity]") && !kernelHasSCTP() {
		return "needs SCTP, which the kernel here does not have"
	}
	switch balanced := group(name) == "LoadBalancers" || strings.Contains(name, "[Feature:LoadBalancer]"); {
	case balanced && n.Mode != cluster.BGP:
		return "without BGP nobody announces the addresses of load balancers"
	case balanced && n.Families == lab.IPv6:
		return "the load balancers of the lab have IPv4"
	}
	for _, e := range excluded {
		if strings.Contains(name, e.part) {
			return e.why
		}
	}
	return ""
}

func kernelHasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == nil
}

// runner runs tests on a cluster.
type runner struct {
	cluster  *lab.Cluster
	network  cluster.Network
	journal  *journal
	parallel int
}

// runAll runs the tests, several at a time, each in its own process: a test that hangs does not stop others. Tests that
// need the cluster alone come last, one by one; slow tests come first, so that the run does not wait for one of them at
// the end. Tests that the end of ctx cuts off have no results.
func (on *runner) runAll(ctx context.Context, names []string) ([]result, error) {
	repos := filepath.Join(on.cluster.Dir, "repositories.yaml")
	text := "promoterE2eRegistry: " + registry + "\ngcRegistry: " + registry + "\n"
	if err := os.WriteFile(repos, []byte(text), 0o644); err != nil {
		return nil, err
	}
	results := make([]result, len(names))
	var together, alone []int
	for i, name := range names {
		if runsAlone(name) {
			alone = append(alone, i)
		} else {
			together = append(together, i)
		}
	}
	slices.SortStableFunc(together, func(a, b int) int { return slow(names[b]) - slow(names[a]) })
	var done atomic.Int32
	do := func(i int) error {
		if results[i] = on.journal.result(names[i]); results[i].outcome == "passed" {
			done.Add(1)
			return nil
		}
		got := on.runOne(names[i], repos, i)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		results[i] = got
		why := ""
		if got.outcome != "passed" {
			why = "\n               " + oneLine(got.why)
		}
		fmt.Printf("%3d/%d  %-8s %4.0fs  %s%s\n", done.Add(1), len(names), got.outcome, got.took.Seconds(), got.name,
			why)
		return on.journal.add(names[i], got)
	}
	if err := inParallel(together, on.parallel, do); err != nil {
		return nil, err
	}
	return results, inParallel(alone, 1, do)
}

// runsAlone reports whether a test needs the cluster alone.
func runsAlone(name string) bool {
	return strings.Contains(name, "[Serial]") || strings.Contains(name, "[Disruptive]") || greedy(name) || affine(name)
}

// slow returns 1 for a test with the mark slow, and 0 for others.
func slow(name string) int {
	if strings.Contains(name, "[Slow]") {
		return 1
	}
	return 0
}

// greedy tests send requests as fast as they can, and take most of the processor time of a small machine.
func greedy(name string) bool { return strings.Contains(name, "rolling update") }

// affine tests have a Service for which the router's configuration changes: see followAffinity.
func affine(name string) bool {
	return strings.Contains(name, "session affinity") && group(name) == "LoadBalancers"
}

// limit bounds a test. A greedy one repeats five times the update of three pods that take a minute each to end.
func limit(name string) time.Duration {
	if greedy(name) {
		return 45 * time.Minute
	}
	return 15 * time.Minute
}

// inParallel calls do for each number, at most at of them at a time.
func inParallel(numbers []int, at int, do func(int) error) error {
	var all errgroup.Group
	all.SetLimit(at)
	for _, i := range numbers {
		all.Go(func() error { return do(i) })
	}
	return all.Wait()
}

// shortName returns the name of a test without the common prefix.
func shortName(name string) string { return strings.TrimPrefix(name, "[sig-network] ") }

// report is e2e.test's output in JUnit's format.
type report struct {
	Cases []testCase `xml:"testsuite>testcase"`
}

type testCase struct {
	Name    string `xml:"name,attr"`
	Status  string `xml:"status,attr"`
	Failure *note  `xml:"failure"`
	Error   *note  `xml:"error"` // such as a panic
	Skipped *note  `xml:"skipped"`
}

// note is the reason of an outcome: e2e.test leaves the message of a failure empty.
type note struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"` // its first line begins with the outcome: "[FAILED] ..."
}

// outcome returns the outcome of a test, and why it did not pass. ran is false if the test was not in focus.
func (c testCase) outcome() (outcome, why string, ran bool) {
	switch {
	case c.Skipped != nil && c.Status == "skipped" && c.Skipped.Message == "skipped":
		return "", "", false
	case c.Skipped != nil:
		return "skipped", c.Skipped.Message, true
	case c.Failure == nil && c.Error == nil && c.Status == "passed":
		return "passed", "", true
	}
	n := cmp.Or(c.Failure, c.Error, &note{Message: c.Status})
	return "failed", cmp.Or(n.Message, strings.TrimPrefix(strings.TrimSpace(n.Text), "[FAILED] ")), true
}

func (on *runner) runOne(name, repos string, number int) result {
	c := on.cluster
	r := result{name: shortName(name)}
	if r.why = skipReason(name, on.network); r.why != "" {
		r.outcome = "not run"
		return r
	}
	dir := filepath.Join(c.Dir, fmt.Sprintf("report-%d", number))
	cmd := c.Admin("e2e.test", "--kubeconfig="+c.Kubeconfig(), "--kubectl-path="+c.Program("kubectl"),
		"--provider=skeleton", "--num-nodes=3",
		"--ginkgo.focus="+regexp.QuoteMeta(name)+"\\s*$", "--ginkgo.no-color",
		"--ginkgo.timeout="+limit(name).String(), "--report-dir="+dir, "--disable-log-dump",
		"--allowed-not-ready-nodes=0")
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+repos)
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	r.took = time.Since(begin)
	text, readErr := os.ReadFile(filepath.Join(dir, "junit_01.xml"))
	if readErr != nil {
		r.outcome, r.why = "failed", fmt.Sprintf("%v: %s", err, tail(string(out)))
		return r
	}
	var rep report
	if err := xml.Unmarshal(text, &rep); err != nil {
		r.outcome, r.why = "failed", err.Error()
		return r
	}
	_ = os.RemoveAll(dir)
	r.outcome, r.why = "failed", "e2e.test did not run it: "+tail(string(out))
	for _, k := range rep.Cases {
		if outcome, why, ran := k.outcome(); ran && strings.Contains(k.Name, r.name) {
			r.outcome, r.why = outcome, why
		}
	}
	if r.outcome == "failed" {
		writeOutput(number, out)
	}
	return r
}

// writeOutput writes the output of a failed test into a file.
func writeOutput(number int, out []byte) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("manx-e2e-%d.log", number))
	if os.WriteFile(path, out, 0o644) == nil {
		fmt.Println("               its output is in", path)
	}
}

func tail(text string) string { return text[max(0, len(text)-300):] }
