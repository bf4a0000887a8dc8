package dataplane

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
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

// fdbKernel is a kernel with a forwarding database.
type fdbKernel struct {
	*kerneltest.Kernel
	mu      sync.Mutex
	entries map[targettest.Key]netip.Addr
	refusal error // of each change
}

func (f *fdbKernel) Entries() (map[targettest.Key]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.entries), nil
}

func (f *fdbKernel) SetEntry(k targettest.Key, a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refusal == nil {
		f.entries[k] = a
	}
	return f.refusal
}

func (f *fdbKernel) RemoveEntry(k targettest.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refusal == nil {
		delete(f.entries, k)
	}
	return f.refusal
}

// addresses are the values of all entries.
func (f *fdbKernel) addresses() string {
	all, _ := f.Entries()
	var list []string
	for _, a := range all {
		list = append(list, a.String())
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (f *fdbKernel) refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusal = err
}

// extendedAgent is an agent with one target more, and its observed calls.
type extendedAgent struct {
	t     *testing.T
	fake  *fdbKernel
	agent *HostAgent
	logs  *observer.ObservedLogs
}

func newExtendedAgent(t *testing.T) *extendedAgent {
	core, logs := observer.New(zapcore.InfoLevel)
	fake := &fdbKernel{Kernel: kerneltest.New(), entries: map[targettest.Key]netip.Addr{}}
	r := &extendedAgent{t: t, fake: fake, logs: logs}
	fake.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 1500, Up: true, Running: true})
	fake.PutLink(kernel.Link{Index: 3, Name: "cali1", MTU: 1500, Up: true, Running: true})
	fake.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("10.1.0.5/24")})
	r.agent = New(Config{Kernel: fake, NodeName: "node-1", Logger: zap.New(core)})
	r.agent.targets = append(r.agent.targets, targettest.New(fake, "fdb0", time.Now)) // this is the one line
	start(t, r.agent)
	return r
}

func (r *extendedAgent) wait(addresses string) {
	r.t.Helper()
	waitFor(r.t, "the entries to be "+addresses, func() bool { return r.fake.addresses() == addresses })
}

// lines are those of the log about the target.
func (r *extendedAgent) lines(message string) []map[string]any {
	var list []map[string]any
	for _, e := range r.logs.FilterMessage(message).All() {
		if m := e.ContextMap(); m["target"] == "fdb" {
			list = append(list, m)
		}
	}
	return list
}

func (r *extendedAgent) health() reconcile.Health {
	r.agent.Agent.mu.Lock()
	defer r.agent.Agent.mu.Unlock()
	list := r.agent.health()
	return list[slices.IndexFunc(list, func(h reconcile.Health) bool { return h.Part == "fdb" })]
}

func (r *extendedAgent) retry() Retried {
	r.t.Helper()
	list, err := r.agent.Retry(r.t.Context())
	if err != nil || len(list) != 5 || list[0].Part != "routes" || list[4].Part != "fdb" {
		r.t.Fatalf("%+v, %v", list, err)
	}
	return list[4]
}

func nodes(names ...string) model.Set {
	set := model.NewSet(nodeObject("node-1", "10.1.0.5/24", ""), endpointObject("a", "node-1", "cali1",
		"10.244.1.7/32"))
	for i, name := range names {
		o := nodeObject(name, netip.AddrFrom4([4]byte{10, 1, 1, byte(i + 1)}).String()+"/24", "")
		set[o.Key] = o
	}
	return set
}

