package pathmtu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

const (
	// probesPerSecond bounds the packets that this host sends, whatever the size of the cluster.
	probesPerSecond = 20
	timeout         = time.Second
	// atOnce is how many paths are measured at a time, and batch after how many the results are used.
	atOnce, batch = 8, 32
	// every is the time between two measurements of a path, with a tenth more or less. A node that does not answer is
	// probed again after retryFirst, and after twice the time each further time.
	every, retryFirst = time.Hour, 5 * time.Minute
	// settle is how long a changed route has before its path is measured.
	settle = 2 * time.Second
)

// Prober sends one host a packet of size bytes, and reports whether it answers.
type Prober interface {
	Probe(ctx context.Context, size int, timeout time.Duration) (bool, error)
	Close() error
}

// Config has the parameters of a Target.
type Config struct {
	// Open makes a Prober from an address of this host to another host; nil: nothing is measured.
	Open func(from, to netip.Addr) (Prober, error)
	// Way returns how packets get to a host, by the routes of others.
	Way func(netip.Addr) route.Way
	// Devices returns the devices of the node's overlays with the MTUs that they have.
	Devices func() []overlay.Device
	// Changed is called with the sizes of the largest packets that get to other nodes, by address, where they are
	// smaller than the interface takes. The map is not changed any more.
	Changed func(map[netip.Addr]int)
	Loop    *reconcile.Loop
	Now     func() time.Time
}

// Target measures the paths. Not safe for concurrent use.
type Target struct {
	config  Config
	host    *hoststate.Host
	own     map[model.Family]netip.Addr
	at      map[nodeFamily]netip.Addr // of the nodes with a path
	paths   map[netip.Addr]*path
	fresh   []netip.Addr // of paths whose way was never determined
	stale   bool         // all ways may differ
	next    time.Time    // no path is due before
	differs bool         // sizes may, from those that were passed on
	passed  map[netip.Addr]int
	limiter *rate.Limiter
	ctx     context.Context
	close   func()
	busy    bool // a batch is being measured

	mu      sync.Mutex // guards the field below
	results []result
}

type nodeFamily struct {
	node   string
	family model.Family
}

// path is the way to the address of another node.
type path struct {
	nodes    []string // that have the address, sorted
	from     netip.Addr
	way      route.Way
	due      time.Time
	mtu      int       // 0: not known
	measured route.Way // whose MTU it is
	err      error     // why the last measurement has no result
	fails    int       // in a row, on the present way
	since    time.Time
}

// size is that of the largest packet that gets there, 0 if it is not known. The way may be another one than the
// measured one.
func (p *path) size() int {
	if p.way.MTU == 0 {
		return p.mtu
	}
	return min(p.mtu, p.way.MTU)
}

type result struct {
	to  netip.Addr
	way route.Way // that was measured
	mtu int
	err error
}

// New makes a Target.
func New(c Config) *Target {
	t := &Target{config: c, own: map[model.Family]netip.Addr{}, at: map[nodeFamily]netip.Addr{},
		paths: map[netip.Addr]*path{}, limiter: rate.NewLimiter(probesPerSecond, 1)}
	t.ctx, t.close = context.WithCancel(context.Background())
	return t
}

// Close ends what is under way.
func (t *Target) Close() { t.close() }

// Name implements dataplane.Target.
func (*Target) Name() string { return "path-mtu" }

// SetState follows the addresses of the nodes.
func (t *Target) SetState(h *hoststate.Host) {
	t.host = h
	if t.config.Open == nil || h.PolicyOnly {
		return
	}
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		own := h.BGPSpec().Address(f).Addr()
		switch {
		case own != t.own[f] || h.VTEPsChanged && h.VTEPsOf == nil:
			t.own[f] = own
			t.followAll(f)
		case h.VTEPsChanged:
			for _, node := range h.VTEPsOf {
				t.follow(nodeFamily{node, f})
			}
		}
	}
}

