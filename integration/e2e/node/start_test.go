package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/namespace"
)

// testTwin starts a second daemon on the host of a node, with other folders and settings, as another node and as the
// same node. It is refused with the process ID of the first daemon, and changes nothing.
func (c *cluster) testTwin(t *testing.T) {
	n := c.N2
	own := func(name string, more ...string) []string {
		dir := filepath.Join(t.TempDir(), name)
		return append([]string{"--node-name=" + name, "--run-dir=" + dir, "--data-dir=" + dir,
			"--nodename-file=" + dir + "/nodename", "--mtu-file=" + dir + "/mtu",
			"--endpoint-status-path-prefix=" + dir, "--gobgp-listen=", "--http-listen=", "--no-default-pools"}, more...)
	}
	table := func() string {
		out, err := n.Run("sh", "-c", "nft list table inet manx | grep -c chain; ip route show proto 12; ip route "+
			"show proto 80; ip -6 route show proto 80")
		must(t, err)
		return out
	}
	// A container with the host's network has other processes and another /run.
	container := []string{"--mount", "--pid", "--fork", "--mount-proc", "sh", "-c",
		`mount -t tmpfs tmpfs /run && exec "$0" "$@"`, filepath.Join(c.Spec.Bin, "manxd")}
	before := table()
	for _, x := range []struct {
		name string
		args []string
	}{
		{"the same node, without policy", own("n2", "--policy=false", "--etcd-endpoints="+c.N1.EtcdSocket())},
		{"another node", own("twin", "--etcd-endpoints="+c.N1.EtcdSocket(), "--ip=autodetect",
			"--ip-autodetection-method=interface=eth0")},
		{"its own datastore", own("alone", "--datastore=embedded", "--policy=false")},
		{"the same run folder", own("n2", "--run-dir="+filepath.Dir(n.Socket()),
			"--etcd-endpoints="+c.N1.EtcdSocket())},
		{"a datastore that is away", own("away", "--etcd-endpoints=http://127.0.0.1:1", "--wait-for-datastore")},
		{"cleanup", append([]string{"cleanup"}, own("n2")...)},
	} {
		out, err := n.Run(filepath.Join(c.Spec.Bin, "manxd"), x.args...)
		if world.ExitCode(err) != 1 {
			t.Errorf("%s: ended with %v, want exit code 1", x.name, err)
		}
		world.Contains(t, x.name, world.Tail(out, 1), "another manxd is running",
			fmt.Sprintf("manxd with pid %d already runs in this network namespace", n.Manxd().PID()))
		t.Log(world.Tail(out, 1))
		out, err = n.Run("unshare", append(slices.Clone(container), x.args...)...)
		if world.ExitCode(err) != 1 || !strings.Contains(world.Tail(out, 1),
			"already runs in this network namespace, in "+
				"a container") {
			t.Errorf("%s, in a container: ended with %v, and prints %s", x.name, err, world.Tail(out, 1))
		}
	}
	if after := table(); after != before {
		t.Errorf("the table and routes of the first daemon are\n%s\nbefore\n%s", after, before)
	}
	if found := c.Raw(t, world.ResourceKeys+"nodes/"); len(found) != len(c.Nodes) {
		t.Errorf("a refused daemon left something: %d nodes, want %d", len(found), len(c.Nodes))
	}
	c.Settled(t)
}

