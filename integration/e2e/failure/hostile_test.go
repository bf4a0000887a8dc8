package failure

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// hostile is one node with a hostile unprivileged user.
type hostile struct {
	*lab.Lab
	n        *lab.Node
	theirs   string // a folder of that user
	precious string // a file of root
	args     []string
}

// TestHostileHost: an unprivileged user creates files at the daemon's paths, and objects claim interfaces of the host.
func TestHostileHost(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("h"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	h := &hostile{Lab: l, n: l.Nodes[0], theirs: filepath.Join(l.Nodes[0].Dir, "theirs"),
		precious: filepath.Join(l.Nodes[0].Dir, "precious")}
	must(t, errors.Join(os.Mkdir(h.theirs, 0o755), os.Chown(h.theirs, world.Nobody, world.Nobody),
		os.WriteFile(h.precious, []byte("precious"), 0o600)))
	h.args = append(h.n.EmbedDatastore(), "--ipv4pool-cidr=10.244.0.0/16",
		"--flow-log="+filepath.Join(h.n.Dir, "log", "drops.json"))
	must(t, os.Mkdir(filepath.Join(h.n.Dir, "log"), 0o755))
	must(t, h.n.StartManxd(h.args...))
	must(t, h.n.Ready(limit))
	for _, test := range []struct {
		name string
		run  func(*hostile, *testing.T)
	}{
		{"endpoints that name interfaces of the host", (*hostile).testInterfaces},
		{"the flow log", (*hostile).testFlowLog},
		{"a folder of another user", (*hostile).testStatusFolder},
		{"a daemon in the same network, a user in its way", (*hostile).testSecondDaemon},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(h, t) }) {
			break
		}
	}
	if content, err := os.ReadFile(h.precious); err != nil || string(content) != "precious" {
		t.Errorf("root's file is now %q, %v", content, err)
	}
}

// asNobody returns the command of a shell script as the unprivileged user, in the node's network namespace.
func (h *hostile) asNobody(script string) *exec.Cmd {
	cmd := exec.Command("nsenter", "--net=/run/netns/"+h.n.Namespace, "setpriv", "--reuid=65534", "--regid=65534",
		"--clear-groups", "sh", "-ec", script)
	cmd.Dir = "/"
	return cmd
}

// awaitNotice waits until the status has, or lacks, a notice with these words.
func (h *hostile) awaitNotice(t *testing.T, yes bool, words ...string) {
	t.Helper()
	eventually(t, func() error {
		out, err := h.n.Manxctl("status")
		found := false
		for line := range strings.Lines(out) {
			all := strings.HasPrefix(line, "Notice:")
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			found = found || all
		}
		if found != yes {
			return fmt.Errorf("a notice with %q: %t, want %t; manxctl status: %v\n%s", words, found, yes, err, out)
		}
		return nil
	})
}

