package ipam

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
)

// The proof: 16 allocators, each in its own process, on one etcd. They assign and release, some 1,000 times in total,
// in two pools that are too small for them. So they borrow and reclaim each other's addresses, and they are killed at
// random points. Each reports the beginning and the end of each operation. From these reports the test computes the
// owner of each address.

const (
	workers        = 16
	operationsEach = 60
	proofHosts     = 6
)

const workerEnv = "MANX_IPAM_PROOF_WORKER"

// TestMain turns the process into an allocator if the test started it as one.
func TestMain(m *testing.M) {
	if task := os.Getenv(workerEnv); task != "" {
		if err := work(task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// task is the work of a worker process.
type task struct {
	Etcd       etcd.Config
	Worker     string // unique for each process
	Host       string
	Operations int
	Seed       uint64
	Live       map[string][]netip.Addr // the addresses of its predecessor when that was killed
}

// report is one line that a worker writes: before an operation (without Done) and after it.
type report struct {
	Done    bool
	Op      string // assign, release
	Handle  string
	Addrs   []netip.Addr
	Refused string // why nothing was assigned
	Fault   string // the violations
}

// work returns a worker process.
func work(text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	store, err := etcd.Open(context.Background(), t.Etcd, zap.NewNop())
	if err != nil {
		return err
	}
	defer store.Close()
	w := &worker{task: t, alloc: New(store, nil, nil), rng: rand.New(rand.NewPCG(t.Seed, 1))}
	if w.Live == nil {
		w.Live = map[string][]netip.Addr{}
	}
	for i := range t.Operations {
		w.step(i)
	}
	return nil
}

type worker struct {
	task
	alloc *Allocator
	rng   *rand.Rand
}

func (w *worker) report(r report) {
	line, _ := json.Marshal(r)
	os.Stdout.Write(append(line, '\n'))
}

func (w *worker) step(i int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if w.rng.IntN(25) == 0 {
		// This is none of the counted operations: hosts are added and removed.
		if err := w.alloc.ReleaseHostAffinities(ctx, Host(w.Host), w.rng.IntN(2) == 0); err != nil &&
			!errors.Is(err, ErrNotEmpty) {
			w.report(report{Fault: "give up blocks: " + err.Error()})
		}
	}
	if len(w.Live) > 0 && w.rng.IntN(10) < 3+len(w.Live) {
		w.release(ctx)
		return
	}
	w.assign(ctx, fmt.Sprintf("%s.%d", w.Worker, i))
}

func (w *worker) assign(ctx context.Context, handle string) {
	r := report{Op: "assign", Handle: handle}
	w.report(r)
	r.Done = true
	attrs := map[string]string{"node": w.Host, "timestamp": time.Now().UTC().String()}
	var err error
	if w.rng.IntN(6) == 0 {
		addr := netip.AddrFrom4([4]byte{10, 7, 0, byte(w.rng.IntN(128))})
		if err = w.alloc.AssignIP(ctx, AddressRequest{Address: addr, Host: w.Host, Handle: handle,
			Attrs: attrs}); err == nil {
			r.Addrs = []netip.Addr{addr}
		}
	} else {
		var got Result
		got, err = w.alloc.AutoAssign(ctx, Request{Host: w.Host, Handle: handle, Attrs: attrs, Num4: 1 + w.rng.IntN(2),
			Num6: w.rng.IntN(2), Use: workload})
		for _, p := range append(got.V4.Addresses, got.V6.Addresses...) {
			r.Addrs = append(r.Addrs, p.Addr())
		}
		if err == nil {
			err = got.Short()
		}
	}
	if err != nil {
		r.Refused = err.Error()
		if !isShort(err) && !errors.Is(err, ErrAssigned) && !errors.Is(err, errBlockLimit) {
			r.Fault = r.Refused
		}
	}
	if len(r.Addrs) > 0 {
		w.Live[handle] = r.Addrs
	}
	w.report(r)
}

func (w *worker) release(ctx context.Context) {
	handles := make([]string, 0, len(w.Live))
	for h := range w.Live {
		handles = append(handles, h)
	}
	slices.Sort(handles)
	handle := handles[w.rng.IntN(len(handles))]
	r := report{Op: "release", Handle: handle, Addrs: w.Live[handle]}
	w.report(r)
	r.Done = true
	var released []netip.Addr
	var err error
	if w.rng.IntN(2) == 0 {
		released, err = w.alloc.ReleaseByHandle(ctx, handle)
	} else {
		var list []Release
		for _, addr := range r.Addrs {
			list = append(list, Release{Address: addr, Handle: handle})
		}
		var result Released
		result, err = w.alloc.ReleaseIPs(ctx, list...)
		released = result.Addresses
	}
	slices.SortFunc(released, netip.Addr.Compare)
	want := slices.Clone(r.Addrs)
	slices.SortFunc(want, netip.Addr.Compare)
	if err != nil || !slices.Equal(released, want) {
		r.Fault = fmt.Sprintf("released %v of %v: %v", released, want, err)
	}
	delete(w.Live, handle)
	w.report(r)
}

// ledger is the state that follows from the reports.
type ledger struct {
	mu        sync.Mutex
	live      map[string][]netip.Addr // assigned, and not begun to be released
	uncertain map[string]bool         // a process was killed during an operation on the handle
	assigned  int
	released  int
	refused   int
	kills     int
}

func TestSixteenAllocatorsKilledAtRandom(t *testing.T) {
	server := etcdtest.Start(t)
	store := server.Store(t)
	create(t, store, poolObject("four", "10.7.0.0/25", 28), poolObject("six", "fd00:7::/121", 124))
	for i := range proofHosts {
		create(t, store, nodeObject(fmt.Sprintf("host-%d", i)))
	}
	l := &ledger{live: map[string][]netip.Addr{}, uncertain: map[string]bool{}}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() { l.runWorker(t, i, server.Config()) })
	}
	all.Wait()
	t.Logf("%d assignments, %d of them refused, %d releases, %d processes killed", l.assigned, l.refused, l.released,
		l.kills)
	if t.Failed() {
		return
	}
	if l.assigned+l.released < workers*operationsEach || l.kills < workers {
		t.Errorf("%d operations and %d kills are no proof", l.assigned+l.released, l.kills)
	}
	l.check(t, readState(t, store))
	releaseEverything(t, store, nil)
}

// runWorker performs the operations of one worker, in as many processes as its kills make necessary.
func (l *ledger) runWorker(t *testing.T, number int, config etcd.Config) {
	rng := rand.New(rand.NewPCG(uint64(number), uint64(time.Now().UnixNano())))
	live := map[string][]netip.Addr{}
	for done, life := 0, 0; done < operationsEach && !t.Failed(); life++ {
		n := operationsEach - done
		kill := -1
		if n > 10 {
			kill = rng.IntN(70) // the number of lines after which the process is killed
		}
		done += l.runProcess(t, task{
			Etcd: config, Worker: fmt.Sprintf("w%d.%d", number, life), Host: fmt.Sprintf("host-%d", number%proofHosts),
			Operations: n, Seed: rng.Uint64(), Live: live,
		}, kill, time.Duration(rng.IntN(8_000))*time.Microsecond)
	}
}

// runProcess runs one worker process and returns how many operations it began. live is kept up to date. If kill is not
// negative the process is killed with SIGKILL some time after that many lines.
func (l *ledger) runProcess(t *testing.T, w task, kill int, delay time.Duration) (begun int) {
	text, err := json.Marshal(w)
	if err != nil {
		t.Error(err)
		return operationsEach
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Errorf("worker %s: %v", w.Worker, err)
		return operationsEach
	}
	var last report
	lines := 0
	for scan := bufio.NewScanner(out); scan.Scan(); lines++ {
		if lines == kill {
			time.AfterFunc(delay, func() { cmd.Process.Kill() })
		}
		var r report
		if err := json.Unmarshal(scan.Bytes(), &r); err != nil {
			continue // cut off by the kill
		}
		if last = r; r.Op != "" && !r.Done {
			begun++
		}
		l.record(t, w, r)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() == -1: // killed
		l.killed(w, last)
	default:
		t.Errorf("worker %s: %v: %s", w.Worker, err, stderr.String())
	}
	return begun
}

func (l *ledger) record(t *testing.T, w task, r report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Fault != "" {
		t.Errorf("worker %s: %s %s: %s", w.Worker, r.Op, r.Handle, r.Fault)
	}
	switch {
	case r.Op == "release" && !r.Done:
		delete(l.live, r.Handle)
		delete(w.Live, r.Handle)
	case r.Op == "release":
		l.released++
	case r.Op == "assign" && r.Done:
		l.assigned++
		if r.Refused != "" {
			l.refused++
		}
		if len(r.Addrs) > 0 {
			l.live[r.Handle], w.Live[r.Handle] = r.Addrs, r.Addrs
		}
	}
}

// killed records that the result of an operation is unknown.
func (l *ledger) killed(w task, last report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kills++
	if last.Op == "" || last.Done {
		return
	}
	l.uncertain[last.Handle] = true
	if last.Op == "assign" {
		l.assigned++
	} else {
		l.released++
	}
}

func (l *ledger) check(t *testing.T, s ipamState) {
	s.checkHandles(t, func(handle string) bool { return l.uncertain[handle] })
	s.checkAffinities(t)
	count := map[netip.Addr]string{}
	for handle, addrs := range l.live {
		for _, addr := range addrs {
			if other, twice := count[addr]; twice {
				t.Errorf("%s was assigned twice: to %s and to %s", addr, other, handle)
			}
			count[addr] = handle
			if s.owner[addr] != handle {
				t.Errorf("%s was assigned to %s, and the block has it as %q", addr, handle, s.owner[addr])
			}
		}
	}
	for addr, handle := range s.owner {
		if count[addr] == "" && !l.uncertain[handle] {
			t.Errorf("%s is assigned to %s, which is not in use any more", addr, handle)
		}
	}
}

var _ Store = (*etcd.Store)(nil)
