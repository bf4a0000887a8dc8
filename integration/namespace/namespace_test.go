package namespace_test

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// A namespace has its own loopback interface and sockets, and is removed with its processes.
func TestNamespace(t *testing.T) {
	var name string
	var left <-chan error
	t.Run("its life", func(t *testing.T) {
		name = namespace.New(t, "manxns")
		if names, err := namespace.List("manxns-"); err != nil || !slices.Contains(names, name) {
			t.Errorf("namespaces %v, %v lack %s", names, err, name)
		}
		var here, there net.Listener
		var err error
		if in := namespace.Inside(name, func() { there, err = net.Listen("tcp", "127.0.0.1:179") }); in != nil ||
			err != nil {
			t.Fatal(in, err)
		}
		defer there.Close()
		if here, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		out, err := namespace.Command(name, "ip", "-o", "addr", "show", "up").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "127.0.0.1/8") || strings.Contains(string(out), "eth0") {
			t.Errorf("addresses: %v\n%s", err, out)
		}
		if err := namespace.Batch(name, "link add eth8 type veth peer name eth9", "link set eth8 up",
			"addr add 10.9.9.1/24 dev eth8"); err != nil {
			t.Fatal(err)
		}
		if out := namespace.IP(t, name, "-4 addr show dev eth8"); !strings.Contains(out, "10.9.9.1/24") {
			t.Errorf("eth8 has no address:\n%s", out)
		}
		if err := namespace.Batch(name, "link set nosuch up"); err == nil || !strings.Contains(err.Error(), "nosuch") {
			t.Errorf("the error of ip(8) is %v", err)
		}
		program := namespace.Command(name, "sleep", "infinity")
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- program.Wait() }()
		left = ended
		enters(t, name, program.Process.Pid)
		before, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		var inside string
		if err := namespace.Inside(name, func() { inside, _ = os.Readlink("/proc/thread-self/ns/net") }); err != nil {
			t.Fatal(err)
		}
		if after, _ := os.Readlink("/proc/self/ns/net"); after != before || inside == before || inside == "" {
			t.Errorf("the process is in %s, before in %s; the function was in %s", after, before, inside)
		}
	})
	if left == nil {
		t.Skip("no namespace was made")
	}
	if err := <-left; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the program inside ended with %v", err)
	}
	if names, err := namespace.List(name); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
	if err := namespace.Inside(name, func() { t.Error("called without a namespace") }); !os.IsNotExist(err) {
		t.Errorf("a namespace that is gone: %v", err)
	}
}

// enters waits until a process is in a namespace: one that is on its way there when the namespace goes is left alone.
func enters(t *testing.T, name string, pid int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		pids, err := exec.Command("ip", "netns", "pids", name).Output()
		if slices.Contains(strings.Fields(string(pids)), strconv.Itoa(pid)) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d has not entered %s: %q, %v", pid, name, pids, err)
		}
	}
}

func TestBareHasNoLoopback(t *testing.T) {
	name := namespace.Bare(t, "manxns")
	if out := namespace.IP(t, name, "-o link show up"); out != "" {
		t.Errorf("interfaces that are up:\n%s", out)
	}
}
