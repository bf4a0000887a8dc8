package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/bgp/fib"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// web serves HTTP for a rig and returns a function that gets a path.
func (r *rig) web() func(path string) (int, string) {
	pedantic := prometheus.NewPedanticRegistry()
	for _, x := range r.server.all() {
		if c, ok := x.(prometheus.Collector); ok {
			pedantic.MustRegister(c)
		}
	}
	srv := httptest.NewServer(r.server.webHandler())
	r.t.Cleanup(srv.Close)
	return func(path string) (int, string) {
		r.t.Helper()
		resp, err := srv.Client().Get(srv.URL + path)
		if err != nil {
			r.t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			r.t.Fatal(err)
		}
		if path == "/metrics" {
			if _, err := pedantic.Gather(); err != nil {
				r.t.Error(err)
			}
		}
		return resp.StatusCode, string(body)
	}
}

func TestReadyzSaysWhatIsMissing(t *testing.T) {
	r := newRig(t)
	get := r.web()
	want := func(path string, code int, body string) {
		t.Helper()
		if c, b := get(path); c != code || b != body {
			t.Errorf("%s: %d\n%swant %d\n%s", path, c, b, code, body)
		}
	}
	starting := "[-]datastore: not connected yet: manxd is starting\n" +
		"[-]bgp: not started yet: manxd is starting\n[-]dataplane: not started yet: manxd is starting\nnot ready\n"
	want("/readyz", http.StatusServiceUnavailable, starting)
	want("/readyz?verbose", http.StatusServiceUnavailable, starting)
	want("/livez", http.StatusOK, "ok\n")

	r.start()
	want("/readyz", http.StatusServiceUnavailable, "[-]datastore: being read for the first time\n"+
		"[-]bgp: waiting for 192.0.2.1\n"+
		"[-]dataplane: the kernel has not been brought to the state of the datastore yet\nnot ready\n")

	r.store(node(t))
	eventually(t, func() string {
		if _, b := get("/readyz"); !strings.Contains(b, "[+]dataplane: ") {
			return b
		}
		return ""
	})
	r.bgp.finish()
	want("/readyz", http.StatusOK, "ok\n")
	want("/readiness", http.StatusOK, "ok\n")
	want("/readyz?verbose", http.StatusOK, "[+]datastore: in sync at revision 9\n"+
		"[+]bgp: restart is over, all routes are known\n"+
		"[+]dataplane: the kernel has the wanted devices and routes\nok\n")

	// Neighbours that are down do not make this node unhealthy.
	r.bgp.set(session("192.0.2.2", bgp.SessionMesh, speaker.PhaseFailed, "Active", "connection refused"))
	want("/readyz", http.StatusOK, "ok\n")

	r.tables.Apply(datastore.Event{Type: datastore.EventLost, Err: fmt.Errorf("connection refused")})
	want("/readyz", http.StatusServiceUnavailable, "[-]datastore: connection lost, the last state is kept: "+
		"connection refused\n"+
		"[+]bgp: restart is over, all routes are known\n"+
		"[+]dataplane: the kernel has the wanted devices and routes\nnot ready\n")
	want("/liveness", http.StatusOK, "ok\n")
	if c, _ := get("/"); c != http.StatusNotFound {
		t.Errorf("/: %d", c)
	}
}

// gatedDataplane is a dataplane that answers while its gate is open: empty.
type gatedDataplane struct {
	Dataplane
	gate chan struct{}
}

func (g gatedDataplane) Status() dataplane.Status {
	g.gate <- struct{}{}
	<-g.gate
	return dataplane.Status{Started: true}
}

// A part that does not answer may work on a change that takes long. Not for ever.
func TestLivezFailsWhenAPartHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Log: zap.NewNop()})
		gate := make(chan struct{}, 1)
		s.Dataplane.Show(DataplaneSource{Agent: gatedDataplane{gate: gate}})
		want := func(when, path string, code int, body string) {
			t.Helper()
			w := httptest.NewRecorder()
			s.webHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if got := w.Body.String(); w.Code != code || !strings.Contains(got, body) {
				t.Errorf("%s: %s: %d\n%swant %d and %s", when, path, w.Code, got, code, body)
			}
		}
		const fine = "[+]dataplane: the kernel has the wanted devices and routes"
		want("at first", "/readyz", http.StatusServiceUnavailable, fine+"\n")
		gate <- struct{}{}
		for start := time.Now(); time.Since(start) < longestStep-10*time.Second; time.Sleep(10 * time.Second) {
			want("during a long step", "/livez", http.StatusOK, "ok\n")
		}
		want("during a long step", "/readyz", http.StatusServiceUnavailable,
			fine+" (before a change that is under way, and takes long)\n")
		time.Sleep(10 * time.Second) // of the bubble: the step takes too long
		want("in the end", "/livez", http.StatusServiceUnavailable,
			"[-]process: a part of manxd has not answered for 5s\nnot live\n")
		<-gate
		want("after the step", "/livez", http.StatusOK, "ok\n")
		want("after the step", "/readyz", http.StatusServiceUnavailable, fine+"\n")
	})
}

