package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// restartNodes is the size of the mesh in which one node restarts.
const restartNodes = 10

// restartPause follows each restart, so that the next finds sessions that have been up for a while.
const restartPause = 3 * time.Second

// BenchmarkRestart kills the BGP daemon of one node of a mesh of ten with SIGKILL, starts it again at once and measures
// the times from the kill until each session is up (session), until the last one is (all) and, for Manx, until /readyz
// reports ready. First all survivors connect (active), then the restarted node (passive): in a mesh of Manx, the node
// with the greater address connects. BIRD is configured as by calico/node, with the same ends passive.
func BenchmarkRestart(b *testing.B) {
	mesh := newRestartMesh(b)
	for _, daemon := range []struct {
		name  string
		start func(testing.TB) []restarter
	}{{"manx", mesh.startManx}, {"bird", mesh.startBIRD}} {
		b.Run(daemon.name, func(b *testing.B) {
			nodes := daemon.start(b)
			b.Run("survivors-active", func(b *testing.B) { measureRestarts(b, nodes[0]) })
			b.Run("survivors-passive", func(b *testing.B) { measureRestarts(b, nodes[restartNodes-1]) })
			for _, n := range nodes {
				n.kill()
			}
		})
	}
}

// restarter is a daemon that can be killed and started.
type restarter struct {
	start, kill func()
	log         func() string
	up          *regexp.Regexp // matches the log line about a session that came up: the time and the peer
	layout      string         // of the time
	ready       func() error   // nil: not measured
}

