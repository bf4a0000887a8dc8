package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// TestMain lets the test binary be the plugin: the tests install it under the plugins' names.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "manx", "manx-ipam", "calico", "calico-ipam":
		main()
		os.Exit(0)
	}
	os.Exit(runWithCnitool(m))
}

// cnitool is the stock program of the CNI project, at the version in go.mod, or the error of its build.
var cnitool struct {
	path string
	err  error
}

func runWithCnitool(m *testing.M) int {
	dir, err := os.MkdirTemp("", "manx-cni")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	cnitool.path = filepath.Join(dir, "cnitool")
	if out, err := exec.Command("go", "build", "-o", cnitool.path,
		"github.com/containernetworking/cni/cnitool").CombinedOutput(); err != nil {
		cnitool.err = fmt.Errorf("%w: %s", err, out)
	}
	return m.Run()
}

// host is a node of a cluster with an etcd server: a network namespace with the plugins installed.
type host struct {
	whole *testing.T // the end of this test removes everything
	t     *testing.T // the subtest
	etcd  *etcdtest.Server
	store datastore.Backend
	name  string // of the namespace, and prefix of the pods'
	dir   string
	conf  map[string]any // network configuration
	pods  []*pod
}

const network = "net1"

func newHost(t *testing.T) *host {
	t.Helper()
	namespace.Require(t, "nsenter", "ping")
	if cnitool.err != nil {
		t.Skipf("cnitool cannot be built: %v", cnitool.err)
	}
	h := &host{whole: t, t: t, etcd: etcdtest.Start(t), dir: t.TempDir()}
	h.store = h.etcd.Store(t)
	h.name = h.netns(fmt.Sprintf("mxcni%d-%s", os.Getpid(), unique()))
	h.ip("netns", "exec", h.name, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1") // the agent's part
	h.conf = map[string]any{
		"cniVersion": "1.0.0", "name": network, "type": "calico",
		"etcd_endpoints":      "http://" + h.forwardEtcd(),
		"nodename_file":       filepath.Join(h.dir, "nodename"),
		"ipam_lock_file":      filepath.Join(h.dir, "ipam.lock"),
		"endpoint_status_dir": filepath.Join(h.dir, "endpoint-status"),
		"manxd_socket":        filepath.Join(h.dir, "manxd.sock"),
		"mtu":                 1440,
		"ipam":                map[string]any{"type": "calico-ipam"},
	}
	h.write("nodename", "node-1")
	h.write("bin/.keep", "")
	self, err := os.Executable()
	h.must(err)
	for _, name := range []string{"manx", "manx-ipam", "calico", "calico-ipam"} {
		h.must(os.Symlink(self, filepath.Join(h.dir, "bin", name)))
	}
	h.populate()
	return h
}

var sequence = struct {
	sync.Mutex
	n int
}{}

func unique() string {
	sequence.Lock()
	defer sequence.Unlock()
	sequence.n++
	return fmt.Sprint(sequence.n)
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) write(name, content string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	h.must(os.MkdirAll(filepath.Dir(path), 0o755))
	h.must(os.WriteFile(path, []byte(content), 0o644))
}

func (h *host) ip(args ...string) string {
	h.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (h *host) netns(name string) string {
	h.t.Helper()
	h.must(namespace.Add(name))
	h.whole.Cleanup(func() { _ = namespace.Remove(name) }) // the plugin's tests may have removed it
	return name
}

// inNamespace runs fn on a thread in the host's namespace.
func (h *host) inNamespace(fn func() error) (err error) {
	if in := namespace.Inside(h.name, func() { err = fn() }); in != nil {
		return in
	}
	return err
}

// forwardEtcd makes the server reachable inside the host's namespace, at the address that it returns.
func (h *host) forwardEtcd() string {
	h.t.Helper()
	var l net.Listener
	h.must(h.inNamespace(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
	h.whole.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forward(c, strings.TrimPrefix(h.etcd.Endpoint, "http://"))
		}
	}()
	return l.Addr().String()
}

func forward(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { _, _ = io.Copy(s, c); s.Close(); c.Close() }()
	_, _ = io.Copy(c, s)
}

func (h *host) create(key model.Key, value any) {
	h.t.Helper()
	_, err := h.store.Create(context.Background(), model.NewObject(key, value))
	h.must(err)
}

// populate writes the objects that the agent of a node and an administrator write.
func (h *host) populate() {
	h.t.Helper()
	ready := true
	info := &v3.ClusterInformation{}
	info.Name, info.Spec.DatastoreReady = "default", &ready
	h.create(model.ResourceKey(model.KindClusterInformation, "default"), info)
	for name, p := range map[string]model.IPPoolSpec{
		"pool4":  {CIDR: "10.65.0.0/24", BlockSize: 26},
		"other4": {CIDR: "10.66.0.0/24", BlockSize: 26, NodeSelector: "!all()"},
		"pool6":  {CIDR: "fd65::/112", BlockSize: 122},
	} {
		pool := &model.IPPool{Spec: p}
		pool.Name = name
		h.create(model.ResourceKey(model.KindIPPool, name), pool)
	}
	node := &model.Node{}
	node.Name = "node-1"
	h.create(model.ResourceKey(model.KindNode, "node-1"), node)
}