// A target is its own folder and one line in a list. Its agent configures it from the state, has changes by other
// programs corrected after an event of the kernel and after a resync, and reports the objects and the repairs.
func TestATargetMore(t *testing.T) {
	r := newExtendedAgent(t)
	r.agent.set(nodes("node-2"))
	waitFor(t, "the agent to hear of it", r.agent.inbox.empty)
	device := kernel.Link{Index: 4, Name: "fdb0", MTU: 1450, Up: true, Running: true}
	r.fake.PutLink(device)
	r.wait("10.1.1.1")
	r.agent.set(nodes("node-2", "node-3"), model.ResourceKey(model.KindNode, "node-3")) // it concerns no other target
	r.wait("10.1.1.1 10.1.1.2")

	all, _ := r.fake.Entries()
	corrupt := func() {
		for k := range all {
			_ = r.fake.SetEntry(k, netip.MustParseAddr("192.0.2.1"))
		}
	}
	corrupt()
	r.agent.Resync()
	r.wait("10.1.1.1 10.1.1.2")
	corrupt()
	device.MTU = 1400
	r.fake.PutLink(device)
	r.wait("10.1.1.1 10.1.1.2")
	const repaired = "repaired what another program had changed"
	waitFor(t, "the repairs in the log", func() bool { return len(r.lines(repaired)) == 4 })
	for _, l := range r.lines(repaired) {
		if !strings.HasPrefix(l["key"].(string), "fdb fdb0 66:") || l["found"] != "192.0.2.1" {
			t.Errorf("the line is %v", l)
		}
	}
	rows := r.agent.Objects("fdb")
	for _, x := range rows {
		if x.Target != "fdb" || !strings.HasPrefix(x.Key, "fdb fdb0 66:") || x.Phase != reconcile.Applied ||
			x.Desired != x.Actual || x.Since.IsZero() {
			t.Errorf("%+v", x)
		}
	}
	if counts := r.agent.ObjectCounts()["fdb"]; len(rows) != 2 || counts[reconcile.Applied] != 2 {
		t.Errorf("%+v, %v", rows, counts)
	}
	if h := r.health(); h != (reconcile.Health{Part: "fdb"}) {
		t.Errorf("%+v", h)
	}
	r.agent.synced(true, true)
	r.agent.set(nodes("node-2"), model.ResourceKey(model.KindNode, "node-3"))
	r.wait("10.1.1.1")
}

// A failure of a target is reported with its reason, retried, and does not affect other targets.
func TestATargetThatFails(t *testing.T) {
	r := newExtendedAgent(t)
	r.fake.refuse(errors.New("no room"))
	r.fake.PutLink(kernel.Link{Index: 4, Name: "fdb0", MTU: 1450, Up: true, Running: true})
	r.agent.set(nodes("node-2"))
	waitFor(t, "the failure", func() bool { return r.health().Failures == 1 })
	if p := r.health().Problem; p == nil || !strings.Contains(p.Error(), "no room") {
		t.Errorf("the problem is %v", p)
	}
	if n := r.agent.Status().Notices; len(n) != 1 || !strings.HasPrefix(n[0].Subject, "fdb fdb0 66:") ||
		n[0].Text != "no room" || n[0].Since.IsZero() {
		t.Errorf("notices are %+v", n)
	}
	if got := r.retry(); got.Failed != 1 || got.Failing != 1 || !strings.Contains(got.Reason, "no room") {
		t.Errorf("tried again while it cannot succeed: %+v", got)
	}
	p := netip.MustParsePrefix("10.244.1.7/32")
	waitFor(t, "the route of the workload", func() bool {
		x, _ := r.agent.Route(p)
		return x.Phase == reconcile.Applied
	})
	if lines := r.lines("the kernel is not as it should be, trying again"); len(lines) != 1 ||
		!strings.Contains(lines[0]["reason"].(string), "no room") {
		t.Errorf("the failure is logged as %v", lines)
	}
	r.fake.refuse(nil)
	r.wait("10.1.1.1") // without another event
	waitFor(t, "the end of the failure in the log", func() bool {
		return len(r.lines("the kernel is as it should be")) == 1
	})
	if n := r.agent.Status().Notices; len(n) > 0 {
		t.Errorf("notices are left: %+v", n)
	}
	if got := r.retry(); got != (Retried{Part: "fdb"}) {
		t.Errorf("tried again with success: %+v", got)
	}
}
