package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// web serves the HTTP side of a rig and returns how to get a path of it.
func (r *rig) web() func(path string) (int, string) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.server.Collector())
	srv := httptest.NewServer(r.server.Handler(registry))
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
	starting := "[-]datastore: not connected yet: manxd is starting\n[-]bgp: not started yet: manxd is starting\n[-]dataplane: not started yet: manxd is starting\nnot ready\n"
	want("/readyz", http.StatusServiceUnavailable, starting)
	want("/readyz?verbose", http.StatusServiceUnavailable, starting)
	want("/livez", http.StatusOK, "ok\n")

	r.start()
	want("/readyz", http.StatusServiceUnavailable, "[-]datastore: being read for the first time\n[-]bgp: waiting for 192.0.2.1\n"+
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
	want("/readyz?verbose", http.StatusOK, "[+]datastore: in sync at revision 9\n[+]bgp: restart is over, all routes are known\n"+
		"[+]dataplane: the kernel is kept as datastore and BGP want it\nok\n")

	// Neighbours that are down are no fault of this node.
	r.bgp.set(session("192.0.2.2", bgp.SessionMesh, speaker.PhaseFailed, "Active", "connection refused"))
	want("/readyz", http.StatusOK, "ok\n")

	r.tables.Apply(datastore.Event{Type: datastore.EventLost, Err: fmt.Errorf("connection refused")})
	want("/readyz", http.StatusServiceUnavailable, "[-]datastore: connection lost, the last state is kept: connection refused\n"+
		"[+]bgp: restart is over, all routes are known\n[+]dataplane: the kernel is kept as datastore and BGP want it\nnot ready\n")
	want("/liveness", http.StatusOK, "ok\n")
	if c, _ := get("/"); c != http.StatusNotFound {
		t.Errorf("/: %d", c)
	}
}

// stuck is a dataplane whose lock is never given back.
type stuck struct {
	Dataplane
	release chan struct{}
}

func (s stuck) Status() dataplane.Status {
	<-s.release
	return dataplane.Status{}
}

func TestLivezFailsWhenAPartHangs(t *testing.T) {
	r := newRig(t)
	r.server.liveness = 10 * time.Millisecond
	release := make(chan struct{})
	defer close(release)
	r.server.Show(Source{Dataplane: stuck{release: release}})
	code, body := r.web()("/livez")
	if code != http.StatusServiceUnavailable || body != "[-]process: a part of manxd has not answered for 10ms\nnot live\n" {
		t.Errorf("%d\n%s", code, body)
	}
}

func TestMetrics(t *testing.T) {
	r := newRig(t)
	r.start()
	get := r.web()
	r.store(node(t), pod(t, "web", "cali1", "10.65.0.1/32"), object(t, model.KindIPPool, "", "broken", "{"))
	up := session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up")
	up.Flaps, up.Counters.Received = 2, 17
	r.bgp.set(up)
	r.bgp.set(session("192.0.2.2", bgp.SessionMesh, speaker.PhaseFailed, "Active", "connection refused"))
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
		`manx_bgp_session_up{peer="192.0.2.2",type="mesh"} 0`,
		`manx_bgp_session_flaps_total{peer="192.0.2.1",type="global"} 2`,
		`manx_bgp_prefixes_received{peer="192.0.2.1",type="global"} 17`,
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

// A full mesh of thousands of nodes must not become thousands of series; the sessions that somebody asked for stay.
func TestSeriesPerSessionAreBounded(t *testing.T) {
	r := newRig(t)
	r.start()
	a := netip.MustParseAddr("10.0.0.1")
	for range 1000 {
		r.bgp.set(session(a.String(), bgp.SessionMesh, speaker.PhaseEstablished, "Established", "up"))
		a = a.Next()
	}
	r.bgp.set(session("192.0.2.1", bgp.SessionGlobal, speaker.PhaseEstablished, "Established", "up"))
	_, body := r.web()("/metrics")
	if n := strings.Count(body, "\nmanx_bgp_session_up{"); n != 256 {
		t.Errorf("%d series, want 256", n)
	}
	for _, w := range []string{`manx_bgp_session_up{peer="192.0.2.1",type="global"} 1`, `manx_bgp_sessions{state="Established",type="mesh"} 1000`} {
		if !strings.Contains(body, w) {
			t.Errorf("lacks %s", w)
		}
	}
}
