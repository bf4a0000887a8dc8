package dataplane

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/model"
)

// A CNI plugin gets the file of a workload only when the workload's route and the policy of this very container are in
// the kernel. A restart keeps the files of the workloads that still exist.
func TestFilesTellWhoIsConnected(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(t.TempDir(), "endpoint-status")
	core, repairs := observer.New(zapcore.WarnLevel)
	told := make(chan map[model.Key]endpointstatus.Status, 100)
	start := func() (*HostAgent, func()) {
		a := New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.New(core),
			EndpointStatusDir: func(string) string { return dir },
			Connected:         func(m map[model.Key]endpointstatus.Status) { told <- m }, WithPolicy: true})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		stop := sync.OnceFunc(func() { cancel(); <-done })
		t.Cleanup(stop)
		return a, stop
	}
	pod := func(revision int64, address string) *model.Object {
		o := endpointObject("node--1-k8s-web-eth0", "node-1", "cali1", address)
		o.Revision = revision
		return o
	}
	const file = "k8s default%2Fweb eth0"
	content := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, file))
		return string(text)
	}
	one, two := `{"ifaceName":"cali1","ipv4Nets":["10.244.1.7/32"]}`,
		`{"ifaceName":"cali1","ipv4Nets":["10.244.1.8/32"]}`
	node := nodeObject("node-1", "10.1.0.5/24", "")
	programmed := func(objects ...*model.Object) endpointstatus.Policy {
		return endpointstatus.Policy{Reader: model.NewSet(objects...), Interfaces: map[string]bool{"cali1": true}}
	}

	a, stop := start()
	a.set(model.NewSet(node, pod(7, "10.244.1.7/32")))
	a.SetPolicy(programmed(pod(7, "10.244.1.7/32")))
	settle(t, a)
	if content() != "" {
		t.Fatal("there is a file before there is an interface")
	}
	if len(told) > 0 {
		t.Errorf("before there is an interface, connected are %v", <-told)
	}
	h.pod("cali1")
	select {
	case statuses := <-told:
		s, connected := statuses[pod(7, "10.244.1.7/32").Key]
		if !connected || !slices.Equal(s.IPv4Nets, []string{"10.244.1.7/32"}) {
			t.Errorf("connected are %v", statuses)
		}
	case <-time.After(time.Minute):
		t.Error("nothing is told about a connected workload")
	}
	waitFor(t, "the file", func() bool { return content() == one })

	a.set(model.NewSet(node, pod(8, "10.244.1.8/32"))) // a new container of the same pod
	waitFor(t, "the file of the old container to go", func() bool { return content() == "" })
	h.eventually("-4", "default via 10.1.0.1 dev eth0", "10.244.1.8 dev cali1 proto 80 scope link metric 1024")
	settle(t, a)
	if content() != "" {
		t.Fatal("there is a file before there is policy")
	}
	a.SetPolicy(programmed(pod(8, "10.244.1.8/32")))
	waitFor(t, "the file of the new container", func() bool { return content() == two })

	stop()
	gone := filepath.Join(dir, "k8s default%2Fgone eth0")
	if err := os.WriteFile(gone, []byte(one), 0o644); err != nil {
		t.Fatal(err)
	}
	a, _ = start()
	before, err := os.Stat(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	a.set(model.NewSet(node, pod(8, "10.244.1.8/32")))
	a.synced(true, true)
	a.SetPolicy(endpointstatus.Policy{}) // is still on its way
	settle(t, a)
	if content() != two {
		t.Fatal("a restart has removed a file that is still true")
	}
	a.SetPolicy(programmed(pod(8, "10.244.1.8/32")))
	waitFor(t, "the file that nobody wants to go", func() bool { _, err := os.Stat(gone); return err != nil })
	if now, err := os.Stat(filepath.Join(dir, file)); err != nil || !os.SameFile(before, now) {
		t.Fatalf("a restart has written a file anew that was true: %v", err)
	}
	if repairs.Len() > 0 {
		t.Errorf("what an earlier run left counts as another program's: %v", repairs.All())
	}
	a.set(model.NewSet(node))
	waitFor(t, "the file to go with the workload", func() bool { return content() == "" })
}

