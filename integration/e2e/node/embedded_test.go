package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// strangerEnv has the path of the data directory that TestStranger tries to access.
const strangerEnv = "MANX_E2E_STRANGER"

// TestStranger is an unprivileged user of a node, in another process: it prints its successful accesses to the
// datastore.
func TestStranger(t *testing.T) {
	dir := os.Getenv(strangerEnv)
	if dir == "" {
		t.Skip("TestEmbeddedDatastoreIsForRootAlone runs this")
	}
	for _, endpoint := range []string{"http://127.0.0.1:2379", "unix://" + filepath.Join(dir, "etcd.sock")} {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
		must(t, err)
		for _, x := range []struct {
			name string
			try  func(context.Context) error
		}{
			{"read", func(ctx context.Context) error {
				_, err := client.Get(ctx, "/calico/", clientv3.WithPrefix())
				return err
			}},
			{"write", func(ctx context.Context) error {
				_, err := client.Put(ctx, world.ResourceKeys+"bgppeers/evil", "{}")
				return err
			}},
			{"take a snapshot", func(ctx context.Context) error {
				r, err := client.Snapshot(ctx)
				if err == nil {
					_, err = r.Read(make([]byte, 1))
				}
				return err
			}},
			{"add a user", func(ctx context.Context) error {
				_, err := client.UserAdd(ctx, "root", "mine")
				return err
			}},
			{"make it root", func(ctx context.Context) error {
				_, err := client.UserGrantRole(ctx, "root", "root")
				return err
			}},
			{"switch authentication on", func(ctx context.Context) error {
				_, err := client.AuthEnable(ctx)
				return err
			}},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			err := x.try(ctx)
			cancel()
			if err != nil && x.name == "read" {
				break // no answer
			}
			if err == nil {
				fmt.Printf("COULD %s over %s\n", x.name, endpoint)
			}
		}
	}
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if f, openErr := os.Open(path); err == nil && openErr == nil && path != dir && !d.IsDir() {
			fmt.Printf("COULD read %s\n", path)
			_ = f.Close()
		}
		return nil
	}))
	fmt.Println("TRIED")
}

// asNobody runs TestStranger on the node as an unprivileged user, and returns its successful accesses.
func asNobody(t *testing.T, l *lab.Lab, n *lab.Node, dataDir string) (could []string) {
	t.Helper()
	self := filepath.Join(l.Dir, "stranger")
	in, err := os.Open(os.Args[0])
	must(t, err)
	defer in.Close()
	copied, err := os.OpenFile(self, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	must(t, err)
	_, err = io.Copy(copied, in)
	must(t, err)
	must(t, copied.Close())
	cmd := namespace.Command(n.Namespace, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", self,
		"-test.run=^TestStranger$", "-test.v")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), strangerEnv+"="+dataDir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "TRIED") {
		t.Fatalf("the stranger: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "COULD ") {
			could = append(could, strings.TrimSpace(line))
		}
	}
	return could
}

// manxd without any setting of the datastore: the datastore does not listen on TCP, no other user can access it, and
// manxctl and the CNI plugin find it without settings.
func TestEmbeddedDatastoreIsForRootAlone(t *testing.T) {
	for _, program := range []string{"setpriv", "ss"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	l := world.NewLab(t, lab.Spec{Name: world.LabName("r"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	n := l.Nodes[0]
	dataDir := filepath.Join(n.Dir, "data")
	must(t, n.StartManxd("--ipv4pool-cidr=10.244.0.0/16"))
	must(t, n.Ready(limit))
	if could := asNobody(t, l, n, dataDir); len(could) > 0 {
		t.Errorf("an unprivileged user\n%s", strings.Join(could, "\n"))
	}
	out, err := n.Run("ss", "-Hltn")
	must(t, err)
	for line := range strings.Lines(out) {
		if at := strings.Fields(line)[3]; strings.HasSuffix(at, ":2379") || strings.HasSuffix(at, ":2380") {
			t.Errorf("something listens on %s", at)
		}
	}
	out, err = n.Manxctl("get", "nodes", "-o", "name")
	must(t, err)
	world.Contains(t, "manxctl without settings", out, "n1")
	pod, err := n.AddPod("pod")
	must(t, err)
	must(t, pod.Delete())

	n.Manxd().Kill()
	must(t, n.StartManxd())
	must(t, n.Ready(limit))
}

// The files and output of 'manxd client-certificate' let another host use the datastore; without them no host can
// connect over TCP.
func TestEmbeddedDatastoreForOtherHosts(t *testing.T) {
	l := world.NewLab(t, lab.Spec{Name: world.LabName("o"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"},
		{Name: "n2"}}})
	n1, n2 := l.Node("n1"), l.Node("n2")
	manxd, manxctl := filepath.Join(l.Spec.Bin, "manxd"), filepath.Join(l.Spec.Bin, "manxctl")
	dataDir, listen := filepath.Join(n1.Dir, "data"), n1.IP4.String()+":2379"
	folder := filepath.Join(l.Dir, "bundle")
	_, err := n1.Run(manxd, "client-certificate", "n2", folder, "--data-dir="+dataDir)
	if err == nil || !strings.Contains(err.Error(), "there is no certificate authority") ||
		!strings.Contains(err.Error(), "--embedded-listen") {
		t.Errorf("before the first start: %v", err)
	}
	must(t, n1.StartManxd(append(n1.EmbedDatastore(), "--no-default-pools")...))
	must(t, n1.Ready(limit))
	out, err := n1.Run(manxd, "client-certificate", "n2", folder, "--data-dir="+dataDir, "--embedded-listen="+listen)
	must(t, err)
	var settings []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "ETCD_") {
			settings = append(settings, strings.TrimSpace(strings.Replace(line, "/etc/manx/etcd", folder, 1)))
		}
	}
	get := func(settings ...string) (string, error) {
		cmd := namespace.Command(n2.Namespace, manxctl, "get", "nodes", "-o", "name")
		cmd.Env = append(os.Environ(), settings...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := get(settings...); err != nil || !strings.Contains(out, "n1") {
		t.Errorf("with the printed settings: %v\n%s", err, out)
	}
	if out, err := get("ETCD_ENDPOINTS=https://"+listen,
		"ETCD_CA_CERT_FILE="+filepath.Join(folder, "ca.crt")); err == nil ||
		!strings.Contains(out, "wants a client certificate") {
		t.Errorf("without a certificate: %v\n%s", err, out)
	}
	if _, err = n1.Run(manxd, "client-certificate", "n2", folder, "--data-dir="+dataDir); err == nil ||
		!strings.Contains(err.Error(), "exists") {
		t.Errorf("into a folder that is there: %v", err)
	}
	// The programs of n2 need no settings once its manxd has them.
	must(t, n2.StartManxd(append(lab.UseDatastore(n1), "--no-default-pools")...))
	must(t, n2.Ready(limit))
	out, err = n2.Manxctl("get", "nodes", "-o", "name")
	must(t, err)
	world.Contains(t, "manxctl on n2", out, "n1", "n2")
}
