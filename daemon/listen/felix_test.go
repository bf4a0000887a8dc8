package listen

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/ports"
	"github.com/manxnet/manx/proto/server"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// felixRig has the part in a process of its own, with a datastore whose FelixConfiguration a test changes.
type felixRig struct {
	*testing.T
	tables   *datastore.Tables
	control  *server.Server
	revision int64
	client   *http.Client
}

func newFelixRig(t *testing.T, httpListen string) *felixRig {
	r := &felixRig{T: t, tables: datastore.NewTables(zap.NewNop(), "n1"),
		control: server.New(server.Config{Node: "n1", Log: zap.NewNop()}),
		client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}} //nolint:gosec // the test's own certificate
	r.control.Datastore.Show(server.DatastoreSource{Tables: r.tables})
	p := NewFelix(deps.Deps{Tables: r.tables, Log: zap.NewNop(), Node: deps.Node{Name: "n1"},
		Control: r.control}, httpListen)
	group := part.NewGroup(zap.NewNop(), p)
	group.Show(r.control)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- group.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// store replaces FelixConfiguration/default, and adds objects.
func (r *felixRig) store(spec model.FelixConfigurationSpec, further ...*model.Object) {
	f := &model.FelixConfiguration{Spec: spec}
	f.Name = "default"
	r.revision++
	var events []datastore.Event
	for _, o := range append(further, model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), f)) {
		o.Revision = r.revision
		events = append(events, datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o,
			Revision: r.revision})
	}
	r.tables.Apply(append(events, datastore.Event{Type: datastore.EventInSync, Revision: r.revision})...)
}

// get returns the body of an answer, empty for none.
func (r *felixRig) get(url string) string {
	answer, err := r.client.Get(url)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}

func (r *felixRig) notices() string {
	var lines []string
	for _, n := range r.control.Notices() {
		lines = append(lines, n.Subject+": "+n.Text)
	}
	return strings.Join(lines, "\n")
}

func (r *felixRig) await(what string, condition func() bool) {
	r.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%s; notices: %s", what, r.notices())
		}
	}
}

// Metrics are served where FelixConfiguration says, move with its port, and end with the setting.
func TestMetricsOfFelixFollowTheSettings(t *testing.T) {
	r := newFelixRig(t, "127.0.0.1:9099")
	address := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	first, second := int(ports.Free(t, "127.0.0.1")), int(ports.Free(t, "127.0.0.1"))
	yes, no := true, false
	var spec model.FelixConfigurationSpec
	spec.PrometheusMetricsEnabled, spec.PrometheusMetricsHost, spec.PrometheusMetricsPort = &yes, "127.0.0.1", &first
	endpoint := func(name, node string) *model.Object {
		e := &v3.HostEndpoint{Spec: v3.HostEndpointSpec{Node: node, InterfaceName: "eth0"}}
		e.Name = name
		return model.NewObject(model.ResourceKey(model.KindHostEndpoint, name), e)
	}
	node := &model.Node{}
	node.Name = "n1"
	r.store(spec, endpoint("a", "n1"), endpoint("b", "n2"),
		model.NewObject(model.ResourceKey(model.KindNode, "n1"), node))
	var text string
	r.await("no metrics", func() bool {
		text = r.get("http://" + address(first) + "/metrics")
		return strings.Contains(text, "felix_")
	})
	for _, want := range []string{"felix_cluster_num_host_endpoints 2", "felix_cluster_num_hosts 1",
		"felix_active_local_endpoints 1", "felix_resync_state 3", "felix_resyncs_started 1",
		"# TYPE felix_resyncs_started counter", "manx_datastore_in_sync 1"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "felix_active_local_policies ") || strings.Contains(text, "felix_cluster_num_tiers ") {
		t.Errorf("there are figures that nobody knows:\n%s", text)
	}
	if got := r.get("http://" + address(first) + "/readiness"); !strings.Contains(got, "404") {
		t.Errorf("the listener for metrics answers about health: %q", got)
	}
	spec.PrometheusMetricsPort = &second
	r.store(spec)
	r.await("the port does not change", func() bool {
		return r.get("http://"+address(first)+"/metrics") == "" &&
			strings.Contains(r.get("http://"+address(second)+"/metrics"), "felix_resync_state")
	})
	spec.PrometheusMetricsEnabled = &no
	r.store(spec)
	r.await("the listener stays", func() bool { return r.get("http://"+address(second)+"/metrics") == "" })
}

