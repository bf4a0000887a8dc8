package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/lab"
)

// TestVMClockSteps sets the clock a day ahead and two days back under a running node. It runs in the virtual machine
// only, because the clock is the whole machine's.
func TestVMClockSteps(t *testing.T) {
	if os.Getenv("MANX_VM") == "" {
		t.Skip("it changes the machine's clock; `make test-vm` runs it in a virtual machine")
	}
	l, err := lab.New(lab.Spec{Name: "clock", Bin: os.Getenv("MANX_BIN"),
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes {
				t.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	n1, n2 := l.Nodes[0], l.Nodes[1]
	if err := n1.StartManxd(append(n1.EmbedDatastore(), "--ipv4pool-cidr=10.244.0.0/16")...); err != nil {
		t.Fatal(err)
	}
	if err := n1.Ready(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := n2.StartManxd(append(lab.UseDatastore(n1), "--ipv4pool-cidr=10.244.0.0/16")...); err != nil {
		t.Fatal(err)
	}
	if err := n2.Ready(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	pod1, err := n1.AddPod("before")
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []time.Duration{24 * time.Hour, -48 * time.Hour} {
		setClock(t, time.Now().Add(step))
		pod2, err := n2.AddPod(fmt.Sprintf("after%d", i))
		if err != nil {
			t.Fatalf("after a step of %s: %v", step, err)
		}
		if err := lab.Eventually(30*time.Second,
			func() error { return lab.Ping(pod1.Namespace, pod2.IP4()) }); err != nil {
			t.Errorf("after a step of %s: %v", step, err)
		}
	}
	for _, n := range l.Nodes {
		if count := strings.Count(n.Log(), `"phase": "Established"`); count != 1 {
			t.Errorf("%s: the session was established %d times, want once", n.Name, count)
		}
		if _, err := os.Stat(filepath.Join("/proc", fmt.Sprint(n.Manxd().PID()))); err != nil {
			t.Errorf("%s: manxd is gone: %v", n.Name, err)
		}
	}
}

func setClock(t *testing.T, to time.Time) {
	t.Helper()
	tv := unix.NsecToTimeval(to.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		t.Fatal(err)
	}
}
