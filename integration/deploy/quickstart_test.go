package deploy

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/lab"
	"github.com/manxnet/manx/integration/ports"
)

// needKubelets are the commands of the quickstart that need machines with kubelets, with the test of each.
var needKubelets = map[string]string{
	"kubeadm init ":                "its flags are compared here; the clusters of the tests are made without kubeadm",
	"kubectl manx ":                "cmd/manxctl TestNodesOfACluster",
	"kubectl -n kube-system exec ": "TestCluster; its output: integration/interop TestQuickstartSwitch",
}

var (
	fenced = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")
	// number is what differs from run to run.
	number = regexp.MustCompile(`[0-9][0-9a-z.:/]*`)
)

// runQuickstart runs, unchanged and in order, the commands of docs/quickstart.md in a cluster without kubelets, and
// compares the output that the page shows. The nodes, the pods of the DaemonSet and its status are played.
func (c *cluster) runQuickstart() {
	c.Helper()
	page, err := os.ReadFile("../../docs/quickstart.md")
	if err != nil {
		c.Fatal(err)
	}
	c.addQuickstartNodes()
	reader := c.newReader()
	skipped, ran, yaml := map[string]bool{}, 0, ""
	for _, m := range fenced.FindAllStringSubmatch(string(page), -1) {
		switch m[1] {
		case "yaml":
			yaml = m[2]
		case "sh":
			for command := range strings.Lines(m[2]) {
				c.quickstartStep(reader, strings.TrimSpace(command), "", yaml, skipped)
				ran++
			}
		case "console":
			for _, part := range strings.Split("\n"+m[2], "\n$ ")[1:] {
				command, output, _ := strings.Cut(part, "\n")
				c.quickstartStep(reader, command, output, yaml, skipped)
				ran++
			}
		}
	}
	if ran < 14 || len(skipped) != len(needKubelets) {
		c.Errorf("the page has %d commands; of those that need kubelets it has %v", ran, skipped)
	}
}

// quickstartStep runs a command. yaml is the last block of YAML before it.
func (c *cluster) quickstartStep(reader *exec.Cmd, command, output, yaml string, skipped map[string]bool) {
	c.Helper()
	for prefix := range needKubelets {
		if strings.HasPrefix(command, prefix) {
			skipped[prefix] = true
			flags, isKubeadm := strings.CutPrefix(command, "kubeadm init ")
			if isKubeadm && flags != "--pod-network-cidr="+lab.PodCIDR {
				c.Errorf("%s: the clusters of the tests have --pod-network-cidr=%s alone", command, lab.PodCIDR)
			}
			return
		}
	}
	if file, ok := strings.CutPrefix(command, "kubectl apply -f "); ok {
		if err := os.WriteFile(filepath.Join(reader.Dir, file), []byte(yaml), 0o600); err != nil {
			c.Fatal(err)
		}
	}
	if strings.Contains(command, "rollout status") {
		c.playDaemonSet()
	}
	var missing, real string
	// The API serves definitions soon after their creation, and controllers need a moment.
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		cmd := *reader
		cmd.Args = []string{"bash", "-c", command}
		var warnings strings.Builder
		cmd.Stderr = &warnings
		out, err := cmd.Output()
		real = string(out)
		if missing = differentForm(output, real); err == nil && missing == "" {
			break
		}
		if time.Now().After(end) {
			c.Fatalf("%s: %v: the page shows %q, there is\n%s%s", command, err, missing, real, warnings.String())
		}
	}
	if strings.HasPrefix(command, "helm install ") {
		c.startControllers()
	}
	if command == "kubectl get service web" && !regexp.MustCompile(`\s198\.51\.100\.\d+\s`).MatchString(real) {
		c.Errorf("%s: the address is in another range than the page's\n%s", command, real)
	}
}

// differentForm returns the first line of an output on the page whose form differs from the real one: words and their
// order have to be the same, numbers and addresses not.
func differentForm(page, real string) string {
	have := strings.Split(real, "\n")
	for i, line := range strings.Split(strings.TrimSpace(page), "\n") {
		form := func(s string) string { return number.ReplaceAllString(strings.Join(strings.Fields(s), " "), "#") }
		if line != "" && (i >= len(have) || form(line) != form(have[i])) {
			return line
		}
	}
	return ""
}

