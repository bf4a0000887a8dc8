package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	namespaces "github.com/manxnet/manx/integration/namespace"
)

// podHost is a namespace in place of the host, with others in place of workloads.
type podHost struct {
	t    *testing.T
	name string
	pods int
}

func newPodHost(t *testing.T) *podHost {
	t.Helper()
	return &podHost{t: t, name: namespaces.New(t, "mxpod")}
}

// pod makes a namespace for a workload and the plan to wire it.
func (h *podHost) pod(addrs ...string) Pod {
	h.t.Helper()
	h.pods++
	name := namespaces.New(h.t, "mxpod")
	p := Pod{
		Netns: "/run/netns/" + name, IfName: "eth0", HostIf: fmt.Sprintf("cali%d", h.pods), MTU: 1400,
		HostRoute: Route{Protocol: 80},
	}
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		p.Addresses = append(p.Addresses, addr)
		zero := netip.IPv6Unspecified()
		if addr.Is4() {
			zero = netip.IPv4Unspecified()
		}
		p.Routes = append(p.Routes, netip.PrefixFrom(zero, 0))
	}
	return p
}

func (h *podHost) ip(args ...string) string {
	h.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// do runs fn inside the host's namespace.
func (h *podHost) do(fn func() error) error {
	ns, err := netns.GetFromName(h.name)
	if err != nil {
		return err
	}
	defer ns.Close()
	return (&namespace{fd: int(ns)}).do(fn)
}

func (h *podHost) attach(p Pod, o Options) (mac net.HardwareAddr, err error) {
	err = h.do(func() error { mac, err = Attach(p, o); return err })
	return mac, err
}

func (h *podHost) check(p Pod) error { return h.do(func() error { return Check(p) }) }

func (h *podHost) detach(p Pod) error {
	return h.do(func() error { return Detach(p.Netns, p.IfName, p.HostIf) })
}

func (h *podHost) ping(from Pod, to string) error {
	out, err := exec.Command("ip", "netns", "exec", strings.TrimPrefix(from.Netns, "/run/netns/"), "ping", "-c1", "-W5",
		to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ping %s: %w: %s", to, err, out)
	}
	return nil
}

// state returns, as text, everything that an attachment could leave behind, without the parts that the kernel adds
// later.
func (h *podHost) state(p Pod) string {
	var b strings.Builder
	for _, ns := range []string{h.name, strings.TrimPrefix(p.Netns, "/run/netns/")} {
		for _, args := range [][]string{{"-o", "addr"}, {"-4", "route"}, {"-6", "route"},
			{"neigh", "show", "nud", "permanent"}} {
			for line := range strings.Lines(h.ip(append([]string{"-n", ns}, args...)...)) {
				if !strings.Contains(line, "fe80::") {
					b.WriteString(line)
				}
			}
		}
		for line := range strings.Lines(h.ip("-n", ns, "-br", "link")) {
			b.WriteString(strings.Fields(line)[0] + "\n")
		}
	}
	return b.String()
}

func TestAttachedPodsReachTheirHostAndEachOther(t *testing.T) {
	h := newPodHost(t)
	a := h.pod("10.65.0.1", "fd65::1")
	b := h.pod("10.65.0.2", "fd65::2")
	for _, p := range []Pod{a, b} {
		mac, err := h.attach(p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.MAC = mac
		if err := h.check(p); err != nil {
			t.Fatal(err)
		}
	}
	h.ip("-n", h.name, "addr", "add", "10.66.0.1/32", "dev", "lo")
	h.ip("netns", "exec", h.name, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1") // the agent's part
	for _, to := range []string{"10.66.0.1", "10.65.0.2", "fd65::2", "fe80::ecee:eeff:feee:eeee%eth0"} {
		if err := h.ping(a, to); err != nil {
			t.Error(err)
		}
	}
	pod := strings.TrimPrefix(a.Netns, "/run/netns/")
	for what, want := range map[string][2]string{
		"gateway": {h.ip("-n", pod, "route"),
			"default via 169.254.1.1 dev eth0 \n169.254.1.1 dev eth0 scope link \n"},
		"v6 gateway": {h.ip("-n", pod, "-6", "route", "show", "default"),
			"default via fe80::ecee:eeff:feee:eeee dev eth0"},
		"v4 route":  {h.ip("-n", h.name, "route"), "10.65.0.1 dev cali1 proto 80 scope link"},
		"v6 route":  {h.ip("-n", h.name, "-6", "route"), "fd65::1 dev cali1 proto 80 metric 1024"},
		"host MAC":  {h.ip("-n", h.name, "link", "show", "cali1"), "ee:ee:ee:ee:ee:ee"},
		"host MTU":  {h.ip("-n", h.name, "link", "show", "cali1"), "mtu 1400"},
		"pod MTU":   {h.ip("-n", pod, "link", "show", "eth0"), "mtu 1400"},
		"neighbour": {h.ip("-n", pod, "neigh"), "169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee PERMANENT"},
	} {
		if !strings.Contains(want[0], want[1]) {
			t.Errorf("%s: want %q in\n%s", what, want[1], want[0])
		}
	}
}

func TestAttachedPodHasSysctls(t *testing.T) {
	h := newPodHost(t)
	p := h.pod("10.65.0.1", "fd65::1")
	p.Forwarding = true
	if _, err := h.attach(p, Options{}); err != nil {
		t.Fatal(err)
	}
	read := func(ns, name string) string {
		out, err := exec.Command("ip", "netns", "exec", ns, "cat", "/proc/sys/net/"+name).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for name, want := range map[string]string{
		"ipv4/conf/cali1/proxy_arp": "1", "ipv4/conf/cali1/route_localnet": "1", "ipv4/conf/cali1/forwarding": "1",
		"ipv4/neigh/cali1/proxy_delay": "0", "ipv6/conf/cali1/accept_ra": "0", "ipv6/conf/cali1/proxy_ndp": "1",
		"ipv6/conf/cali1/forwarding": "1", "ipv6/conf/cali1/accept_dad": "0",
	} {
		if have := read(h.name, name); have != want {
			t.Errorf("host: %s = %s, want %s", name, have, want)
		}
	}
	pod := strings.TrimPrefix(p.Netns, "/run/netns/")
	for name, want := range map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/eth0/accept_dad": "0",
		"ipv6/conf/all/disable_ipv6": "0",
	} {
		if have := read(pod, name); have != want {
			t.Errorf("pod: %s = %s, want %s", name, have, want)
		}
	}
}

// stepsOf lists the names of Attach's steps for p, in order.
func stepsOf(p Pod) []string {
	var names []string
	for _, s := range (&wiring{Pod: p}).steps() {
		names = append(names, s.name)
	}
	return names
}

func TestFailedStepLeavesNothing(t *testing.T) {
	h := newPodHost(t)
	p := h.pod("10.65.0.1", "fd65::1")
	before := h.state(p)
	for _, step := range stepsOf(p) {
		boom := errors.New("injected")
		_, err := h.attach(p, Options{BeforeStep: func(s string) error {
			if s == step {
				return boom
			}
			return nil
		}})
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), step) {
			t.Errorf("%s: error is %v", step, err)
		}
		if after := h.state(p); after != before {
			t.Errorf("%s: left behind\n%s\nwas\n%s", step, after, before)
		}
	}
	if _, err := h.attach(p, Options{}); err != nil {
		t.Errorf("after all failures: %v", err)
	}
}

func TestAttachRefuses(t *testing.T) {
	h := newPodHost(t)
	taken := h.pod("10.65.0.1")
	if _, err := h.attach(taken, Options{}); err != nil {
		t.Fatal(err)
	}
	h.ip("-n", h.name, "link", "add", "bridge1", "type", "bridge")
	for name, c := range map[string]struct {
		change func(*Pod)
		want   string
	}{
		"an address that is routed elsewhere": {func(p *Pod) { p.Addresses = taken.Addresses },
			"already routes that address to cali1"},
		"an interface name of another kind": {func(p *Pod) { p.HostIf = "bridge1" }, "is a bridge, not a veth"},
		"another container's interface": {func(p *Pod) { p.HostIf, p.Exclusive = "cali1", true },
			"belongs to another container"},
		"a second interface of one container": {func(p *Pod) {
			p.Netns, p.HostIf, p.IfName = taken.Netns, taken.HostIf,
				"eth1"
		}, "can have one interface"},
		"a name that is taken in the pod": {func(p *Pod) { p.IfName = "lo" }, "exists in"},
		"an impossible MTU":               {func(p *Pod) { p.MTU = 70000 }, "cali"},
		"a namespace that is gone":        {func(p *Pod) { p.Netns = "/run/netns/nosuch" }, ErrNoNetns.Error()},
		"a file that is no namespace":     {func(p *Pod) { p.Netns = "/etc/hostname" }, ErrNoNetns.Error()},
		"the host's own namespace": {func(p *Pod) { p.Netns = "/run/netns/" + h.name },
			"own network namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			p := h.pod("10.65.0.9")
			c.change(&p)
			before := h.state(taken)
			_, err := h.attach(p, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			if after := h.state(taken); after != before {
				t.Errorf("changed to\n%s\nfrom\n%s", after, before)
			}
		})
	}
}

func TestRestartedPodReplacesItsInterface(t *testing.T) {
	h := newPodHost(t)
	old := h.pod("10.65.0.1")
	if _, err := h.attach(old, Options{}); err != nil {
		t.Fatal(err)
	}
	renewed := h.pod("10.65.0.2")
	renewed.HostIf = old.HostIf
	if _, err := h.attach(renewed, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := h.check(renewed); err != nil {
		t.Error(err)
	}
	if err := h.check(old); err == nil {
		t.Error("the old pod is still wired")
	}
	if err := h.detach(old); err != nil {
		t.Error(err)
	}
	if err := h.check(renewed); err != nil {
		t.Errorf("after the old pod was detached: %v", err)
	}
}

func TestDetachIsSafeToRepeat(t *testing.T) {
	h := newPodHost(t)
	p := h.pod("10.65.0.1", "fd65::1")
	before := h.state(p)
	if _, err := h.attach(p, Options{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.detach(p); err != nil {
			t.Fatal(err)
		}
		if after := h.state(p); after != before {
			t.Errorf("left behind\n%s\nwas\n%s", after, before)
		}
	}
	gone := p
	gone.Netns = "/run/netns/nosuch"
	if err := h.detach(gone); err != nil {
		t.Errorf("a namespace that is gone: %v", err)
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	h := newPodHost(t)
	for name, c := range map[string]struct {
		in   string // "host" or "pod"
		args []string
		want string
	}{
		"host end missing": {"host", []string{"link", "del", "%"}, "is missing on the host"},
		"host end down":    {"host", []string{"link", "set", "%", "down"}, "is down"},
		"pod end down":     {"pod", []string{"link", "set", "eth0", "down"}, "is down"},
		"MAC of the host end": {"host", []string{"link", "set", "%", "address", "02:00:00:00:00:01"},
			"hardware address"},
		"IPv4 address": {"pod", []string{"addr", "del", "10.65.0.1/32", "dev", "eth0"},
			"lacks address 10.65.0.1"},
		"IPv6 address":       {"pod", []string{"addr", "del", "fd65::1/128", "dev", "eth0"}, "lacks address fd65::1"},
		"default route":      {"pod", []string{"route", "del", "default"}, "lacks the route to 0.0.0.0/0"},
		"IPv6 default route": {"pod", []string{"-6", "route", "del", "default"}, "lacks the route to ::/0"},
		"host route":         {"host", []string{"route", "del", "10.65.0.1"}, "no route to 10.65.0.1"},
		"IPv6 host route":    {"host", []string{"-6", "route", "del", "fd65::1"}, "no route to fd65::1"},
		"blackhole instead": {"host", []string{"route", "replace", "blackhole", "10.65.0.1"},
			"no route to 10.65.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := h.pod("10.65.0.1", "fd65::1")
			mac, err := h.attach(p, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = h.detach(p)
				_ = exec.Command("ip", "-n", h.name, "route", "del", "blackhole", "10.65.0.1").Run()
			}()
			p.MAC = mac
			ns := h.name
			if c.in == "pod" {
				ns = strings.TrimPrefix(p.Netns, "/run/netns/")
			}
			args := slices.Clone(c.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "%", p.HostIf)
			}
			h.ip(append([]string{"-n", ns}, args...)...)
			if err := h.check(p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestNetnsThreadsAreNotReused(t *testing.T) {
	h := newPodHost(t)
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for range 20 {
		if err := h.do(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
		now, err := netns.Get()
		if err != nil {
			t.Fatal(err)
		}
		if !now.Equal(own) {
			t.Fatal("this goroutine runs in another namespace")
		}
		now.Close()
	}
}

// Packets sent before the workload has its address must not delay later ones: the kernel repeats an unanswered request
// only after a second.
func TestEarlyPacketsDoNotDelayLaterOnes(t *testing.T) {
	h := newPodHost(t)
	p := h.pod("10.65.0.9", "fd00:65::9")
	mac, err := h.attach(p, Options{BeforeStep: func(step string) error {
		if step != "add the workload's addresses" {
			return nil
		}
		for _, a := range p.Addresses {
			h.ip("-n", h.name, "route", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", p.HostIf, "proto", "80")
			_ = exec.Command("ip", "netns", "exec", h.name, "ping", "-c1", "-W1", "-q", a.String()).Start()
			for end := time.Now().Add(10 * time.Second); !strings.Contains(h.neighbour(p, a), "INCOMPLETE"); {
				if time.Now().After(end) {
					t.Fatalf("no request for %s: %q", a, h.neighbour(p, a))
				}
			}
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err, mac)
	}
	for _, a := range p.Addresses {
		if state := h.neighbour(p, a); strings.Contains(state, "INCOMPLETE") {
			t.Errorf("after the attachment %s waits for the answer to an old request: %s", a, state)
		}
	}
}

func (h *podHost) neighbour(p Pod, a netip.Addr) string {
	return h.ip("-n", h.name, "neigh", "show", a.String(), "dev", p.HostIf)
}

// Connections of whoever had an address before end before it gets a route; those of other addresses go on.
func TestAttachForgetsConnectionsOfTheAddresses(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nftables is not installed")
	}
	h := newPodHost(t)
	h.ip("netns", "exec", h.name, "nft", "add table inet t; add chain inet t o "+
		"{ type filter hook output priority 0; }; add rule inet t o ct state new counter")
	connect := func(to string) {
		t.Helper()
		h.ip("-n", h.name, "link", "set", "lo", "up")
		h.ip("-n", h.name, "addr", "add", to, "dev", "lo", "nodad") // usable at once
		err := h.do(func() error {
			c, err := net.Dial("udp", net.JoinHostPort(to, "7"))
			if err == nil {
				_, err = c.Write([]byte("x"))
				c.Close()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		h.ip("-n", h.name, "addr", "del", to, "dev", "lo")
	}
	entries := func() (text string) {
		err := h.do(func() error {
			b, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
			text = string(b)
			return err
		})
		if err != nil {
			t.Skipf("the kernel does not show its connections: %v", err)
		}
		return text
	}
	six := "dst=fd65:0000:0000:0000:0000:0000:0000:0001 "
	text := ""
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(text, "dst=10.65.0.1 ") ||
		!strings.Contains(text, six); text = entries() {
		if time.Now().After(deadline) {
			t.Fatalf("no connections:\n%s", text)
		}
		for _, a := range []string{"10.65.0.1", "10.65.0.2", "fd65::1"} { // the route of a new IPv6 address comes later
			connect(a)
		}
	}
	routed := h.pod("10.65.0.2")
	routed.Routed = true
	for _, p := range []Pod{h.pod("10.65.0.1", "fd65::1"), routed} {
		if _, err := h.attach(p, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	text = entries()
	if strings.Contains(text, "dst=10.65.0.1 ") || strings.Contains(text, six) {
		t.Errorf("a connection goes on to the next workload with its address:\n%s", text)
	}
	if !strings.Contains(text, "dst=10.65.0.2 ") {
		t.Errorf("a connection is gone whose address the agent routes:\n%s", text)
	}
}