// Profiles are served at localhost while a port for them is set, and elsewhere only if debugHost says so.
func TestProfilesOfFelix(t *testing.T) {
	r := newFelixRig(t, "127.0.0.1:9099")
	port, other, anyway := int(ports.Free(t, "127.0.0.1")), "127.0.0.2", "0.0.0.0"
	var spec model.FelixConfigurationSpec
	spec.DebugPort = &port
	at := func(host, path string) string {
		return r.get(fmt.Sprintf("http://%s:%d/debug/pprof/%s", host, port, path))
	}
	served := func(host string) bool { return strings.Contains(at(host, "goroutine?debug=1"), "goroutine profile: ") }
	r.store(spec)
	r.await("no profiles", func() bool { return served("localhost") })
	if served(other) {
		t.Error("profiles are served at other addresses than localhost")
	}
	if got := at("localhost", "cmdline"); !strings.Contains(got, "not found") {
		t.Errorf("the arguments of the process are served: %q", got)
	}
	spec.DebugHost = &anyway
	r.store(spec)
	r.await("no profiles at the address of debugHost", func() bool { return served(other) })
	r.store(model.FelixConfigurationSpec{})
	r.await("profiles are served without the setting", func() bool { return at("localhost", "") == "" })
}

// A port that is taken is a notice, and served when it is free. Health is served at an address of its own.
func TestTakenPortAndHealth(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := newFelixRig(t, "127.0.0.1:9099")
	yes, taken, free := true, other.Addr().(*net.TCPAddr).Port, int(ports.Free(t, "127.0.0.1"))
	var spec model.FelixConfigurationSpec
	spec.PrometheusMetricsEnabled, spec.PrometheusMetricsHost, spec.PrometheusMetricsPort = &yes, "127.0.0.1", &taken
	spec.HealthEnabled, spec.HealthPort = &yes, &free
	r.store(spec)
	want := fmt.Sprintf("prometheusMetricsEnabled at 127.0.0.1:%d: not served until the port is free: another process "+
		"listens on it", taken)
	r.await("no notice", func() bool { return r.notices() == want })
	r.await("no health", func() bool {
		return strings.Contains(r.get(fmt.Sprintf("http://127.0.0.1:%d/liveness", free)), "ok")
	})
	if got := r.get(fmt.Sprintf("http://127.0.0.1:%d/metrics", free)); !strings.Contains(got, "404") {
		t.Errorf("the listener for health has metrics: %.80q", got)
	}
	other.Close()
	r.await("the port is free, and not served", func() bool {
		return r.notices() == "" && r.get(fmt.Sprintf("http://127.0.0.1:%d/metrics", taken)) != ""
	})
}

// With files for TLS, metrics are served by HTTPS alone. Bad ones are a notice, and nothing is served.
func TestMetricsOfFelixByTLS(t *testing.T) {
	r := newFelixRig(t, "127.0.0.1:9099")
	yes, port, dir := true, int(ports.Free(t, "127.0.0.1")), t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	url := fmt.Sprintf("://127.0.0.1:%d/metrics", port)
	var spec model.FelixConfigurationSpec
	spec.PrometheusMetricsEnabled, spec.PrometheusMetricsHost, spec.PrometheusMetricsPort = &yes, "127.0.0.1", &port
	spec.PrometheusMetricsCertFile, spec.PrometheusMetricsKeyFile = &cert, &key
	writeCertificate(t, cert, key)
	r.store(spec)
	r.await("no HTTPS", func() bool { return strings.Contains(r.get("https"+url), "felix_resync_state") })
	if got := r.get("http" + url); strings.Contains(got, "felix_") {
		t.Errorf("plain HTTP answers: %.80q", got)
	}
	if err := os.WriteFile(cert, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.get("https" + url); got != "" {
		t.Errorf("an answer with a bad certificate: %.80q", got)
	}
	r.await("no notice", func() bool { return strings.Contains(r.notices(), "not served, tried again: tls: ") })
	if got := r.get("http" + url); got != "" {
		t.Errorf("plain HTTP answers: %.80q", got)
	}
	for _, c := range []struct {
		files tlsFiles
		want  string
	}{
		{tlsFiles{cert: cert}, "needs prometheusMetricsCertFile and prometheusMetricsKeyFile"},
		{tlsFiles{clientAuth: "RequireAnyClientCert"}, "needs prometheusMetricsCertFile and prometheusMetricsKeyFile"},
		{tlsFiles{cert: cert, key: dir + "/missing"}, "no such file"},
	} {
		if _, err := c.files.config(); !c.files.wanted() || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: wanted %t, error %v, want %q", c.files, c.files.wanted(), err, c.want)
		}
	}
	writeCertificate(t, cert, key)
	verify := tlsFiles{cert: cert, key: key, clientAuth: "requireandverifyclientcert"}
	if _, err := verify.config(); err == nil || !strings.Contains(err.Error(), "needs prometheusMetricsCAFile") {
		t.Errorf("the system's authorities count: %v", err)
	}
	verify.ca = cert
	if c, err := verify.config(); err != nil || c.ClientAuth != tls.RequireAndVerifyClientCert || c.ClientCAs == nil {
		t.Errorf("%+v, %v", c, err)
	}
	verify.clientAuth = "Perhaps"
	if _, err := verify.config(); err == nil {
		t.Error("an unknown word is taken")
	}
	if (tlsFiles{clientAuth: "NoClientCert"}).wanted() {
		t.Error("the default of Felix wants TLS")
	}
}