// slowKernel takes its time to list routes.
type slowKernel struct {
	*kerneltest.Kernel
	work func()
}

func (k slowKernel) ListRoutes(tables ...kernel.Table) ([]kernel.Route, error) {
	k.work()
	return k.Kernel.ListRoutes(tables...)
}

// A user of a namespace can make rules that take the kernel many seconds: a new process would begin with them again.
func TestProbesDuringALongStep(t *testing.T) {
	r := newRig(t)
	r.start()
	end := make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	defer release()
	long := func() (begun chan struct{}, work func()) {
		begun = make(chan struct{})
		begin := sync.OnceFunc(func() { close(begun) })
		return begun, func() {
			begin()
			<-end
		}
	}
	routing, routes := long()
	host := dataplane.New(dataplane.Config{Kernel: slowKernel{r.kernel, routes}, NodeName: "node-1",
		Logger: zap.NewNop()})
	rules := kerneltest.NewRules()
	filter := dataplane.NewPolicy(dataplane.PolicyConfig{Rules: rules, Logger: zap.NewNop(),
		Policy: policy.Config{Node: "node-1"}})
	filtering, transaction := long()
	rules.Refuse(func(ruleset.Changes) error {
		transaction()
		return nil
	})
	r.server.Dataplane.Show(DataplaneSource{Agent: host})
	r.server.Policy.Show(PolicySource{Agent: filter})
	r.store(node(t), pod(t, "web", "cali1", "10.65.0.1/32"))
	state := dataplane.State{Reader: r.tables.Snapshot(), All: true, DatastoreSynced: true, BGPSynced: true}
	host.SetState(state)
	filter.SetState(state)
	r.run(host.Run)
	r.run(filter.Run)
	<-routing
	<-filtering
	get := r.web()
	for _, path := range []string{"/livez", "/metrics"} {
		if code, body := get(path); code != http.StatusOK {
			t.Fatalf("%s: %d\n%s", path, code, body)
		}
	}
	want := func(lines ...string) string {
		code, body := get("/readyz?verbose")
		for _, line := range lines {
			if !strings.Contains(body, line+"\n") {
				return fmt.Sprintf("%d\n%slacks %s", code, body, line)
			}
		}
		return ""
	}
	const before = " (before a change that is under way, and takes long)"
	if complaint := want("[-]dataplane: the kernel has not been brought to the state of the datastore yet"+before,
		"[-]policy: no rules were programmed since the start: those of an earlier run stay"+before); complaint != "" {
		t.Error("during the steps: ", complaint)
	}
	if _, err := r.client.GetStatus(r.context(), &manxv1.GetStatusRequest{}); err != nil {
		t.Error(err)
	}
	release()
	eventually(t, func() string {
		return want("[+]dataplane: the kernel has the wanted devices and routes",
			"[+]policy: the rules are in the kernel, as of revision 9")
	})
}

