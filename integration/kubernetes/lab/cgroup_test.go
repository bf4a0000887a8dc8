package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hosts "github.com/manxnet/manx/integration/lab"
)

// TestVMCgroups runs a container with a limit in a node's cgroups of version 2: runc makes its group below the node's
// group, as for the kubelet. No group is left afterwards.
func TestVMCgroups(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it needs cgroups of version 2: make test-vm runs it in a machine that has them")
	}
	if !unified() {
		t.Fatal("no cgroups of version 2 alone")
	}
	if missing := installed(); missing != nil {
		t.Skip(missing)
	}
	l, err := hosts.New(hosts.Spec{Name: "kcgroup", Nodes: []hosts.NodeSpec{{Name: "node1"}}})
	must(t, err)
	c := &Cluster{Lab: l, programs: t.TempDir()}
	n := &Node{Node: l.Nodes[0], cluster: c}
	c.Workers = []*Node{n}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(tail(n.file("node.log"), 20), tail(n.Log("containerd"), 20))
		}
		must(t, c.Close())
		if left, _ := filepath.Glob(filepath.Join(cgroupRoot, cgroupPrefix+"*")); len(left) > 0 {
			t.Errorf("left behind: %s", left)
		}
	})
	must(t, os.WriteFile(n.file("containerd.toml"), []byte(containerdConfig), 0o644))
	must(t, n.unshare())
	const image = "localhost/manx-lab/busybox:1"
	archive, err := Image{Names: []string{image}, Entrypoint: []string{"/bin/busybox"},
		Programs: map[string]string{"/bin/busybox": busybox}}.Write(c.Dir)
	must(t, err)
	must(t, n.sendCommand("start containerd containerd --config "+n.file("containerd.toml")))
	must(t, hosts.Eventually(3*time.Minute, func() error {
		_, err := n.RunIn("ctr", "version")
		return err
	}))
	must(t, n.importNow(archive))
	_, err = n.RunIn("ctr", "-n", "k8s.io", "run", "-d", "--cgroup", "/kubepods/limited", "--memory-limit", "33554432",
		image, "limited", "/bin/busybox", "sleep", "600")
	must(t, err)
	for file, want := range map[string]string{"memory.max": "33554432",
		"cgroup.controllers": "cpuset cpu io memory pids"} {
		got, err := n.RunIn("cat", "/sys/fs/cgroup/kubepods/limited/"+file)
		must(t, err)
		for _, word := range strings.Fields(want) {
			if !strings.Contains(" "+strings.TrimSpace(got)+" ", " "+word+" ") {
				t.Errorf("%s of the container: %q, want %q", file, got, want)
			}
		}
	}
	// On this machine the group is below the node's group.
	group := filepath.Join(cgroupRoot, n.cgroup(), "kubepods", "limited", "cgroup.procs")
	if pids, err := os.ReadFile(group); err != nil || len(pids) == 0 {
		t.Errorf("%s: %q, %v", group, pids, err)
	}
}