// The folder follows FelixConfiguration: the files move, and none is left in the earlier folder.
func TestFilesFollowFelixConfiguration(t *testing.T) {
	h := newHost(t)
	root := t.TempDir()
	a := New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.NewNop(),
		EndpointStatusDir: func(prefix string) string {
			if prefix == "none" {
				return ""
			}
			return filepath.Join(root, cmp.Or(prefix, "usual"))
		}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer func() { cancel(); <-done }()
	felix := func(name, prefix string) *model.Object {
		f := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
		f.Spec.EndpointStatusPathPrefix = prefix
		return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, name), f)
	}
	node, pod := nodeObject("node-1", "10.1.0.5/24", ""), endpointObject("node--1-k8s-web-eth0", "node-1", "cali1",
		"10.244.1.7/32")
	h.pod("cali1")
	for _, x := range []struct {
		name         string
		cluster, own string
		where        string
	}{
		{"nothing is said", "", "", "usual"},
		{"of the cluster", "cluster", "", "cluster"},
		{"of the node", "cluster", "own", "own"},
		{"of another node", "cluster", "", "cluster"},
		{"nowhere", "none", "", ""},
		{"somewhere again", "", "own", "own"},
	} {
		set := model.NewSet(node, pod, felix("default", x.cluster), felix("node.node-1", x.own),
			felix("node.node-2", "other"))
		a.set(set)
		a.synced(true, true)
		waitFor(t, x.name, func() bool {
			files, _ := filepath.Glob(filepath.Join(root, "*", "*"))
			if x.where == "" {
				return len(files) == 0
			}
			return len(files) == 1 && files[0] == filepath.Join(root, x.where, "k8s default%2Fweb eth0")
		})
	}
	cancel()
}

// A waiter for the policy of a workload waits for exactly that version of the workload. The clocks of other kinds do
// not matter: a greater number of theirs neither suffices nor is required. A reached state stays reached while policy
// is ahead.
func TestFilesWaitForTheVersionOfTheWorkload(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "endpoint-status")
	w.agent = newHostAgent(Config{Kernel: w.fake, NodeName: "node-1", Logger: zap.NewNop(), WithPolicy: true,
		EndpointStatusDir: func(string) string { return dir }}, func() time.Time { return w.clock })
	w.agent.loop.Background = func(f func()) { f() }
	w.fake.PutLink(kernel.Link{Index: podLink, Name: "cali1", MTU: 1500, Up: true, Running: true})
	node := nodeObject("node-1", "10.1.0.5/24", "")
	pod := func(version int64) *model.Object {
		o := endpointObject("node--1-k8s-web-eth0", "node-1", "cali1", "10.244.1.7/32")
		o.Revision = version
		return o
	}
	// A datastore's state has the clock of the kind that changed last, which is behind, or ahead of, the workload's.
	at := func(clock int64, objects ...*model.Object) model.Reader {
		return revised{model.NewSet(objects...), clock}
	}
	step := func(what string, want bool) {
		t.Helper()
		w.agent.step()
		_, err := os.Stat(filepath.Join(dir, "k8s default%2Fweb eth0"))
		if (err == nil) != want {
			t.Errorf("%s: the file is there: %v", what, err == nil)
		}
	}
	programmed := func(r model.Reader) {
		w.agent.SetPolicy(endpointstatus.Policy{Reader: r, Interfaces: map[string]bool{"cali1": true}})
	}
	w.agent.set(at(3, node, pod(100)))
	step("no policy", false)
	programmed(at(9999, node, pod(90)))
	step("policy of the container before, at a later time of another clock", false)
	programmed(at(9999, node))
	step("policy without the workload", false)
	programmed(at(3, node, pod(100)))
	step("policy of this version, at an early time of another clock", true)
	programmed(at(4, node, pod(101)))
	step("policy is ahead", true)
	w.agent.set(at(4, node, pod(101)))
	step("the next version, which policy has", true)
	w.agent.set(at(5, node, pod(50)))
	step("another container, which policy has not", false)
	programmed(at(5, node, pod(50)))
	step("policy of that", true)
}