// TestRefusesToStart starts manxd with settings that can never work: the exit code of a wrong setting is 2, of other
// errors 1.
func TestRefusesToStart(t *testing.T) {
	bin := world.Binaries(t)
	ns := namespace.New(t, "refused") // daemons in one network namespace refuse each other
	const taken = "127.0.0.1:2379"
	world.ListenTCP(t, ns, 2379, func(c net.Conn) { _ = c.Close() })
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, x := range []struct {
		name  string
		args  []string
		env   string
		code  int
		texts []string
	}{
		{"no such flag", []string{"--nonsense"}, "", 2, []string{"--nonsense"}},
		{"an argument", []string{"start"}, "", 2, []string{"start"}},
		{"not a number", []string{"--ipv4pool-block-size=x"}, "", 2, []string{"ipv4pool-block-size", `"x"`}},
		{"no such datastore", []string{"--datastore=consul"}, "", 2,
			[]string{"--datastore=consul", "etcdv3, kubernetes or embedded"}},
		{"kubernetes as datastore", []string{"--datastore=kubernetes"}, "", 2,
			[]string{"KUBECONFIG", "K8S_API_ENDPOINT"}},
		{"no endpoints", []string{"--datastore=etcdv3"}, "", 2, []string{"--etcd-endpoints"}},
		{"endpoints for the embedded one", []string{"--datastore=embedded", "--etcd-endpoints=http://127.0.0.1:1"}, "",
			2, []string{"either is enough"}},
		{"gobgp for the world", []string{"--gobgp-listen=0.0.0.0:50051"}, "", 2, []string{"0.0.0.0:50051", "loopback"}},
		{"gobgp for a name", []string{"--gobgp-allow-uids=0,frr"}, "", 2,
			[]string{"--gobgp-allow-uids", `"frr"`, "user ID"}},
		{"no port", []string{"--http-listen=127.0.0.1"}, "", 2, []string{"--http-listen=127.0.0.1", "ADDRESS:PORT"}},
		{"wrong environment", nil, "WAIT_FOR_DATASTORE=perhaps", 2, []string{"WAIT_FOR_DATASTORE", "perhaps"}},
		{"a wrong AS number", nil, "AS=abc", 2, []string{"AS", "abc"}},
		{"a wrong address", nil, "IP=300.1.1.1", 2, []string{"IP", "300.1.1.1"}},
		{"a wrong method, however long the datastore is away",
			[]string{"--wait-for-datastore", "--etcd-endpoints=http://127.0.0.1:1"}, "IP_AUTODETECTION_METHOD=foo", 2,
			[]string{"IP_AUTODETECTION_METHOD", "foo"}},
		{"no such log level", []string{"--log-level=loud"}, "", 2,
			[]string{"--log-level=loud", "debug, info, warn or error"}},
		{"nobody at the endpoint", []string{"--etcd-endpoints=http://127.0.0.1:1"}, "", 1,
			[]string{"127.0.0.1:1", "refused"}},
		{"the scheme of an endpoint", []string{"--etcd-endpoints=ftp://127.0.0.1:2379"}, "", 1,
			[]string{"ftp", "http or https"}},
		{"a certificate that is not there", []string{"--etcd-endpoints=https://127.0.0.1:1",
			"--etcd-ca-cert-file=/nowhere/ca.pem"}, "", 1, []string{"/nowhere/ca.pem"}},
		{"open to the world, clients not verified",
			[]string{"--embedded-listen=0.0.0.0:0", "--embedded-cert-file=/c", "--embedded-key-file=/k"}, "", 1,
			[]string{"--embedded-insecure"}},
		{"open to whom", []string{"--embedded-insecure"}, "", 1, []string{"--embedded-listen=ADDRESS:PORT"}},
		{"the port of the datastore is taken", []string{"--embedded-listen=" + taken}, "", 1,
			[]string{taken, "in use"}},
		{"a file instead of the data folder", []string{"--data-dir=" + file}, "", 1, []string{file}},
		{"a file instead of the run folder", []string{"--run-dir=" + file}, "", 1, []string{file, "control socket"}},
		{"a bad node name", []string{"--node-name=Not_A_Name!"}, "", 2, []string{"NODENAME", "Not_A_Name!"}},
	} {
		t.Run(x.name, func(t *testing.T) { // one after the other
			dir := t.TempDir()
			args := append([]string{"--run-dir=" + dir, "--data-dir=" + dir, "--nodename-file=" + dir + "/nodename",
				"--mtu-file=" + dir + "/mtu",
				"--gobgp-listen=", "--http-listen=", "--node-name=refused"}, x.args...)
			cmd := namespace.Command(ns, filepath.Join(bin, "manxd"), args...)
			cmd.Env = []string{x.env, "PATH=" + os.Getenv("PATH")}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			must(t, cmd.Start())
			timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
			err := cmd.Wait()
			timer.Stop()
			if world.ExitCode(err) != x.code {
				t.Errorf("ended with %v, want exit code %d", err, x.code)
			}
			// It is a line of the log, like those before it.
			var last struct{ Level, Msg, Error string }
			line := world.Tail(stderr.String(), 1)
			if err := json.Unmarshal([]byte(line), &last); err != nil ||
				last.Level != "error" || last.Msg != "manxd ends" {
				t.Errorf("the last line is %q: %v", line, err)
			}
			world.Contains(t, "the last line", last.Error, x.texts...)
			if strings.Contains(stderr.String(), "panic") {
				t.Error(stderr.String())
			}
			t.Log(last.Error)
		})
	}
}