// writeCertificate writes a new certificate that signs itself.
func writeCertificate(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The default address of health, and one that --http-listen serves, need no listener of their own.
func TestListenersThatFelixWants(t *testing.T) {
	for _, c := range []struct {
		local, http string
		want        string // SETTING ADDRESS, for each listener
	}{
		{"", "127.0.0.1:9099", ""},
		{"HEALTHENABLED=true", "127.0.0.1:9099", ""},
		{"HEALTHENABLED=true", "127.0.0.1:19099", ""},
		{"HEALTHENABLED=true HEALTHHOST=localhost", "127.0.0.1:9099", ""},
		{"HEALTHENABLED=true HEALTHPORT=9099", "0.0.0.0:9099", ""},
		{"HEALTHENABLED=true HEALTHPORT=9099", "127.0.0.1:19099", "healthEnabled localhost:9099"},
		{"HEALTHENABLED=true HEALTHPORT=9099", "", "healthEnabled localhost:9099"},
		{"HEALTHENABLED=true HEALTHHOST=::1", "0.0.0.0:9099", "healthEnabled [::1]:9099"},
		{"HEALTHENABLED=true HEALTHHOST=0.0.0.0", "127.0.0.1:9099", "healthEnabled 0.0.0.0:9099"},
		{"HEALTHENABLED=false HEALTHPORT=9098", "127.0.0.1:9099", ""},
		{"PROMETHEUSMETRICSENABLED=true", "127.0.0.1:9099", "prometheusMetricsEnabled :9091"},
		{"PROMETHEUSMETRICSENABLED=true PROMETHEUSGOMETRICSENABLED=false PROMETHEUSPROCESSMETRICSENABLED=no",
			"127.0.0.1:9099", "prometheusMetricsEnabled :9091 without go_ process_"},
	} {
		var environment, got []string
		for variable := range strings.FieldsSeq(c.local) {
			environment = append(environment, "FELIX_"+variable)
		}
		spec := felixconfig.NewLocal(environment, "", "").Spec
		for _, l := range wantedListeners(&spec, c.http) {
			got = append(got, l.setting+" "+l.address)
			if p := l.without(); len(p) > 0 {
				got = append(got, "without "+strings.Join(p, " "))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q with --http-listen=%s: %q, want %q", c.local, c.http, got, c.want)
		}
	}
	f := &felixListeners{http: "127.0.0.1:9099"}
	err := f.port(felixListener{setting: healthSetting, address: "0.0.0.0:9099"}).Open()
	if err == nil || !strings.Contains(err.Error(), "--http-listen=127.0.0.1:9099 has that port") {
		t.Errorf("error %v", err)
	}
}

// The paths come from the datastore: a device without end, a pipe without writer and a folder are errors at once.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, unix.Mkfifo(pipe, 0o600))
	for _, path := range []string{"/dev/zero", pipe, t.TempDir()} {
		if _, err := readRegular(path); err == nil {
			t.Errorf("%s is read", path)
		}
	}
}