func (t *Target) followAll(f model.Family) {
	for k := range t.at {
		if k.family == f {
			t.follow(k)
		}
	}
	for node := range t.host.VTEPs(f).Nodes() {
		t.follow(nodeFamily{node, f})
	}
}

// follow takes over the address of a node.
func (t *Target) follow(k nodeFamily) {
	own, a := t.own[k.family], t.host.VTEPs(k.family).Address(k.node)
	if k.node == t.host.Node || a == own || !own.IsValid() || !probeable(a) {
		a = netip.Addr{}
	}
	if was := t.at[k]; was != a {
		t.leave(k, was)
		t.join(k, a)
	}
	if p := t.paths[a]; p != nil {
		p.from = own
	}
}

func (t *Target) leave(k nodeFamily, a netip.Addr) {
	delete(t.at, k)
	p := t.paths[a]
	if p == nil {
		return
	}
	if p.nodes = slices.DeleteFunc(p.nodes, func(n string) bool { return n == k.node }); len(p.nodes) == 0 {
		delete(t.paths, a)
		t.differs = true
	}
}

func (t *Target) join(k nodeFamily, a netip.Addr) {
	if !a.IsValid() {
		return
	}
	t.at[k] = a
	p := t.paths[a]
	if p == nil {
		p = &path{due: t.config.Now().Add(rand.N(settle)), since: t.config.Now()}
		t.paths[a], t.fresh = p, append(t.fresh, a)
	}
	i, _ := slices.BinarySearch(p.nodes, k.node)
	p.nodes = slices.Insert(p.nodes, i, k.node)
}

// probeable reports whether a host may be probed that is said to be a node: it is one host, somewhere else, and none
// that the network has for other purposes, such as the metadata service of a cloud.
func probeable(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.Is4In6() && a.Zone() == "" }

// RoutesChanged has the ways determined again.
func (t *Target) RoutesChanged() { t.stale = t.config.Open != nil }

// Handle implements dataplane.Target: RoutesChanged reports what matters.
func (*Target) Handle([]kernel.Event) {}

// Resync implements dataplane.Target.
func (t *Target) Resync() { t.RoutesChanged() }

// Retry measures all paths again.
func (t *Target) Retry() {
	t.next = time.Time{}
	for _, p := range t.paths {
		p.due = t.config.Now()
	}
}

// Flush takes over results, and begins to measure the paths whose time has come.
func (t *Target) Flush() (steps, failures int, err error) {
	t.takeResults()
	t.followWays()
	t.pass()
	if !t.busy && !t.config.Now().Before(t.next) {
		t.begin()
	}
	return 0, 0, nil
}

// maxFails is after how many measurements without an answer a size is forgotten that is of another way.
const maxFails = 2

func (t *Target) takeResults() {
	t.mu.Lock()
	list := t.results
	t.results = nil
	t.mu.Unlock()
	if list != nil {
		t.busy, t.next = false, time.Time{}
	}
	for _, r := range list {
		p := t.paths[r.to]
		if p == nil || !p.way.Equal(r.way) {
			continue // due again
		}
		now := t.config.Now()
		if p.err = r.err; r.err != nil { // the last size stays, if it is of this way
			p.due = now.Add(min(retryFirst<<min(p.fails, 10), every))
			p.fails++
			if p.fails >= maxFails && p.mtu > 0 && !p.way.Equal(p.measured) {
				p.mtu, p.since, t.differs = 0, now, true
			}
			continue
		}
		p.fails, p.due, p.measured = 0, now.Add(every*9/10+rand.N(every/5)), r.way
		if p.mtu != r.mtu {
			p.mtu, p.since, t.differs = r.mtu, now, true
		}
	}
}

// followWays determines the ways that may differ.
func (t *Target) followWays() {
	if t.stale {
		for a, p := range t.paths {
			t.followWay(a, p)
		}
	} else {
		for _, a := range t.fresh {
			if p := t.paths[a]; p != nil {
				t.followWay(a, p)
			}
		}
	}
	t.stale, t.fresh = false, nil
}

