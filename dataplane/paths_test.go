package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/pathmtu"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/integration/namespace"
)

// distance is how far a host of this kernel is: the answers of others.
type distance struct {
	to    netip.Addr
	paths func(netip.Addr) int
}

func (d distance) Probe(_ context.Context, size int, _ time.Duration) (bool, error) {
	return size <= d.paths(d.to), nil
}
func (distance) Close() error { return nil }

// Routes to the pods of a node with a smaller path have its MTU, those of an overlay less the headers, and lose it when
// the path has grown. No other route changes.
func TestRoutesHaveTheMTUOfThePath(t *testing.T) {
	h := newVXLANHost(t)
	size := make(chan int, 1)
	size <- 1400
	path := func(a netip.Addr) int {
		if a != netip.MustParseAddr("10.1.0.6") {
			return 1500
		}
		n := <-size
		size <- n
		return n
	}
	h.agent = New(Config{Kernel: KernelOf(h.open()), NodeName: "node-1", Logger: zap.NewNop(),
		Probe: func(_, to netip.Addr, _ uint32) (pathmtu.Prober, error) { return distance{to, path}, nil }})
	start(t, h.agent)
	set := vxlanCluster(4096)
	plain := poolObject("plain", "10.244.0.0/16", "Never")
	set[plain.Key] = plain
	h.agent.set(set)
	h.agent.Place([]route.Place{{Prefix: netip.MustParsePrefix("10.245.2.0/26"), Node: "node-2"},
		{Prefix: netip.MustParsePrefix("10.245.3.0/26"), Node: "node-3"}}, true)
	h.agent.Learn([]locrib.Route{learned("10.244.2.0/26", 0, "10.1.0.6"), learned("10.244.3.0/26", 0, "10.1.0.7")})
	h.agent.synced(true, true)
	const (
		vxlan2         = "10.245.2.0/26 via 10.245.2.1 dev vxlan.calico"
		vxlan3         = "10.245.3.0/26 via 10.245.3.1 dev vxlan.calico"
		plain2, plain3 = "10.244.2.0/26 via 10.1.0.6 dev eth0", "10.244.3.0/26 via 10.1.0.7 dev eth0"
	)
	want := func(when string, mtus map[string]string) {
		t.Helper()
		var text string
		ok := func() bool {
			text = h.ip("route")
			for line := range strings.Lines(text) {
				for route, mtu := range mtus {
					if strings.HasPrefix(line, route) && (mtu == "" && strings.Contains(line, " mtu ") ||
						mtu != "" && !strings.Contains(line, " mtu "+mtu+" ")) {
						return false
					}
				}
			}
			for route := range mtus {
				if !strings.Contains(text, route) {
					return false
				}
			}
			return true
		}
		for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: want %v in\n%s", when, mtus, text)
			}
		}
	}
	want("a smaller path", map[string]string{vxlan2: "1350", vxlan3: "", plain2: "1400", plain3: ""})
	if list := h.agent.Status().Notices; !slices.ContainsFunc(list, func(n Notice) bool {
		return n.Subject == "path to node node-2 (10.1.0.6)" && strings.HasSuffix(n.Text, "or set vxlanMTU to 1350")
	}) {
		t.Errorf("notices: %+v", list)
	}
	<-size
	size <- 1500
	if _, err := h.agent.Retry(t.Context()); err != nil {
		t.Error(err)
	}
	want("it has grown", map[string]string{vxlan2: "", vxlan3: "", plain2: "", plain3: ""})
	if list := h.agent.Status().Notices; len(list) > 0 {
		t.Errorf("notices: %+v", list)
	}
}

// Where the kernel's default permits no echo sockets, this process's group alone may open them afterwards. What an
// administrator has set stays, and the error names it. The end of Manx on the host undoes it.
func TestEchoIsPermitted(t *testing.T) {
	for _, c := range []struct{ before, after, left, err string }{
		{"1\t0", fmt.Sprintf("%d\t%[1]d", os.Getegid()), "1\t0", ""},
		{"0\t2147483647", "0\t2147483647", "0\t2147483647", ""},
		{"70000\t70001", "70000\t70001", "70000\t70001", "what gets to the other nodes cannot be measured: the group " +
			"0 of manxd is not in the range of the sysctl net.ipv4.ping_group_range"},
	} {
		ns := namespace.New(t, "manxagent")
		run(t, "ip", "-n", ns, "link", "set", "lo", "up")
		k, err := kernel.Open("/run/netns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.Close() })
		if err := k.SetSysctl(pingGroupRange, c.before); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			fd, err := netns.GetFromName(ns)
			if err == nil {
				err = netns.Set(fd)
			}
			if err == nil {
				lo := netip.MustParseAddr("127.0.0.1")
				var p pathmtu.Prober
				if p, err = EchoOf(k)(lo, lo, 0); err == nil {
					err = p.Close()
				}
			}
			done <- err
		}()
		got := ""
		if err := <-done; err != nil {
			got = err.Error()
		}
		after, err := k.Sysctl(pingGroupRange)
		if after != c.after || got != c.err || err != nil {
			t.Errorf("%q: %q %q %v, want %q %q", c.before, after, got, err, c.after, c.err)
		}
		if _, err := Cleanup(KernelOf(k)); err != nil {
			t.Errorf("%q: %v", c.before, err)
		}
		if left, err := k.Sysctl(pingGroupRange); left != c.left || err != nil {
			t.Errorf("%q: %q %v is left, want %q", c.before, left, err, c.left)
		}
	}
	readOnly := kerneltest.New()
	own := fmt.Sprintf("%d\t%[1]d", os.Getegid())
	readOnly.PutSysctl(pingGroupRange, own)
	readOnly.Fail("SetSysctl", 1, &kernel.ReadOnlyError{Dir: kernel.DefaultProcSysNet})
	if _, err := Cleanup(readOnly); err != nil {
		t.Errorf("a container without the folder: %v", err)
	}
	if have, err := readOnly.Sysctl(pingGroupRange); have != own || err != nil || readOnly.Calls("SetSysctl") != 1 {
		t.Errorf("%q %v after %d calls", have, err, readOnly.Calls("SetSysctl"))
	}
	refused := kerneltest.New()
	if err := permitEcho(refused); err == nil || errors.Is(err, os.ErrPermission) {
		t.Errorf("a kernel without the variable: %v", err)
	}
}
