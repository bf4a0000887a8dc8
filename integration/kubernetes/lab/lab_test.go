package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hosts "github.com/manxnet/manx/integration/lab"
)

// TestVersion compares the constant with the module of the programs.
func TestVersion(t *testing.T) {
	text, err := os.ReadFile("../programs/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "k8s.io/kubernetes " + Version + " "; !strings.Contains(string(text), want) {
		t.Errorf("programs/go.mod does not require %s", want)
	}
}

// TestWithoutManx runs a pod on a cluster whose network is the plain bridge plugin: a failure here is a fault of the
// lab.
func TestWithoutManx(t *testing.T) {
	if os.Getenv("MANX_CLUSTER") == "" {
		t.Skip("a cluster wants the machine for itself: run `make test-cluster`")
	}
	if _, missing := Require(); missing != nil {
		t.Skip(missing)
	}
	name := fmt.Sprintf("kl%d", os.Getpid()%1e6)
	c, err := New(Spec{Name: name, Nodes: []hosts.NodeSpec{{Name: "node1"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Describe())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, pattern := range []string{"/run/netns/" + name + "-*", "/sys/fs/cgroup/*/manx-kubernetes-*" + name + "*",
			"/sys/fs/cgroup/manx-kubernetes-*" + name + "*", "/run/manx-lab/" + name, c.Dir} {
			if left, _ := filepath.Glob(pattern); len(left) > 0 {
				t.Errorf("left behind: %s", left)
			}
		}
	})
	must(t, c.StartNodes())
	n := c.Workers[0]
	must(t, n.bridge())
	tools, err := c.Tools()
	must(t, err)
	must(t, c.Import(tools))
	must(t, c.WaitNodes())
	must(t, c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, image: `+ToolsImage+`, imagePullPolicy: Never, args: [netexec, --http-port=8080]}]
`))
	must(t, c.WaitPod("web"))
	out, err := c.Kubectl("exec", "web", "--", "hostname")
	if err != nil || strings.TrimSpace(out) != "web" {
		t.Errorf("hostname in the pod: %q, %v", out, err)
	}
	must(t, n.Reboot())
	must(t, n.bridge())
	must(t, c.WaitNodes())
	// A static pod in the API comes back on a machine that has lost its state.
	must(t, hosts.Eventually(2*time.Minute, func() error {
		_, err := c.Kubectl("exec", "web", "--", "hostname")
		return err
	}))
}

// bridge gives the node the plain plugins of the CNI project.
func (n *Node) bridge() error {
	return n.writeFile("/etc/cni/net.d/10-bridge.conflist", `{"cniVersion": "1.0.0", "name": "bridge", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isGateway": true,
		 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]]}}]}`)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
