package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// daemon is a manxd for tests: it receives reports on the control socket and writes status files on demand.
type daemon struct {
	manxv1.UnimplementedManxServer
	h *host

	mu      sync.Mutex
	reports []*manxv1.ReportPolicyWaitRequest
}

func (d *daemon) ReportPolicyWait(
	_ context.Context, r *manxv1.ReportPolicyWaitRequest,
) (*manxv1.ReportPolicyWaitResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reports = append(d.reports, r)
	return &manxv1.ReportPolicyWaitResponse{}, nil
}

// take returns the reports since the last call.
func (d *daemon) take() []*manxv1.ReportPolicyWaitRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.reports
	d.reports = nil
	return list
}

func (h *host) daemon() *daemon {
	h.t.Helper()
	d := &daemon{h: h}
	l, err := net.Listen("unix", h.conf["manxd_socket"].(string))
	h.must(err)
	g := grpc.NewServer()
	manxv1.RegisterManxServer(g, d)
	go func() { _ = g.Serve(l) }()
	h.whole.Cleanup(g.Stop)
	return d
}

// writeStatus writes the file of an endpoint.
func (h *host) writeStatus(key model.Key, content string) {
	name, err := endpointstatus.FileName(key)
	if err == nil {
		err = os.MkdirAll(h.statusDir(), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(h.statusDir(), name), []byte(content), 0o644)
	}
	if err != nil {
		h.t.Error(err)
	}
}

func (h *host) statusDir() string { return h.conf["endpoint_status_dir"].(string) }

func statusOf(e *model.WorkloadEndpoint) string {
	s := endpointstatus.Status{IfaceName: e.Spec.InterfaceName, MAC: e.Spec.MAC, IPv4Nets: e.Spec.IPNetworks}
	text, _ := json.Marshal(s)
	return string(text)
}

// follow calls do for each new endpoint until the test ends, as an agent that watches the datastore does.
func (h *host) follow(do func(key model.Key, e *model.WorkloadEndpoint)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		seen := map[string]bool{}
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			list, _, err := h.store.List(ctx, model.KindWorkloadEndpoint, "")
			if err != nil {
				continue
			}
			for _, o := range list {
				if e, _ := o.Value.(*model.WorkloadEndpoint); e != nil && !seen[e.Spec.ContainerID] {
					seen[e.Spec.ContainerID] = true
					do(o.Key, e)
				}
			}
		}
	})
	stop = func() { cancel(); done.Wait() }
	h.whole.Cleanup(stop)
	return stop
}

func TestAddReturnsOnceTheAgentIsDone(t *testing.T) {
	h := newHost(t)
	d := h.daemon()
	h.conf["policy_setup_timeout_seconds"] = 60
	const args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"
	var written time.Time
	stop := h.follow(func(key model.Key, e *model.WorkloadEndpoint) {
		h.writeStatus(key, `{"ifaceName":"cali`) // not yet complete
		time.Sleep(500 * time.Millisecond)       // the plugin must not use the incomplete file
		written = time.Now()
		h.writeStatus(key, statusOf(e))
	})
	p := h.pod(args).mustAdd()
	returned := time.Now()
	stop()
	if written.IsZero() || returned.Before(written) {
		t.Errorf("ADD returned at %s, the agent was done at %s", returned, written)
	}
	if r := d.take(); len(r) != 1 || r[0].TimedOut || r[0].Endpoint != "shop/node--1-k8s-web--0-eth0" ||
		r[0].WaitedMs < 50 {
		t.Errorf("reports are %v", r)
	}

	// A repeated ADD finds the file.
	p.mustAdd()
	if r := d.take(); len(r) != 1 || r[0].TimedOut {
		t.Errorf("reports are %v", r)
	}

	// The pod is restarted before the agent has seen the end of the old container: the file describes the old one.
	statusWritten := make(chan struct{})
	stop = h.follow(func(key model.Key, e *model.WorkloadEndpoint) {
		if e.Spec.ContainerID == p.id {
			return
		}
		time.Sleep(50 * time.Millisecond) // an agent is slow: the plugin has to wait for it
		close(statusWritten)
		h.writeStatus(key, statusOf(e))
	})
	renewed := h.pod(args).mustAdd()
	select {
	case <-statusWritten:
	default:
		t.Error("ADD of a new container was content with the old one's file")
	}
	stop()
	h.must(p.del())
	h.must(renewed.del())
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// After the start of a host there is no table, and all packets of a container would pass.
func TestNoContainerStartsBeforePolicy(t *testing.T) {
	h := newHost(t)
	namespace.Require(t, "nft")
	p := h.pod("").mustAdd() // a configuration without the key is Calico's, or that of a manxd without policy
	h.must(p.del())
	h.conf["require_policy_table"] = true
	plugin := h.direct()
	call := func(do func(*skel.CmdArgs) error) error {
		return h.inNamespace(func() error { return do(p.cmdArgs()) })
	}
	refused := func(when, why string) {
		t.Helper()
		for command, do := range map[string]func(*skel.CmdArgs) error{"ADD": plugin.funcs(false).Add,
			"STATUS": plugin.funcs(false).Status} {
			var coded *types.Error
			if err := call(do); !errors.As(err, &coded) || coded.Code != types.ErrTryAgainLater ||
				!strings.Contains(err.Error(), why) {
				t.Errorf("%s: %s ends with %v, want code 11 and %q", when, command, err, why)
			}
		}
		if left := h.leftovers(); left != "" {
			t.Errorf("%s: left behind:\n%s", when, left)
		}
	}
	refused("without a table", "no table inet manx")
	h.ip("netns", "exec", h.name, "nft", "add table ip manx; add table inet other")
	refused("beside other tables", "no table inet manx")
	h.ip("netns", "exec", h.name, "nft", "add table inet manx { flags dormant; }")
	refused("with a dormant table", "dormant")
	h.must(call(plugin.funcs(false).Del)) // needs no policy
	h.ip("netns", "exec", h.name, "nft", "add table inet manx")
	h.must(call(plugin.funcs(false).Status))
	p.mustAdd()
	h.must(p.del())
}

// An agent that writes files is waited for, and a manxd that has not made their folder yet.
func TestWhoReports(t *testing.T) {
	dir := t.TempDir()
	c := &cni.Config{EndpointStatusDir: filepath.Join(dir, "endpoint-status"), ManxdSocket: filepath.Join(dir, "sock")}
	if agentReports(c) {
		t.Error("neither a folder nor manxd is there")
	}
	l, err := net.Listen("unix", c.ManxdSocket)
	if err != nil {
		t.Fatal(err)
	}
	if !agentReports(c) {
		t.Error("manxd is not found")
	}
	_ = l.Close()
	if err := os.Mkdir(c.EndpointStatusDir, 0o755); err != nil || !agentReports(c) {
		t.Errorf("the folder is not found: %v", err)
	}
}

func TestAnAgentThatSaysNothingDoesNotFailAdd(t *testing.T) {
	h := newHost(t)
	d := h.daemon()
	h.conf["policy_setup_timeout_seconds"] = 1
	log := filepath.Join(h.dir, "log", "cni.log")
	h.conf["log_file_path"] = log
	p := h.pod("").mustAdd()
	h.must(p.check())
	if r := d.take(); len(r) != 1 || !r[0].TimedOut || r[0].WaitedMs < 1000 {
		t.Errorf("reports are %v", r)
	}
	if content, _ := os.ReadFile(log); !strings.Contains(string(content), `"level":"warn"`) ||
		!strings.Contains(string(content), "policy and routes are not in the kernel yet") {
		t.Errorf("there is no warning: %s", content)
	}
	h.must(p.del())
}
