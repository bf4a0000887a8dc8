package bench

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// policyJob is a measurement in another process, so that its memory is without that of the benchmark.
type policyJob struct {
	Namespace         string // of the network
	Policies, Remotes int
	// have the objects in tables of the datastore; made on demand if not, so that they are not kept
	Tables  bool
	Changes int
	// Attack is the policy that one tenant changes all the time; nil for no tenants.
	Attack *tenantPolicy
}

// policyResult are figures by name.
type policyResult map[string]float64

const policyJobVariable = "MANX_BENCH_POLICY_JOB"

// run does the job in another process.
func (j policyJob) run(tb testing.TB) policyResult {
	tb.Helper()
	text, _ := json.Marshal(j)
	out := tb.TempDir() + "/result"
	args := []string{"-test.run=^TestPolicyWorker$", "-test.count=1"}
	// such as -test.cpuprofile=FILE
	cmd := exec.Command(os.Args[0], append(args, strings.Fields(os.Getenv("WORKER_FLAGS"))...)...)
	cmd.Env = append(os.Environ(), policyJobVariable+"="+string(text), policyJobVariable+"_RESULT="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, text)
	}
	var r policyResult
	b, err := os.ReadFile(out)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestPolicyWorker is the other process.
func TestPolicyWorker(t *testing.T) {
	text := os.Getenv(policyJobVariable)
	if text == "" {
		t.Skip("the benchmarks of policy start it")
	}
	var j policyJob
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(j.work(t))
	if err := os.WriteFile(os.Getenv(policyJobVariable+"_RESULT"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// worker is a policy agent with its clock.
type worker struct {
	testing.TB
	job     policyJob
	rules   *countingRules
	tables  *datastore.Tables
	agent   *dataplane.PolicyAgent
	cluster cluster

	mu      sync.Mutex
	awaited string        // an interface
	there   chan struct{} // is closed when it has its rules in the kernel
}

// countingRules counts the requests to the kernel.
type countingRules struct {
	nftables.Rules
	transactions, comparisons int
	objects                   int // chains, sets and maps that were touched
	longest, longestCPU       time.Duration
}

func (r *countingRules) ReadRules() (*ruleset.Actual, error) {
	r.comparisons++
	return r.Rules.ReadRules()
}

func (r *countingRules) CommitRules(c ruleset.Changes) error {
	r.transactions++
	r.objects += len(c.Chains) + len(c.Sets) + len(c.Maps)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start, cpu := time.Now(), cpuTime(unix.RUSAGE_THREAD)
	err := r.Rules.CommitRules(c)
	r.longest, r.longestCPU = max(r.longest, time.Since(start)), max(r.longestCPU, cpuTime(unix.RUSAGE_THREAD)-cpu)
	return err
}

func (j policyJob) work(tb testing.TB) policyResult {
	debug.SetGCPercent(50) // as manxd sets it with this much in use
	debug.SetMemoryLimit(256 << 20)
	w := &worker{TB: tb, job: j, cluster: cluster{j.Policies, j.Remotes}}
	rules, err := nftables.Open("/run/netns/" + j.Namespace)
	if err != nil {
		tb.Fatal(err)
	}
	defer rules.Close()
	w.rules = &countingRules{Rules: rules}
	var reader model.Reader = w.cluster
	if j.Tables {
		w.tables = datastore.NewTables(zap.NewNop(), benchNode)
		for o := range w.cluster.all {
			w.tables.Apply(event(o.Key, o, 1))
		}
		w.tables.Apply(datastore.Event{Type: datastore.EventInSync, Revision: 1})
		reader = w.tables.Snapshot()
	}
	resetPeak()
	r := policyResult{"datastore-MB": statusMB(os.Getpid(), "VmRSS")}
	stop := w.start(r, "fresh", reader)
	resetPeak()
	r["rss-MB"] = statusMB(os.Getpid(), "VmRSS")
	if j.Changes > 0 {
		w.changes(r, j.Changes)
	}
	if j.Attack != nil {
		w.tenants(r, *j.Attack)
	}
	r["peak-MB"] = statusMB(os.Getpid(), "VmHWM")
	stop()
	w.agent = nil
	if j.Tables {
		reader = w.tables.Snapshot()
	}
	w.start(r, "restart", reader)()
	return r
}

// resetPeak collects garbage and sets the peak of memory back, so that making objects does not count.
func resetPeak() {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	debug.SetMemoryLimit(max(256<<20, 2*int64(m.HeapAlloc))) // as in manxd
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

// start runs an agent until the kernel has everything; before, it stops the one that ran.
func (w *worker) start(r policyResult, name string, reader model.Reader) (stop func()) {
	*w.rules = countingRules{Rules: w.rules.Rules}
	cpu0, t0 := ownCPU(), time.Now()
	w.agent = dataplane.NewPolicy(dataplane.PolicyConfig{Rules: w.rules, Logger: zap.NewNop(),
		Policy: policy.Config{Node: benchNode, Budget: policy.DefaultBudget}, Reached: w.reported})
	reached := w.agent.Reached()
	w.agent.SetState(dataplane.State{Reader: reader, All: true})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = w.agent.Run(ctx); close(done) }()
	select {
	case <-reached:
	case <-time.After(2 * time.Minute):
		w.Fatalf("%s: %+v", name, w.agent.Status())
	}
	r[name+"-ms"], r[name+"-cpu-ms"] = milliseconds(time.Since(t0)), milliseconds(ownCPU()-cpu0)
	r[name+"-transactions"] = float64(w.rules.transactions)
	return func() { cancel(); <-done }
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// ownCPU is the time that this process has run.
func ownCPU() time.Duration { return cpuTime(unix.RUSAGE_SELF) }

func cpuTime(who int) time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// stealTime is the time for which the host of this virtual machine ran something else while a processor here had work.
func stealTime() time.Duration {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks int
	if fields := strings.Fields(line); len(fields) > 8 {
		ticks, _ = strconv.Atoi(fields[8])
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}