// followWay measures soon if the way is another one.
func (t *Target) followWay(a netip.Addr, p *path) {
	way := t.config.Way(a)
	if way.Equal(p.way) {
		return
	}
	if at := t.config.Now().Add(settle + rand.N(settle)); p.way.MTU > 0 || p.due.After(at) {
		p.due = at
	}
	p.way, p.fails = way, 0
	t.differs = t.differs || p.mtu > 0
	if p.due.Before(t.next) {
		t.next = p.due
	}
}

// pass passes on the sizes that are smaller than an interface takes, if they have changed.
func (t *Target) pass() {
	if !t.differs {
		return
	}
	t.differs = false
	list := map[netip.Addr]int{}
	for a, p := range t.paths {
		if size := p.size(); size > 0 && size < p.way.Link {
			list[a] = size
		}
	}
	if !maps.Equal(list, t.passed) {
		t.passed = list
		t.config.Changed(list)
	}
}

// begin measures the paths that have waited longest, beside the loop.
func (t *Target) begin() {
	type job struct {
		from netip.Addr
		result
	}
	var jobs []job
	now := t.config.Now()
	t.next = now.Add(every)
	for a, p := range t.paths {
		switch {
		case p.way.MTU == 0:
		case !p.due.After(now):
			jobs = append(jobs, job{p.from, result{to: a, way: p.way}})
		case p.due.Before(t.next):
			t.next = p.due
		}
	}
	if len(jobs) == 0 {
		return
	}
	slices.SortFunc(jobs, func(a, b job) int { return t.paths[a.to].due.Compare(t.paths[b.to].due) })
	jobs = jobs[:min(len(jobs), batch)]
	t.busy = true
	t.config.Loop.Go(func() {
		var group errgroup.Group
		group.SetLimit(atOnce)
		for i := range jobs {
			group.Go(func() error {
				j := &jobs[i]
				j.mtu, j.err = t.ask(j.from, j.to, j.way.MTU)
				return nil
			})
		}
		_ = group.Wait()
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, j := range jobs {
			t.results = append(t.results, j.result)
		}
	})
}

func (t *Target) ask(from, to netip.Addr, limit int) (int, error) {
	p, err := t.config.Open(from, to)
	if err != nil {
		return 0, err
	}
	defer p.Close() //nolint:errcheck // nothing is written to it
	return measure(limit, func(size int) (bool, error) {
		if err := t.limiter.Wait(t.ctx); err != nil {
			return false, err
		}
		return p.Probe(t.ctx, size, timeout)
	})
}

// Next returns how long the next measurement has time.
func (t *Target) Next() time.Duration {
	if t.busy {
		return every // its end wakes the agent
	}
	return max(t.next.Sub(t.config.Now()), time.Millisecond)
}

// Health implements dataplane.Target: a path is not this host's to repair.
func (*Target) Health() reconcile.Health { return reconcile.Health{} }

// Repairs implements dataplane.Target.
func (*Target) Repairs() ([]reconcile.Repair, int) { return nil, 0 }

// need is the size of the largest packets to a node, and what to do where they do not get through.
type need struct {
	size      int
	text, fix string
}

// needs returns that of packets to a node with an address, of which packets of path bytes get there.
func (t *Target) needs(a netip.Addr, w route.Way, path int) (n need) {
	family := model.IPv4
	if a.Is6() {
		family = model.IPv6
	}
	for _, d := range t.config.Devices() {
		if size := d.MTU + d.Overhead; d.Family == family && size > n.size {
			n = need{size, fmt.Sprintf("those of %s have up to %d, with an MTU of %d and headers of %d", d.Name, size,
				d.MTU, d.Overhead), fmt.Sprintf("set %s to %d", d.MTUName, path-d.Overhead)}
		}
	}
	if n.size > 0 {
		return n
	}
	mtu := overlay.PodMTU(&t.host.Felix, t.host.PoolTable(), w.MTU)
	return need{mtu, fmt.Sprintf("those of pods have up to %d", mtu),
		fmt.Sprintf("set the MTU of the interfaces between the nodes to %d", path)}
}

