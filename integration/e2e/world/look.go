package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// ask calls the control API of a node's daemon.
func ask[R, A any](t *testing.T, n *lab.Node, call func(manxv1.ManxClient, context.Context, R, ...grpc.CallOption) (A,
	error), request R) (answer A, err error) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return call(manxv1.NewManxClient(conn), ctx, request)
}

// peers are the sessions of a node; none while its daemon does not answer.
func peers(t *testing.T, n *lab.Node) []*manxv1.Peer {
	t.Helper()
	r, _ := ask(t, n, manxv1.ManxClient.ListPeers, &manxv1.ListPeersRequest{})
	return r.GetPeers()
}

// peer is the session with an address, nil if there is none.
func peer(t *testing.T, n *lab.Node, address fmt.Stringer) *manxv1.Peer {
	t.Helper()
	for _, p := range peers(t, n) {
		if p.GetAddress() == address.String() {
			return p
		}
	}
	return nil
}

// kernelRoute is a route as ip(8) tells it.
type kernelRoute struct {
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

// routes are those that ip(8) shows in a namespace, with these words after "ip -j route show".
func routes(t *testing.T, ns, family string, words ...string) []kernelRoute {
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
	var list []kernelRoute
	must(t, json.Unmarshal(out, &list))
	return list
}

// ours are the routes that belong to Manx by their protocol.
func ours(t *testing.T, ns, family string) []kernelRoute {
	t.Helper()
	return append(routes(t, ns, family, "proto", "12"), routes(t, ns, family, "proto", "80")...)
}

func ip(t *testing.T, n *lab.Node, words string) {
	t.Helper()
	if out, err := n.Run("ip", strings.Fields(words)...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// monitor is a running "ip monitor route" on a node: it sees every route that comes and goes.
type monitor struct {
	file string
	stop func()
}

// watchRoutes starts a monitor and returns when it sees what happens.
func watchRoutes(t *testing.T, n *lab.Node) *monitor {
	t.Helper()
	file := filepath.Join(t.TempDir(), "monitor")
	f, err := os.Create(file)
	must(t, err)
	defer f.Close()
	cmd := lab.InNamespace(n.Namespace, "ip", "-ts", "-o", "monitor", "route")
	cmd.Stdout = f
	must(t, cmd.Start())
	m := &monitor{file: file, stop: func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }}
	t.Cleanup(m.stop)
	for i := 0; ; i++ {
		ip(t, n, "route replace blackhole 192.0.2.0/32 table 4242")
		ip(t, n, "route del blackhole 192.0.2.0/32 table 4242")
		if strings.Contains(m.text(t), "4242") {
			return m
		}
		if i > 100 {
			t.Fatal("ip monitor shows nothing")
		}
	}
}

func (m *monitor) text(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(m.file)
	must(t, err)
	return string(b)
}

// deleted are the lines about routes of Manx in the main table that went away.
func (m *monitor) deleted(t *testing.T) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(m.text(t)) {
		if strings.Contains(line, "Deleted") && !strings.Contains(line, "table") &&
			(strings.Contains(line, "proto bird") || strings.Contains(line, "proto 80")) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// process is what a daemon holds, and the processor time that it has had.
type process struct {
	fds, goroutines int
	rss             float64 // MB
	cpu             float64 // seconds
}

func (p process) String() string {
	return fmt.Sprintf("%d file descriptors, %d goroutines, %.0f MB, %.1f s of CPU", p.fds, p.goroutines, p.rss, p.cpu)
}

func measure(t *testing.T, n *lab.Node) process {
	t.Helper()
	return process{openFiles(t, n), int(metric(t, n, "go_goroutines")), memory(t, n.Manxd().PID(), "VmRSS"),
		metric(t, n, "process_cpu_seconds_total")}
}

func openFiles(t *testing.T, n *lab.Node) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Manxd().PID()))
	must(t, err)
	return len(fds)
}

// metric reads one value of /metrics.
func metric(t *testing.T, n *lab.Node, name string) float64 {
	t.Helper()
	page, err := n.Get("/metrics")
	must(t, err)
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			must(t, err)
			return v
		}
	}
	t.Fatalf("/metrics has no %s", name)
	return 0
}

// memory reads a size of /proc/PID/status in megabytes.
func memory(t *testing.T, pid int, field string) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(b), field+":")
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	must(t, err)
	return kb / 1024
}

// exitCode is that of a program which an error tells about.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// contains fails unless a text has all these parts.
func contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s should contain %q:\n%s", what, p, text)
		}
	}
}
