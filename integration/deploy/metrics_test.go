package deploy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

const alerts = "../../deploy/prometheus/alerts.yaml"

// Each alert fires in its condition and not on a healthy node.
func TestAlerts(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("no promtool (Debian package prometheus):", err)
	}
	for _, args := range [][]string{{"check", "rules", alerts},
		{"test", "rules", "../../deploy/prometheus/alerts_test.yaml"}} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Annotations struct {
				Summary, Description string
				Runbook              string `json:"runbook_url"`
			}
		}
	}
}

func readAlerts(t *testing.T) (r rules) {
	t.Helper()
	text, err := os.ReadFile(alerts)
	if err == nil {
		err = yaml.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var command = regexp.MustCompile("`manxctl ([a-z ]+)")

// Each alert is tested, and names an existing command of manxctl and its section of the runbook.
func TestAlertsNameCommands(t *testing.T) {
	tests, err := os.ReadFile("../../deploy/prometheus/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			if !bytes.Contains(tests, []byte("alertname: "+r.Alert+"\n")) {
				t.Errorf("%s has no test", r.Alert)
			}
			if _, section, _ := strings.Cut(r.Annotations.Runbook, "/docs/runbook.md#"); section != strings.ToLower(
				r.Alert) || !bytes.Contains(runbook, []byte("\n### "+r.Alert+"\n")) {
				t.Errorf("%s names %q, which is no section of the runbook", r.Alert, r.Annotations.Runbook)
			}
			found := command.FindAllStringSubmatch(r.Annotations.Description, -1)
			if len(found) == 0 {
				t.Errorf("%s names no command of manxctl", r.Alert)
			}
			for _, f := range found {
				words := strings.Fields(f[1])
				out, err := exec.Command(program(t, "manxctl"), append(words, "--help")...).CombinedOutput()
				if err != nil || !strings.Contains(string(out), "manxctl "+words[0]) {
					t.Errorf("%s: manxctl %s: %v", r.Alert, f[1], err)
				}
			}
		}
	}
}

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/" + name)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skip("run `make build`:", err)
	}
	return path
}

// scrape runs a real manxd with a peer, an endpoint and a route, as in a container, and lets it crash once. It returns
// the metrics that Prometheus would read then.
func scrape(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("manxd needs root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "run", "manxd.sock")
	var log bytes.Buffer
	d := exec.Command(program(t, "manx-supervise"), program(t, "manxd"), "--data-dir", filepath.Join(dir, "data"),
		"--run-dir", filepath.Join(dir, "run"),
		"--nodename-file", filepath.Join(dir, "nodename"), "--mtu-file", filepath.Join(dir, "mtu"),
		"--endpoint-status-path-prefix", filepath.Join(dir, "status"), "--node-name", "n1", "--ip", "10.9.0.1/24",
		"--http-listen", "127.0.0.1:19099", "--gobgp-listen=", "--controllers=on")
	d.Stdout, d.Stderr = &log, &log
	// A new network namespace: manxd must not change the network of this host.
	d.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = d.Process.Signal(unix.SIGTERM)
		_ = d.Wait()
	}()
	inside := func(stdin string, args ...string) (string, error) {
		cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(d.Process.Pid), "-n"}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	// In another process: the threads of this one are in the host's network namespace.
	fetchInside := func(path string) (string, error) {
		return inside("", os.Args[0], "-test.run=^TestFetch$", "http://127.0.0.1:19099"+path)
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", "10.9.0.1/24", "dev", "lo"}} {
		if out, err := inside("", append([]string{"ip"}, args...)...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	await := func(what string, f func() bool) {
		for end := time.Now().Add(time.Minute); !f(); time.Sleep(200 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s does not come\n%s", what, log.String())
			}
		}
	}
	await("the first objects", func() bool {
		_, err := inside(objects, program(t, "manxctl"), "--socket", socket, "apply", "-f", "-")
		return err == nil
	})
	// Go prints the goroutines, and ends by SIGABRT.
	if err := unix.Kill(child(t, d.Process.Pid), unix.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	var text string
	await("a restart in the metrics", func() bool {
		text, _ = fetchInside("/metrics")
		return strings.Contains(text, "\nmanx_restarts_total 1\n") &&
			strings.Contains(text, "\nmanx_last_restart_timestamp_seconds{reason=\"SIGABRT\"} ")
	})
	await("a route and a session in the metrics", func() bool {
		text, _ = fetchInside("/metrics")
		return strings.Contains(text, "\nmanx_routes{") && strings.Contains(text, "\nmanx_bgp_session_bfd_up{") &&
			strings.Contains(text, "\nmanx_bgp_session_last_error_timestamp_seconds{")
	})
	status, _ := inside("", program(t, "manxctl"), "--socket", socket, "status")
	if !strings.Contains(status, "ended unexpectedly (SIGABRT) and was started again in its container, for the 1st") {
		t.Errorf("no notice of the restart:\n%s", status)
	}
	if err := d.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.Wait(); err != nil {
		t.Errorf("the end after SIGTERM: %v", err)
	}
	for _, line := range []string{`"logger":"supervise","msg":"manxd ended unexpectedly and is started again","reason":` +
		`"SIGABRT","restarts":1`, `"msg":"started again after an unexpected end","restarts":1,"reason":"SIGABRT"`,
		`"msg":"ended; routes, devices and addresses stay in place"`} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log has no %s:\n%s", line, log.String())
		}
	}
	return text
}

// child returns the ID of the one child of a process.
func child(t *testing.T, parent int) (pid int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestFetch is no test: it prints the content at the URL in its last argument.
func TestFetch(t *testing.T) {
	url := os.Args[len(os.Args)-1]
	if !strings.HasPrefix(url, "http://") {
		return
	}
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(os.Stdout, resp.Body)
}

const objects = `
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: tor, annotations: {manx.io/max-prefixes: "100", manx.io/bfd: "true"}}
spec: {peerIP: 10.9.0.2, asNumber: 65001}
---
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-cni-c1-eth0, namespace: default}
spec: {orchestrator: cni, node: n1, containerID: c1, endpoint: eth0, interfaceName: cali123, ipNetworks: [192.168.0.5/32]}
`

var metric = regexp.MustCompile(`\b(manx|go|process)_[a-z0-9_]+\b`)

// later are series that exist only after the first event.
var later = []string{"manx_bgp_rejected_routes", "manx_bgp_session_bfd_dropped_packets_total",
	"manx_cni_request_seconds_bucket", "manx_cni_request_seconds_count", "manx_ipam_problems",
	"manx_kubernetes_requests_total", "manx_policy_rule_packets_total", "manx_wireguard_encrypted",
	"manx_wireguard_handshake_age_seconds", "manx_wireguard_sent_bytes_total"}

// manxd exports all metrics in alerts and dashboards, but those of IPAM, which the API's leader has.
func TestMetricsExist(t *testing.T) {
	exported := map[string]bool{}
	for line := range strings.Lines(scrape(t)) {
		var name, kind string
		if n, _ := fmt.Sscanf(line, "# TYPE %s %s", &name, &kind); n == 2 {
			exported[name] = true
			if kind == "histogram" {
				exported[name+"_bucket"], exported[name+"_sum"], exported[name+"_count"] = true, true, true
			}
		}
	}
	dashboards, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(dashboards) < 3 {
		t.Errorf("dashboards: %v, %v", dashboards, err)
	}
	for _, file := range append(dashboards, alerts) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, name := range metric.FindAllString(string(text), -1) {
			seen++
			if !exported[name] && !slices.Contains(later, name) {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
		if seen == 0 {
			t.Errorf("%s has no metric", file)
		}
	}
}