func measureRestarts(b *testing.B, r restarter) {
	var session, all, ready []float64
	for range b.N {
		time.Sleep(restartPause) // restarts are far apart
		logged, t0 := len(r.log()), time.Now()
		r.kill()
		r.start()
		if r.ready != nil {
			if err := r.ready(); err != nil {
				b.Fatal(err)
			}
			ready = append(ready, milliseconds(time.Since(t0)))
		}
		times := map[string]float64{}
		err := lab.Eventually(time.Minute, func() error {
			times = r.sessionTimes(b, r.log()[logged:], t0)
			if len(times) < restartNodes-1 {
				return fmt.Errorf("%d of %d sessions came up; log:\n%s", len(times), restartNodes-1, r.log()[logged:])
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		last := 0.0
		for _, t := range times {
			session, last = append(session, t), max(last, t)
		}
		all = append(all, last)
	}
	for what, list := range map[string][]float64{"session": session, "all": all, "ready": ready} {
		if len(list) > 0 {
			slices.Sort(list)
			b.ReportMetric(nearestRank(list, 50), what+"-p50-ms")
			b.ReportMetric(nearestRank(list, 95), what+"-p95-ms")
			b.ReportMetric(list[len(list)-1], what+"-max-ms")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// nearestRank returns the p-th percentile of sorted values by the nearest rank: of 20 values, the 19th for 95.
func nearestRank(sorted []float64, p int) float64 { return sorted[(len(sorted)*p+99)/100-1] }

// sessionTimes reads from a log the first time when each peer's session came up, in milliseconds from t0.
func (r restarter) sessionTimes(tb testing.TB, log string, t0 time.Time) map[string]float64 {
	times := map[string]float64{}
	for _, m := range r.up.FindAllStringSubmatch(log, -1) {
		at, err := time.ParseInLocation(r.layout, m[1], time.Local)
		if err != nil {
			tb.Fatal(err)
		}
		if _, known := times[m[2]]; !known {
			times[m[2]] = milliseconds(at.Sub(t0))
		}
	}
	return times
}

type restartMesh struct{ *site }

func newRestartMesh(tb testing.TB) *restartMesh {
	tb.Helper()
	bin, missing := lab.Require("ip", "bird", "birdc")
	if missing != nil {
		tb.Skip(missing)
	}
	spec := lab.Spec{Name: fmt.Sprintf("r%d", os.Getpid()), Bin: bin, PlainRouters: true}
	for i := range restartNodes {
		spec.Nodes = append(spec.Nodes, lab.NodeSpec{Name: fmt.Sprintf("n%d", i+1)})
	}
	l, err := lab.New(spec)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &restartMesh{&site{l, l.Nodes[restartNodes/2], peerAS}} // the datastore is on a node that does not restart
}

// startManx starts manxd on all nodes, which have a block each, and waits until all is settled.
func (m *restartMesh) startManx(tb testing.TB) []restarter {
	tb.Helper()
	if err := m.node.StartManxd(append(m.node.EmbedDatastore(), "--no-default-pools")...); err != nil {
		tb.Fatal(err)
	}
	if err := m.node.Ready(30 * time.Second); err != nil {
		tb.Fatal(err)
	}
	pool := "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\nspec: {cidr: 10.244.0.0/16}\n"
	if err := m.node.Apply(pool); err != nil {
		tb.Fatal(err)
	}
	store, err := openStore(m.site)
	if err != nil {
		tb.Fatal(err)
	}
	defer store.Close()
	for i, n := range m.Nodes {
		if err := createBlock(context.Background(), store, n.Name, i); err != nil {
			tb.Fatal(err)
		}
		if n != m.node {
			if err := n.StartManxd(append(lab.UseDatastore(m.node), "--no-default-pools")...); err != nil {
				tb.Fatal(err)
			}
		}
	}
	var list []restarter
	for _, n := range m.Nodes {
		if err := n.Ready(time.Minute); err != nil {
			tb.Fatal(err)
		}
		if err := waitFIB(n.Manxd().PID(), 0, restartNodes, time.Minute); err != nil {
			tb.Fatalf("%s: %v", n.Name, err)
		}
		list = append(list, restarter{
			start: func() {
				if err := n.StartManxd(); err != nil {
					tb.Fatal(err)
				}
			},
			kill: func() { n.Manxd().Kill() }, log: n.Log,
			up: regexp.MustCompile(
				`(?m)^(\S+)\tINFO\t.*"target": "bgp-session", "key": "([^"]+)", "phase": "Established"`),
			layout: "2006-01-02T15:04:05.000Z0700",
			ready:  func() error { return awaitReady(n, time.Minute) },
		})
	}
	return list
}

// awaitReady is Ready with short pauses.
func awaitReady(n *lab.Node, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		out, err := n.Get("/readyz?verbose")
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("node %s: not ready: %w\n%s", n.Name, err, out)
		}
	}
}

// startBIRD runs BIRD on all nodes, configured as by calico/node, and waits until all sessions are up.
func (m *restartMesh) startBIRD(tb testing.TB) []restarter {
	tb.Helper()
	var list []restarter
	for i, n := range m.Nodes {
		file := func(suffix string) string { return filepath.Join(n.Dir, "bird."+suffix) }
		conf, socket, log := file("conf"), file("ctl"), file("log")
		if err := os.WriteFile(conf, []byte(m.birdConfig(i, log)), 0o644); err != nil {
			tb.Fatal(err)
		}
		stop := func() {}
		list = append(list, restarter{
			start: func() {
				cmd := namespace.Command(n.Namespace, "bird", "-f", "-R", "-c", conf, "-s", socket)
				if err := cmd.Start(); err != nil {
					tb.Fatal(err)
				}
				stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
			},
			kill: func() { stop() },
			log: func() string {
				b, _ := os.ReadFile(log)
				return string(b)
			},
			up:     regexp.MustCompile(`(?m)^(\d+-\d+-\d+ \S+) <TRACE> (\S+): BGP session established`),
			layout: "2006-01-02 15:04:05.000",
		})
	}
	for _, r := range list {
		r.start()
	}
	tb.Cleanup(func() {
		for _, r := range list {
			r.kill()
		}
	})
	for i, r := range list {
		err := lab.Eventually(time.Minute, func() error {
			if n := len(r.sessionTimes(tb, r.log(), time.Now())); n < restartNodes-1 {
				return fmt.Errorf("BIRD on node %d has %d sessions; log:\n%s", i+1, n, r.log())
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	return list
}

// birdConfig returns the configuration of calico/node's template for a mesh: the end with the smaller address is
// passive.
func (m *restartMesh) birdConfig(self int, log string) string {
	var text strings.Builder
	fmt.Fprintf(&text, `router id %[1]s;
timeformat log iso long ms;
log %[2]q all;
protocol device {}
protocol direct { ipv4; }
protocol static own { ipv4; route 10.244.%[3]d.0/26 blackhole; }
protocol kernel { learn; persist; merge paths on; graceful restart;
  ipv4 { import all; export where source = RTS_BGP; }; }
template bgp calico { debug { states, events }; local %[1]s as %[4]d; multihop; graceful restart;
  connect delay time 2; connect retry time 5; error wait time 5, 30;
  ipv4 { import all; export where proto = "own"; gateway recursive; add paths on; }; }
`, m.Nodes[self].IP4, log, self, nodeAS)
	for i, n := range m.Nodes {
		if i != self {
			passive := ""
			if self < i {
				passive = "passive on; "
			}
			fmt.Fprintf(&text, "protocol bgp mesh%d from calico { neighbor %s as %d; %s}\n", i+1, n.IP4, nodeAS,
				passive)
		}
	}
	return text.String()
}