// verdict returns why packets to a node do not all get there, empty if they do or it is not known.
func (t *Target) verdict(a netip.Addr, p *path) string {
	size := p.size()
	if size == 0 {
		return ""
	}
	n := t.needs(a, p.way, size)
	if size >= n.size {
		return ""
	}
	return fmt.Sprintf("packets of up to %d bytes get there, and %s. Routes to it have a smaller MTU meanwhile. "+
		"Have the network carry %d bytes, or %s", size, n.text, n.size, n.fix)
}

// mostNotices bounds the nodes that have a notice of their own.
const mostNotices = 10

// Notices returns one for each node that not all packets reach, and one if nothing can be measured.
func (t *Target) Notices() (list []reconcile.Notice) {
	var unable error
	more := 0
	for _, a := range t.addresses() {
		p := t.paths[a]
		if errors.As(p.err, new(UnableError)) {
			unable = p.err
		}
		text := t.verdict(a, p)
		switch {
		case text == "":
		case len(list) == mostNotices:
			more++
		default:
			list = append(list, reconcile.Notice{Subject: fmt.Sprintf("path to node %s (%s)", p.nodes[0], a),
				Text: text, Since: p.since})
		}
	}
	if more > 0 {
		list = append(list, reconcile.Notice{Subject: "paths to nodes", Text: fmt.Sprintf("%d further nodes cannot be "+
			"reached with all packets (manxctl get hostobjects path-mtu)", more)})
	}
	if unable != nil {
		list = append(list, reconcile.Notice{Subject: "paths to nodes", Text: unable.Error()})
	}
	return list
}

// UnableError is why this host cannot measure any path.
type UnableError struct{ Err error }

// Error implements error.
func (e UnableError) Error() string {
	return fmt.Sprintf("what gets to the other nodes cannot be measured: %v", e.Err)
}

// Unwrap returns the reason.
func (e UnableError) Unwrap() error { return e.Err }

// addresses returns those of the paths, by the names of their nodes.
func (t *Target) addresses() []netip.Addr {
	return slices.SortedFunc(maps.Keys(t.paths), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(t.paths[a].nodes[0], t.paths[b].nodes[0]), a.Compare(b))
	})
}

// Rows returns the paths: desired is the largest packet that is sent, actual what gets there.
func (t *Target) Rows() []reconcile.Row {
	var rows []reconcile.Row
	for _, a := range t.addresses() {
		p := t.paths[a]
		r := reconcile.Row{Key: fmt.Sprintf("%s %s", p.nodes[0], a), Status: reconcile.Status{Phase: t.phase(a, p),
			Reason: t.verdict(a, p), Since: p.since}}
		if p.way.MTU > 0 {
			r.Desired = fmt.Sprint(t.needs(a, p.way, p.size()).size)
		}
		if p.mtu > 0 {
			r.Actual = fmt.Sprint(p.size())
		}
		if r.Reason == "" && p.err != nil {
			r.Reason = p.err.Error()
		}
		rows = append(rows, r)
	}
	return rows
}

// phase is Blocked where packets are lost, and Pending where it is not known.
func (t *Target) phase(a netip.Addr, p *path) reconcile.Phase {
	switch {
	case p.mtu == 0:
		return reconcile.Pending
	case t.verdict(a, p) != "":
		return reconcile.Blocked
	}
	return reconcile.Applied
}

// Counts returns how many paths are in each phase.
func (t *Target) Counts() map[reconcile.Phase]int {
	counts := map[reconcile.Phase]int{}
	for a, p := range t.paths {
		counts[t.phase(a, p)]++
	}
	return counts
}
