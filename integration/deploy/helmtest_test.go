package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The pod of `helm test` says on how many nodes manxd is ready, with its own rights, which reach nothing else. No
// kubelet runs here: the test plays it, and the controller of DaemonSets.
func TestHelmTest(t *testing.T) {
	t.Parallel()
	manxctl := filepath.Join(t.TempDir(), "manxctl")
	if out, err := exec.Command("go", "build", "-o", manxctl, "../../cmd/manxctl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := startCluster(t)
	c.must("create", "namespace", "net")
	run := func(args ...string) (string, error) {
		return helm(t, append(args, "--namespace", "net", "--kubeconfig", c.config)...)
	}
	if out, err := run("install", "manx", chart, "--set=crds.install=off"); err != nil {
		t.Fatal(out)
	}
	ended := make(chan error, 1)
	var log string
	go func() {
		out, err := run("test", "manx", "--timeout=90s")
		log = out
		ended <- err
	}()
	const account = "--as=system:serviceaccount:net:manx-test"
	command := ""
	for end := time.Now().Add(time.Minute); command == ""; time.Sleep(100 * time.Millisecond) { // Helm makes it
		command, _ = c.kubectl("-n", "net", "get", "pod", "manx-test", "--ignore-not-found", "-o",
			"jsonpath={.spec.containers[0].command[1:]}")
		if time.Now().After(end) {
			t.Fatal("helm makes no pod")
		}
	}
	if want := "health --cluster --manx-namespace=net"; command != want {
		t.Errorf("the pod runs manxctl %s, want %s", command, want)
	}
	token := strings.TrimSpace(c.must("-n", "net", "create", "token", "manx-test"))
	config := filepath.Join(t.TempDir(), "config")
	text := c.must("config", "view", "--raw", "--flatten")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run("kubectl --kubeconfig " + config + " config set-credentials test --token=" + token)
	c.run("kubectl --kubeconfig " + config + " config set-context --current --user=test")
	check := func(status, want string, code int) {
		t.Helper()
		c.must("-n", "net", "patch", "daemonset", "manx-node", "--subresource=status", "--type=merge", "-p",
			`{"status":{`+status+`}}`)
		cmd := exec.Command(manxctl, "health", "--cluster", "--manx-namespace=net", "--kubeconfig", config)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), want) {
			t.Errorf("%s: exit code %d, %s; want %d, %s", status, got, out, code, want)
		}
	}
	const counts = `"currentNumberScheduled":3,"numberMisscheduled":0,"desiredNumberScheduled":3,`
	check(counts+`"numberReady":2,"updatedNumberScheduled":3,"observedGeneration":1`,
		"2 of 3 nodes are ready: kubectl -n net", 4)
	check(counts+`"numberReady":3,"updatedNumberScheduled":1,"observedGeneration":1`, "1 of 3 nodes", 4)
	check(counts+`"numberReady":3,"updatedNumberScheduled":3,"observedGeneration":0`, "0 of 3 nodes", 4)
	check(counts+`"numberReady":3,"updatedNumberScheduled":3,"observedGeneration":1`, "3 of 3 nodes are ready\n", 0)

	for _, right := range [][]string{{"list", "daemonsets.apps"}, {"get", "daemonsets.apps/another"}, {"list", "pods"},
		{"create", "pods/exec"}, {"get", "secrets"}, {"get", "nodes"}} {
		if out, can := c.kubectl("-n", "net", "auth", "can-i", right[0], right[1], account); can {
			t.Errorf("the pod may %v: %s", right, out)
		}
	}
	c.must("-n", "net", "patch", "pod", "manx-test", "--subresource=status", "-p", `{"status":{"phase":"Succeeded"}}`)
	if err := <-ended; err != nil || !strings.Contains(log, "Phase:          Succeeded") {
		t.Errorf("helm test: %v: %s", err, log)
	}
	if out := c.must("-n", "net", "get", "pods,roles,rolebindings,serviceaccounts", "-o", "name"); strings.Contains(out,
		"manx-test") {
		t.Errorf("something of the test stays: %s", out)
	}
}