func (h *hostile) testInterfaces(t *testing.T) {
	hostState := func() string {
		out, err := h.n.Run("sh", "-c",
			`ip -d link show dev eth0; ip addr show dev eth0; ip addr show dev lo; ip -4 route show table all; ip -6 route show table all
			tc qdisc show; nft list table inet manx | grep -v counter; cd /proc/sys/net; grep -r . ipv4/conf/eth0 ipv4/conf/lo ipv4/conf/all ipv4/conf/default ipv6/conf/eth0 2>/dev/null | sort`)
		must(t, err)
		return out
	}
	good, err := h.n.AddPod("good")
	must(t, err)
	eventually(t, func() error { return lab.Ping(h.n.Namespace, good.IP4()) })
	var before string
	eventually(t, func() error { // until the kernel has checked its own addresses
		tentative, err := h.n.Run("ip", "-6", "addr", "show", "tentative")
		if strings.TrimSpace(tentative) != "" {
			err = errors.Join(err, errors.New(tentative))
		}
		before = hostState()
		return err
	})
	forged := []string{"eth0", "lo", "tunl0", "all"}
	for i, iface := range forged {
		must(t, h.n.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {namespace: default, name: n1-k8s-forged%d-eth0}
spec: {node: n1, orchestrator: k8s, pod: forged%[1]d, endpoint: eth0, containerID: x, interfaceName: %s, ipNetworks: [10.244.99.%[1]d/32], qosControls: {ingressBandwidth: 1000000}}
`, i, iface)))
		h.awaitNotice(t, true, fmt.Sprintf("n1-k8s-forged%d-eth0", i), fmt.Sprintf("interfaceName %q", iface))
	}
	if after := hostState(); after != before {
		t.Errorf("the host has changed:\n%s\nbefore:\n%s", after, before)
	}
	out, err := h.n.Manxctl("node", "endpoints")
	must(t, err)
	world.Contains(t, "manxctl node endpoints", world.LineWith(out, "forged0"), "blocked",
		`interfaceName "eth0" does not begin with "cali"`)
	must(t, lab.Ping(h.n.Namespace, good.IP4()))
	for i := range forged {
		_, err := h.n.Manxctl("delete", "workloadendpoint", "-n", "default", fmt.Sprintf("n1-k8s-forged%d-eth0", i))
		must(t, err)
	}
	h.awaitNotice(t, false, "forged")
	must(t, good.Delete())
}

func (h *hostile) testFlowLog(t *testing.T) {
	folder := filepath.Join(h.n.Dir, "log")
	path := filepath.Join(folder, "drops.json")
	exists := func() error { _, err := os.Stat(path); return err }
	eventually(t, exists)
	must(t, os.Rename(path, path+".1"))
	must(t, h.n.Manxd().Signal(syscall.SIGHUP))
	eventually(t, exists)
	must(t, h.n.Ready(limit)) // the signal does not end the daemon

	must(t, os.Rename(folder, folder+"-away"))
	must(t, h.n.Manxd().Signal(syscall.SIGHUP))
	h.awaitNotice(t, true, "--flow-log="+path, "no such file or directory")
	must(t, os.Rename(folder+"-away", folder))
	h.awaitNotice(t, false, "--flow-log")
}

func (h *hostile) testStatusFolder(t *testing.T) {
	const usual = "/var/run/calico/endpoint-status"
	must(t, h.n.Manxd().Stop(limit))
	must(t, h.n.StartManxd(append(h.args, "--endpoint-status-path-prefix=")...))
	must(t, h.n.Ready(limit))
	out, err := h.asNobody(fmt.Sprintf("mkdir %s/endpoint-status; cd %[1]s/endpoint-status; ln -s %s .new; ln -s "+
		"%[2]s 'k8s default%%2Fpod eth0'", h.theirs, h.precious)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must(t, h.n.Apply("apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: "+
		"{endpointStatusPathPrefix: "+h.theirs+"}\n"))
	h.awaitNotice(t, true, h.theirs, "belongs to user 65534", usual)
	p, err := h.n.AddPod("pod", func(conf map[string]any) { conf["endpoint_status_dir"] = usual })
	must(t, err)
	holds := func(folder string) {
		eventually(t, func() error {
			list, err := os.ReadDir(folder)
			if err == nil && len(list) != 1 {
				err = fmt.Errorf("%s has %v, want the file of the pod", folder, list)
			}
			return err
		})
	}
	holds(usual)
	must(t, os.RemoveAll(h.theirs))
	must(t, os.Mkdir(h.theirs, 0o755))
	holds(filepath.Join(h.theirs, "endpoint-status")) // root's now
	h.awaitNotice(t, false, h.theirs)
	must(t, p.Delete())
}

func (h *hostile) testSecondDaemon(t *testing.T) {
	must(t, h.n.Manxd().Stop(limit))
	squatter := h.asNobody(
		`exec perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, pack_sockaddr_un("\0manxd.network-namespace")) or die $!; listen(S, 0); print "ready\n"; close(STDOUT); sleep 600'`)
	out, err := squatter.StdoutPipe()
	must(t, err)
	must(t, squatter.Start())
	defer func() { _ = squatter.Process.Kill(); _ = squatter.Wait() }()
	if n, err := out.Read(make([]byte, 6)); n == 0 {
		t.Skip("perl cannot bind the name: ", err)
	}
	must(t, h.n.StartManxd(h.args...))
	must(t, h.n.Ready(limit))
	world.Contains(t, "the log", h.n.Log(), "holds the name of this network namespace's lock")
	second := func() string {
		dir := t.TempDir()
		out, err := h.n.Run(filepath.Join(h.Spec.Bin, "manxd"), "--policy=false", "--node-name=n1", "--run-dir="+dir,
			"--data-dir="+dir, "--nodename-file="+dir+"/nodename",
			"--mtu-file="+dir+"/mtu", "--embedded-listen=127.0.0.1:12379", "--gobgp-listen=", "--http-listen=",
			"--endpoint-status-path-prefix=none")
		if world.ExitCode(err) != 1 {
			t.Errorf("the second daemon ended with %v, want exit code 1", err)
		}
		return world.Tail(out, 1)
	}
	world.Contains(t, "the error", second(), fmt.Sprintf("manxd with pid %d already runs in this network namespace",
		h.n.Manxd().PID()))
	_, err = h.n.Run("nft", "list", "table", "inet", "manx")
	must(t, err)
	h.n.Manxd().Kill() // and back at once
	must(t, h.n.StartManxd(h.args...))
	must(t, h.n.Ready(limit))
	world.Contains(t, "the error", second(), fmt.Sprintf("manxd with pid %d already runs in this network namespace",
		h.n.Manxd().PID()))
}