func TestMetrics(t *testing.T) {
	r := newRig(t)
	r.start()
	get := r.web()
	r.store(node(t), pod(t, "web", "cali1", "10.65.0.1/32"), object(t, model.KindIPPool, "", "broken", "{"))
	up := session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up")
	up.Flaps, up.Restarts, up.Uptime, up.LastErrorAt, up.Session.MaxPrefixes = 2, 1, 90*time.Second, since, 1000
	up.Counters = speaker.Counters{At: since, AdvertisedAt: since, Received: 17, Accepted: 15, Advertised: 4,
		UpdatesIn: 9, UpdatesOut: 3}
	up.BFD = &bfd.Status{State: bfd.Up, Downs: 5, Drops: bfd.Drops{Rate: 6, Unconfirmed: 7}}
	r.bgp.set(up)
	uncounted := session("192.0.2.3", bgp.SessionNode, speaker.PhaseEstablished, "Established", "up")
	uncounted.Counters = speaker.Counters{At: since, AdvertisedAt: since.Add(-time.Hour), Advertised: 4}
	r.bgp.set(uncounted)
	down := session("192.0.2.2", bgp.SessionMesh, speaker.PhaseFailed, "Active", "connection refused")
	down.Flaps = 3
	r.bgp.set(down)
	r.bgp.refused = []fib.Rejection{{Class: fib.RejectNextHop}, {Class: fib.RejectNextHop}}
	r.source.Desired = func() bgp.Desired { return bgp.Desired{Originated: make([]bgp.Origin, 3)} }
	r.show()
	want := []string{
		`manx_build_info{commit="abc",go="1.26",gobgp="v4",version="v1"} 1`,
		`manx_ready{check="bgp"} 0`,
		`manx_ready{check="datastore"} 1`,
		`manx_datastore_in_sync 1`,
		`manx_datastore_objects 2`,
		`manx_datastore_quarantined 1`,
		`manx_bgp_sessions{state="Active",type="mesh"} 1`,
		`manx_bgp_sessions{state="Established",type="global"} 1`,
		`manx_bgp_session_up{peer="192.0.2.1",type="global"} 1`,
		`manx_bgp_session_state{peer="192.0.2.1",type="global"} 6`,
		`manx_bgp_session_established_seconds{peer="192.0.2.1",type="global"} 90`,
		`manx_bgp_session_graceful_restarts_total{peer="192.0.2.1",type="global"} 1`,
		`manx_bgp_session_prefixes{direction="accepted",peer="192.0.2.1",type="global"} 15`,
		`manx_bgp_session_prefixes{direction="advertised",peer="192.0.2.1",type="global"} 4`,
		`manx_bgp_session_prefix_limit{peer="192.0.2.1",type="global"} 1000`,
		`manx_bgp_session_updates_total{direction="in",peer="192.0.2.1",type="global"} 9`,
		`manx_bgp_session_updates_total{direction="out",peer="192.0.2.1",type="global"} 3`,
		`manx_bgp_session_last_error_timestamp_seconds{peer="192.0.2.1",type="global"} 1.772600767e+09`,
		`manx_bgp_session_bfd_up{peer="192.0.2.1",type="global"} 1`,
		`manx_bgp_session_bfd_downs_total{peer="192.0.2.1",type="global"} 5`,
		`manx_bgp_session_bfd_dropped_packets_total{peer="192.0.2.1",reason="rate",type="global"} 6`,
		`manx_bgp_session_bfd_dropped_packets_total{peer="192.0.2.1",reason="ttl",type="global"} 0`,
		`manx_bgp_session_bfd_dropped_packets_total{peer="192.0.2.1",reason="unconfirmed_end",type="global"} 7`,
		`manx_bgp_flaps_total{type="mesh"} 3`,
		`manx_bgp_graceful_restarts_total{type="global"} 1`,
		`manx_bgp_prefixes{direction="received",type="global"} 17`,
		`manx_bgp_rejected_routes{reason="next_hop"} 2`,
		`manx_bgp_rejected_routes{reason="own_prefix"} 0`,
		`manx_bgp_rejected_routes{reason="import_filter"} 2`,
		`manx_bgp_originated_prefixes 3`,
		`manx_bgp_strangers_total 4`,
		`manx_bgp_session_flaps_total{peer="192.0.2.1",type="global"} 2`,
		`manx_bgp_session_prefixes{direction="received",peer="192.0.2.1",type="global"} 17`,
		`manx_routes{phase="applied"} 1`,
		`manx_endpoints{phase="applied"} 1`,
	}
	eventually(t, func() string {
		_, body := get("/metrics")
		for _, w := range want {
			if !strings.Contains(body, w+"\n") {
				return "lacks " + w + "\n" + body
			}
		}
		return ""
	})
}

// A mesh must not have series for each of its nodes; configured sessions have series, up to a limit.
func TestSeriesPerSessionAreBounded(t *testing.T) {
	r := newRig(t)
	r.start()
	a := netip.MustParseAddr("10.0.0.1")
	add := func(typ bgp.SessionType, n int) {
		for range n {
			r.bgp.set(session(a.String(), typ, speaker.PhaseEstablished, "Established", "up"))
			a = a.Next()
		}
	}
	get := r.web()
	series := func() int {
		_, body := get("/metrics")
		return strings.Count(body, "\nmanx_bgp_")
	}
	add(bgp.SessionMesh, 1)
	one := series()
	add(bgp.SessionMesh, 499)
	if n := series(); n != one {
		t.Errorf("500 sessions of the mesh have %d series of BGP, one has %d", n, one)
	}
	if _, body := get("/metrics"); !strings.Contains(body, `manx_bgp_sessions{state="Established",type="mesh"} 500`) {
		t.Errorf("the mesh is not counted:\n%s", body)
	}
	add(bgp.SessionGlobal, 300)
	if _, body := get("/metrics"); strings.Count(body, "\nmanx_bgp_session_up{") != sessionSeries ||
		!strings.Contains(body, `manx_bgp_sessions{state="Established",type="global"} 300`) {
		t.Errorf("%d sessions have series of their own, want %d", strings.Count(body, "\nmanx_bgp_session_up{"),
			sessionSeries)
	}
}