// newReader is a shell with the users' programs, in a folder with the repository's deploy.
func (c *cluster) newReader() *exec.Cmd {
	c.Helper()
	dir := c.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		c.Fatal(err)
	}
	helm := fmt.Sprintf("#!/bin/sh\nexec %s/integration/deploy/tool helm \"$@\"\n", root)
	if err := errors.Join(os.Symlink(root+"/deploy", dir+"/deploy"), os.WriteFile(dir+"/helm", []byte(helm), 0o700),
		os.Symlink(filepath.Join(apiserver.Programs(), "kubectl"), dir+"/kubectl")); err != nil {
		c.Fatal(err)
	}
	cmd := exec.Command("bash")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+c.config, "HELM_CACHE_HOME="+dir,
		"HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	return cmd
}

// addQuickstartNodes plays the kubelets of the page's nodes, and what kubeadm records.
func (c *cluster) addQuickstartNodes() {
	c.Helper()
	c.server.Request(c, http.MethodPost, "/api/v1/namespaces/kube-system/configmaps", map[string]any{
		"metadata": map[string]any{"name": "kubeadm-config"}, "data": map[string]string{
			"ClusterConfiguration": "networking: {podSubnet: " + lab.PodCIDR + "}\n"}})
	for i, address := range []string{"10.0.1.11", "10.0.1.12", "10.0.2.11", "10.0.2.12"} {
		name, labels := fmt.Sprint("n", i+1), map[string]string{}
		if i == 0 {
			labels["node-role.kubernetes.io/control-plane"] = ""
		}
		c.server.Request(c, http.MethodPost, "/api/v1/nodes", map[string]any{
			"metadata": map[string]any{"name": name, "labels": labels}})
		c.server.Request(c, http.MethodPatch, "/api/v1/nodes/"+name+"/status", map[string]any{"status": map[string]any{
			"addresses":  []any{map[string]string{"type": "InternalIP", "address": address}},
			"nodeInfo":   map[string]string{"kubeletVersion": "v1.32.0"},
			"conditions": []any{map[string]string{"type": "Ready", "status": "True"}}}})
	}
}

// playDaemonSet plays the controller of DaemonSets and the pod of n1.
func (c *cluster) playDaemonSet() {
	c.Helper()
	// manxd makes it at its first start.
	c.server.Request(c, http.MethodPost, "/apis/"+groupV3+"/v3/bgpconfigurations", map[string]any{
		"apiVersion": groupV3 + "/v3", "kind": "BGPConfiguration", "metadata": map[string]any{"name": "default"}})
	c.must("-n", "kube-system", "patch", "daemonset", "manx-node", "--subresource=status", "--type=merge", "-p",
		`{"status":{"observedGeneration":1,"desiredNumberScheduled":4,"currentNumberScheduled":4,`+
			`"updatedNumberScheduled":4,"numberAvailable":4,"numberReady":4,"numberMisscheduled":0}}`)
	c.server.Request(c, http.MethodPost, "/api/v1/namespaces/kube-system/pods", map[string]any{
		"metadata": map[string]any{"name": "manx-node-7x2kp", "labels": map[string]string{"k8s-app": "manx-node"}},
		"spec": map[string]any{"nodeName": "n1",
			"containers": []any{map[string]string{"name": "manxd", "image": "i"}}}})
}

// startControllers runs the controllers of the chart until the test ends, with the account that the chart made.
func (c *cluster) startControllers() {
	c.Helper()
	dir := c.TempDir()
	if err := os.Mkdir(dir+"/run", 0o755); err != nil {
		c.Fatal(err)
	}
	token := c.server.AccountToken(c, "kube-system", "manx-controllers", "n1")
	cmd := exec.Command(program(c.T, "manxd"), "controllers", "--node-name=manx-controllers-0",
		"--run-dir="+dir+"/run", "--nodename-file="+dir+"/nodename", "--wait-for-datastore", "--datastore=kubernetes",
		fmt.Sprintf("--http-listen=127.0.0.1:%d", ports.Free(c, "127.0.0.1")),
		"--kubeconfig="+c.server.KubeconfigWith(c, c.server.URL, token))
	log, err := os.Create(dir + "/log")
	if err != nil {
		c.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			text, _ := os.ReadFile(log.Name())
			c.Errorf("the controllers: %v\n%s", err, text)
		}
	})
}

// An output of another form is found.
func TestDifferentForm(t *testing.T) {
	t.Parallel()
	const page = "NAME   AGE\nn1     4m\n"
	for real, want := range map[string]bool{page: true, "NAME AGE\nn2 53s\n": true, "NAME AGE\n": false, "": false,
		"NAME AGE STATUS\nn2 53s Ready\n": false} {
		if got := differentForm(page, real) == ""; got != want {
			t.Errorf("%q: %v", real, got)
		}
	}
	if got := differentForm("", "anything"); got != "" {
		t.Errorf("a command without an output on the page may have any, want no %q", got)
	}
}
