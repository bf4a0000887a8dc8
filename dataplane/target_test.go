package dataplane

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/targettest"
	"github.com/manxnet/manx/datastore/model"
)

// extendedAgent is an agent with one target more, and its observed calls.
type extendedAgent struct {
	t     *testing.T
	fake  *kerneltest.Kernel
	agent *HostAgent
	logs  *observer.ObservedLogs
	path  string
}

func newExtendedAgent(t *testing.T) *extendedAgent {
	core, logs := observer.New(zapcore.InfoLevel)
	r := &extendedAgent{t: t, fake: kerneltest.New(), logs: logs, path: filepath.Join(t.TempDir(), "folder", "roster")}
	if err := os.Mkdir(filepath.Dir(r.path), 0o755); err != nil {
		t.Fatal(err)
	}
	r.fake.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 1500, Up: true, Running: true})
	r.fake.PutLink(kernel.Link{Index: 3, Name: "cali1", MTU: 1500, Up: true, Running: true})
	r.fake.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("10.1.0.5/24")})
	r.agent = New(Config{Kernel: r.fake, NodeName: "node-1", Logger: zap.New(core)})
	r.agent.targets = append(r.agent.targets, targettest.New(r.path, time.Now)) // this is the one line
	start(t, r.agent)
	return r
}

func (r *extendedAgent) content() string {
	text, _ := os.ReadFile(r.path)
	return string(text)
}

func (r *extendedAgent) wait(content string) {
	r.t.Helper()
	waitFor(r.t, "the file to be "+content, func() bool { return r.content() == content })
}

func (r *extendedAgent) corrupt() {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte("forged\n"), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// lines are those of the log about the roster.
func (r *extendedAgent) lines(message string) []map[string]any {
	var list []map[string]any
	for _, e := range r.logs.FilterMessage(message).All() {
		if m := e.ContextMap(); m["target"] == "roster" {
			list = append(list, m)
		}
	}
	return list
}

func (r *extendedAgent) health() reconcile.Health {
	r.agent.Agent.mu.Lock()
	defer r.agent.Agent.mu.Unlock()
	list := r.agent.health()
	return list[slices.IndexFunc(list, func(h reconcile.Health) bool { return h.Part == "roster" })]
}

func (r *extendedAgent) retry() Retried {
	r.t.Helper()
	list, err := r.agent.Retry(r.t.Context())
	if err != nil || len(list) != 5 || list[0].Part != "routes" || list[4].Part != "roster" {
		r.t.Fatalf("%+v, %v", list, err)
	}
	return list[4]
}

// A target is its own folder and one line in a list. Its agent configures it from the state, has changes by other
// programs corrected after an event of the kernel and after a resync, and reports the repairs.
func TestATargetMore(t *testing.T) {
	r := newExtendedAgent(t)
	one := endpointObject("a", "node-1", "cali1", "10.244.1.7/32")
	two := endpointObject("b", "node-1", "cali2", "10.244.1.8/32")
	objects := model.NewSet(nodeObject("node-1", "10.1.0.5/24", ""), one,
		endpointObject("c", "node-2", "cali3", "10.244.2.7/32"))
	r.agent.Resync()
	waitFor(t, "the agent to hear of it", r.agent.inbox.empty)
	if r.content() != "" {
		t.Fatal("something is written before there is a state")
	}
	r.agent.set(objects)
	r.wait("default/a cali1\n")
	objects = model.NewSet(objects[model.ResourceKey(model.KindNode, "node-1")], one, two)
	r.agent.set(objects, two.Key)
	r.wait("default/a cali1\ndefault/b cali2\n")

	r.corrupt()
	r.agent.Resync()
	r.wait("default/a cali1\ndefault/b cali2\n")
	r.corrupt()
	r.fake.PutLink(kernel.Link{Index: 4, Name: "cali2", MTU: 1500, Up: true, Running: true})
	r.wait("default/a cali1\ndefault/b cali2\n")
	const repaired = "repaired what another program had changed"
	waitFor(t, "two repairs in the log", func() bool { return len(r.lines(repaired)) == 2 })
	for _, l := range r.lines(repaired) {
		if l["key"] != r.path || l["found"] != "forged\n" || l["wanted"] != "default/a cali1\ndefault/b cali2\n" {
			t.Errorf("the line is %v", l)
		}
	}
	if h := r.health(); h != (reconcile.Health{Part: "roster"}) {
		t.Errorf("%+v", h)
	}
}

// A failure of a target is reported with its reason, retried, and does not affect other targets.
func TestATargetThatFails(t *testing.T) {
	r := newExtendedAgent(t)
	folder := filepath.Dir(r.path)
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.agent.set(model.NewSet(nodeObject("node-1", "10.1.0.5/24", ""),
		endpointObject("a", "node-1", "cali1", "10.244.1.7/32")))
	waitFor(t, "the failure", func() bool { return r.health().Failures == 1 })
	if p := r.health().Problem; p == nil || !strings.Contains(p.Error(), "not a directory") {
		t.Errorf("the problem is %v", p)
	}
	if n := r.agent.Status().Notices; len(n) != 1 || n[0].Subject != r.path ||
		!strings.Contains(n[0].Text, "not a directory") || n[0].Since.IsZero() {
		t.Errorf("notices are %+v", n)
	}
	if got := r.retry(); got.Failed != 1 || got.Failing != 1 || !strings.Contains(got.Reason, "not a directory") {
		t.Errorf("tried again while it cannot succeed: %+v", got)
	}
	p := netip.MustParsePrefix("10.244.1.7/32")
	waitFor(t, "the route of the workload", func() bool {
		x, _ := r.agent.Route(p)
		return x.Phase == reconcile.Applied
	})
	if lines := r.lines("the kernel is not as it should be, trying again"); len(lines) != 1 ||
		!strings.Contains(lines[0]["reason"].(string), "not a directory") {
		t.Errorf("the failure is logged as %v", lines)
	}
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	r.wait("default/a cali1\n") // without another event
	waitFor(t, "the end of the failure in the log", func() bool {
		return len(r.lines("the kernel is as it should be")) == 1
	})
	if n := r.agent.Status().Notices; len(n) > 0 {
		t.Errorf("notices are left: %+v", n)
	}
	if got := r.retry(); got != (Retried{Part: "roster"}) {
		t.Errorf("tried again with success: %+v", got)
	}
}
