package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// Call makes a call of the control API of a node's daemon.
func Call[R, A any](t *testing.T, n *lab.Node, call func(manxv1.ManxClient, context.Context, R, ...grpc.CallOption) (A,
	error), request R) (answer A, err error) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	Must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return call(manxv1.NewManxClient(conn), ctx, request)
}

// Peers returns the sessions of a node; none while its daemon does not respond.
func Peers(t *testing.T, n *lab.Node) []*manxv1.Peer {
	t.Helper()
	r, _ := Call(t, n, manxv1.ManxClient.ListPeers, &manxv1.ListPeersRequest{})
	return r.GetPeers()
}

// Peer returns the session with an address, nil if there is none.
func Peer(t *testing.T, n *lab.Node, address fmt.Stringer) *manxv1.Peer {
	t.Helper()
	for _, p := range Peers(t, n) {
		if p.GetAddress() == address.String() {
			return p
		}
	}
	return nil
}

// KernelRoute is a route in the output of ip(8).
type KernelRoute struct {
	Type     string `json:"type"`
	Dst      string `json:"dst"`
	Gateway  string `json:"gateway"`
	Dev      string `json:"dev"`
	Protocol string `json:"protocol"`
	Metric   uint32 `json:"metric"`
	NextHops []struct {
		Gateway string `json:"gateway"`
		Dev     string `json:"dev"`
	} `json:"nexthops"`
}

// Routes returns the routes that ip(8) shows in a namespace, with these words after "ip -j route show".
func Routes(t *testing.T, ns, family string, words ...string) []KernelRoute {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", ns, family, "-j", "-d", "route", "show"},
		words...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && strings.Contains(string(exit.Stderr), "does not exist") {
			return nil // an empty table
		}
		t.Fatalf("ip route show %v in %s: %v", words, ns, err)
	}
	var list []KernelRoute
	Must(t, json.Unmarshal(out, &list))
	return list
}

// OurRoutes returns the routes that belong to Manx by their protocol.
func OurRoutes(t *testing.T, ns, family string) []KernelRoute {
	t.Helper()
	return append(Routes(t, ns, family, "proto", "12"), Routes(t, ns, family, "proto", "80")...)
}

func IP(t *testing.T, n *lab.Node, words string) {
	t.Helper()
	if out, err := n.Run("ip", strings.Fields(words)...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Monitor is a running "ip monitor route" on a node: it records every added and deleted route.
type Monitor struct {
	file string
	Stop func()
}

// WatchRoutes starts a monitor and returns when it receives events.
func WatchRoutes(t *testing.T, n *lab.Node) *Monitor {
	t.Helper()
	file := filepath.Join(t.TempDir(), "monitor")
	f, err := os.Create(file)
	Must(t, err)
	defer f.Close()
	cmd := namespace.Command(n.Namespace, "ip", "-ts", "-o", "monitor", "route")
	cmd.Stdout = f
	Must(t, cmd.Start())
	m := &Monitor{file: file, Stop: func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }}
	t.Cleanup(m.Stop)
	for i := 0; ; i++ {
		IP(t, n, "route replace blackhole 192.0.2.0/32 table 4242")
		IP(t, n, "route del blackhole 192.0.2.0/32 table 4242")
		if strings.Contains(m.Text(t), "4242") {
			return m
		}
		if i > 100 {
			t.Fatal("ip monitor shows nothing")
		}
	}
}

func (m *Monitor) Text(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(m.file)
	Must(t, err)
	return string(b)
}

// Deleted returns the lines about deleted routes of Manx in the main table.
func (m *Monitor) Deleted(t *testing.T) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(m.Text(t)) {
		if strings.Contains(line, "Deleted") && !strings.Contains(line, "table") &&
			(strings.Contains(line, "proto bird") || strings.Contains(line, "proto 80")) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// process is the resources of a daemon, and the processor time that it has had.
type process struct {
	fds, goroutines int
	rss             float64 // MB
	cpu             float64 // seconds
}

func (p process) String() string {
	return fmt.Sprintf("%d file descriptors, %d goroutines, %.0f MB, %.1f s of CPU", p.fds, p.goroutines, p.rss, p.cpu)
}

func Measure(t *testing.T, n *lab.Node) process {
	t.Helper()
	return process{openFiles(t, n), int(Metric(t, n, "go_goroutines")), Memory(t, n.Manxd().PID(), "VmRSS"),
		Metric(t, n, "process_cpu_seconds_total")}
}

func openFiles(t *testing.T, n *lab.Node) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Manxd().PID()))
	Must(t, err)
	return len(fds)
}

// Metric reads one value of /metrics.
func Metric(t *testing.T, n *lab.Node, name string) float64 {
	t.Helper()
	page, err := n.Get("/metrics")
	Must(t, err)
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			Must(t, err)
			return v
		}
	}
	t.Fatalf("/metrics has no %s", name)
	return 0
}

// Memory reads a size of /proc/PID/status in megabytes.
func Memory(t *testing.T, pid int, field string) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	Must(t, err)
	_, rest, _ := strings.Cut(string(b), field+":")
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	Must(t, err)
	return kb / 1024
}

// ExitCode returns the exit code of the program in an error.
func ExitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// Contains fails unless a text has all these parts.
func Contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s should contain %q:\n%s", what, p, text)
		}
	}
}

// OurRoutesTo are the routes of Manx to one destination.
func OurRoutesTo(t *testing.T, n *lab.Node, family, dst string) (list []KernelRoute) {
	t.Helper()
	return append(Routes(t, n.Namespace, family, dst, "proto", "12"),
		Routes(t, n.Namespace, family, dst, "proto", "80")...)
}

// Blocks returns the node's own blocks, which have a blackhole each.
func Blocks(t *testing.T, n *lab.Node, family string) (list []netip.Prefix) {
	t.Helper()
	for _, r := range Routes(t, n.Namespace, family, "type", "blackhole", "proto", "12") {
		list = append(list, netip.MustParsePrefix(r.Dst))
	}
	return list
}

func SameSessions(t *testing.T, before, after []*manxv1.Peer) {
	t.Helper()
	now := map[string]*manxv1.Peer{}
	for _, p := range after {
		now[p.GetAddress()] = p
	}
	for _, p := range before {
		if q := now[p.GetAddress()]; q.GetEstablishedUnixMs() != p.GetEstablishedUnixMs() {
			t.Errorf("the session with %s was disturbed: before %v, now %v", p.GetAddress(), p, q)
		}
	}
}

// Stable waits until a daemon holds no more resources than before, except those of a connection or a timer.
func Stable(t *testing.T, n *lab.Node, before process) {
	t.Helper()
	const some = 12
	var now process
	err := lab.Eventually(Limit, func() error {
		if now = Measure(t, n); now.fds > before.fds+some || now.goroutines > before.goroutines+some {
			return fmt.Errorf("%s leaks: %s before, %s now", n.Name, before, now)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s: %s before, %s after", n.Name, before, now)
}

func LineWith(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}

func AwaitPeer(
	t *testing.T, n *lab.Node, address netip.Addr, what string, good func(*manxv1.Peer) bool,
) (p *manxv1.Peer) {
	t.Helper()
	Eventually(t, func() error {
		if p = Peer(t, n, address); !good(p) {
			return fmt.Errorf("session should be: %s\nis %v", what, p)
		}
		return nil
	})
	return p
}

// after returns the word that follows another.
func after(text, word string) string {
	words := strings.Fields(text)
	for i, w := range words {
		if w == word && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}
