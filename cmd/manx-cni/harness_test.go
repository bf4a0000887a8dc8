package main

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/vishvananda/netns"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
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

// cnitool is the stock program of the CNI project, at the version that go.mod names, or why it cannot be had.
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
	if out, err := exec.Command("go", "build", "-o", cnitool.path, "github.com/containernetworking/cni/cnitool").CombinedOutput(); err != nil {
		cnitool.err = fmt.Errorf("%w: %s", err, out)
	}
	return m.Run()
}

// host is a node of a cluster with an etcd server: a network namespace with the plugins installed.
type host struct {
	whole *testing.T // everything lives as long as this
	t     *testing.T // the subtest
	etcd  *etcdtest.Server
	store datastore.Store
	name  string // of the namespace, and prefix of the pods'
	dir   string
	conf  map[string]any // network configuration
	pods  []*pod
}

const network = "net1"

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, program := range []string{"ip", "nsenter", "ping"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	if cnitool.err != nil {
		t.Skipf("cnitool cannot be built: %v", cnitool.err)
	}
	h := &host{whole: t, t: t, etcd: etcdtest.Start(t), dir: t.TempDir()}
	h.store = h.etcd.Store(t)
	h.name = h.netns(fmt.Sprintf("mxcni%d-%s", os.Getpid(), unique()))
	h.ip("netns", "exec", h.name, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1") // the agent's part
	h.conf = map[string]any{
		"cniVersion": "1.0.0", "name": network, "type": "calico",
		"etcd_endpoints": "http://" + h.forwardEtcd(),
		"nodename_file":  filepath.Join(h.dir, "nodename"),
		"ipam_lock_file": filepath.Join(h.dir, "ipam.lock"),
		"mtu":            1440,
		"ipam":           map[string]any{"type": "calico-ipam"},
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
	h.ip("netns", "add", name)
	h.whole.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	h.ip("-n", name, "link", "set", "lo", "up")
	return name
}

// inside runs fn on a thread in the host's namespace.
func (h *host) inside(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := netns.GetFromName(h.name)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err == nil {
			err = fn()
		}
		result <- err
	}()
	return <-result
}

// forwardEtcd makes the server reachable inside the host's namespace, at the address that it returns.
func (h *host) forwardEtcd() string {
	h.t.Helper()
	var l net.Listener
	h.must(h.inside(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
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

// populate writes what the agent of a node and an administrator would have written.
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

// pod is a container: a network namespace and what the runtime knows of it.
type pod struct {
	*host
	ns     string
	id     string // as cnitool names the container of this namespace
	args   string // CNI_ARGS
	result *current.Result
}

func (h *host) pod(args string) *pod {
	h.t.Helper()
	p := &pod{host: h, args: args}
	for clash := true; clash; {
		p.ns = fmt.Sprintf("%s-p%s", h.name, unique())
		sum := sha512.Sum512([]byte(p.path()))
		p.id = fmt.Sprintf("cnitool-%x", sum[:10])
		clash = slices.ContainsFunc(h.pods, func(o *pod) bool { return o.id[:11] == p.id[:11] })
	}
	h.pods = append(h.pods, p)
	h.netns(p.ns)
	h.whole.Cleanup(func() { os.Remove("/var/lib/cni/results/" + network + "-" + p.id + "-eth0") }) // cnitool's
	return p
}

func (p *pod) path() string { return "/run/netns/" + p.ns }

// tool runs cnitool in the host's namespace.
func (p *pod) tool(verb string) (string, error) {
	p.t.Helper()
	conf, err := json.Marshal(map[string]any{"cniVersion": p.conf["cniVersion"], "name": network, "plugins": []any{p.conf}})
	p.must(err)
	p.write("net.d/10-manx.conflist", string(conf))
	cmd := exec.Command("nsenter", "--net=/run/netns/"+p.name, cnitool.path, verb, network, p.path())
	cmd.Env = append(os.Environ(), "NETCONFPATH="+filepath.Join(p.dir, "net.d"), "CNI_PATH="+filepath.Join(p.dir, "bin"), "CNI_ARGS="+p.args)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("cnitool %s: %w: %s%s", verb, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String(), nil
}

func (p *pod) add() error {
	p.t.Helper()
	out, err := p.tool("add")
	if err != nil {
		return err
	}
	p.result = &current.Result{}
	return json.Unmarshal([]byte(out), p.result)
}

func (p *pod) mustAdd() *pod { p.t.Helper(); p.must(p.add()); return p }
func (p *pod) check() error  { p.t.Helper(); _, err := p.tool("check"); return err }
func (p *pod) del() error    { p.t.Helper(); _, err := p.tool("del"); return err }

func (p *pod) addrs() []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range p.result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, a.Unmap())
	}
	return addrs
}

func (p *pod) ping(to string) error {
	out, err := exec.Command("ip", "netns", "exec", p.ns, "ping", "-c1", "-W5", to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ping %s: %w: %s", to, err, out)
	}
	return nil
}

// endpoint is the stored WorkloadEndpoint of that name, nil if there is none.
func (h *host) endpoint(namespace, name string) *model.WorkloadEndpoint {
	h.t.Helper()
	o, err := h.store.Get(context.Background(), model.Key{Kind: model.KindWorkloadEndpoint, Namespace: namespace, Name: name})
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	h.must(err)
	return o.Value.(*model.WorkloadEndpoint)
}

// leftovers lists all that attached containers leave on the host and in the datastore: interfaces, routes, endpoints,
// handles and assigned addresses.
func (h *host) leftovers() string {
	h.t.Helper()
	var lines []string
	for _, ns := range append([]string{h.name}, h.podNamespaces()...) {
		for line := range strings.Lines(h.ip("-n", ns, "-br", "link")) {
			if name := strings.Fields(line)[0]; name != "lo" {
				lines = append(lines, ns+": "+name+"\n")
			}
		}
	}
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(h.ip("-n", h.name, family, "route")) {
			if strings.Contains(line, "cali") && !strings.HasPrefix(line, "fe80::") {
				lines = append(lines, line)
			}
		}
	}
	for _, kind := range []model.Kind{model.KindWorkloadEndpoint, model.KindIPAMHandle, model.KindIPAMBlock} {
		objects, _, err := h.store.List(context.Background(), kind, "")
		h.must(err)
		for _, o := range objects {
			if b, ok := o.Value.(*model.Block); ok {
				for _, a := range b.Attributes {
					lines = append(lines, fmt.Sprintf("%s has an address of %s\n", o.Key, *a.HandleID))
				}
				continue
			}
			lines = append(lines, o.Key.String()+"\n")
		}
	}
	return strings.Join(lines, "")
}

func (h *host) podNamespaces() []string {
	var names []string
	for _, p := range h.pods {
		names = append(names, p.ns)
	}
	return names
}
