package overuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/proto/server"
)

const (
	// poll is the interval between looks at the number of connections, which cost some 20 microseconds.
	poll = time.Second
	// part bounds the part of the time that reading the table takes: one in so many.
	part = 10
	// fragmentsEvery is the interval between readings of the counters.
	fragmentsEvery = 10 * time.Second
	// recent is how long dropped fragments stay a notice.
	recent = time.Minute
)

// The variables of the kernel that have the size of the table of connections.
const (
	sysctlCount = "net/netfilter/nf_conntrack_count"
	sysctlMax   = "net/netfilter/nf_conntrack_max"
)

// Connections is the kernel's table of connections, as *conntrack.Conn.
type Connections interface {
	CountConnections(o conntrack.Owners, owners int) ([]conntrack.Usage, error)
	DeleteConnections(o conntrack.Owners, excess []conntrack.Usage) (int, error)
}

// Policy is this node's packet filter, as *dataplane.PolicyAgent.
type Policy interface {
	Workloads() []policy.LocalWorkload
	SetLimited(limits []policy.Limit)
	DroppedFragments() (map[string]uint64, error)
}

// Config has the parameters of a Watch.
type Config struct {
	Connections Connections
	// Sysctl returns a variable of the kernel; the error wraps fs.ErrNotExist if there is none.
	Sysctl func(name string) (string, error)
	Policy Policy
	// MaxConnections is how many connections a workload may have in each direction; 0: a quarter of the table; below 0:
	// any number.
	MaxConnections int
	// MaxFragments is how many fragments a workload may send a second, for notices.
	MaxFragments uint32
	Log          *zap.Logger
}

// Watch follows what workloads use. It is safe for concurrent use.
type Watch struct {
	Config
	now func() time.Time

	mu        sync.Mutex
	usage     usage             // as last read; of is empty before the table was
	names     map[string]string // of the workloads, by interface
	limited   map[policy.Limit]bool
	since     map[policy.Limit]time.Time // when each was limited
	full      time.Time                  // since when the table is nearly full; zero: it is not
	readAt    time.Time                  // the earliest time of the next reading
	failure   error                      // of the last reading
	fragments map[string]*fragments      // by interface, of workloads that sent too many
}

// fragments are those of a workload that were dropped.
type fragments struct {
	name        string
	counter     uint64 // of the rule
	total       uint64
	first, last time.Time // of the present series
}

// New returns a Watch; Run starts it.
func New(c Config) *Watch {
	return &Watch{Config: c, now: time.Now, limited: map[policy.Limit]bool{}, since: map[policy.Limit]time.Time{},
		names: map[string]string{}, fragments: map[string]*fragments{}}
}

// Run limits workloads until ctx ends. The limits stay in the kernel.
func (w *Watch) Run(ctx context.Context) error {
	var fragmentsAt time.Time
	for {
		if w.MaxConnections >= 0 {
			w.connections()
		}
		if now := w.now(); w.MaxFragments > 0 && !now.Before(fragmentsAt) {
			fragmentsAt = now.Add(fragmentsEvery)
			w.readFragments(now)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// connections reads the number of connections, and the table if that is due.
func (w *Watch) connections() {
	u, err := w.size()
	if errors.Is(err, fs.ErrNotExist) {
		return // connections are not tracked
	}
	began := w.now()
	w.mu.Lock()
	watched := err == nil && (u.watched(w.MaxConnections) || len(w.limited) > 0)
	due := watched && !began.Before(w.readAt)
	if watched {
		u.of = w.usage.of
	}
	if err == nil {
		w.usage = u
		switch {
		case !u.nearlyFull():
			w.full = time.Time{}
		case w.full.IsZero():
			w.full = began
		}
	}
	limited := w.limited
	w.mu.Unlock()
	if due {
		err = w.read(u, limited)
		w.mu.Lock()
		w.readAt = began.Add((part + 1) * w.now().Sub(began))
		w.mu.Unlock()
	}
	w.fail(err)
}

func (w *Watch) size() (u usage, err error) {
	for name, value := range map[string]*int{sysctlCount: &u.entries, sysctlMax: &u.most} {
		text, err := w.Sysctl(name)
		if err == nil {
			*value, err = strconv.Atoi(text)
		}
		if err != nil {
			return u, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return u, nil
}

// read reads the table, and limits the workloads that have too many connections.
func (w *Watch) read(u usage, limited map[policy.Limit]bool) error {
	workloads := w.Policy.Workloads()
	if len(workloads) == 0 {
		return nil // none, or not known yet: a reading would put off the one that counts
	}
	names, owners := map[string]string{}, conntrack.Owners{}
	for i, x := range workloads {
		names[x.Interface] = x.Key.Namespace + "/" + x.Key.Name
		for _, a := range x.Addresses {
			owners[a] = i
		}
	}
	counts, err := w.Connections.CountConnections(owners, len(workloads))
	if err != nil {
		return err
	}
	u.of = map[policy.Limit]int{}
	for i, x := range workloads {
		u.of[policy.Limit{Interface: x.Interface}] = counts[i].Begun
		u.of[policy.Limit{Interface: x.Interface, To: true}] = counts[i].Answered
	}
	now, excess := decide(u, w.MaxConnections, limited)
	if !maps.Equal(now, limited) {
		w.Policy.SetLimited(slices.SortedFunc(maps.Keys(now), compare))
	}
	w.take(u, names, now)
	if len(excess) == 0 {
		return nil
	}
	list := make([]conntrack.Usage, len(workloads))
	for i, x := range workloads {
		list[i] = conntrack.Usage{Begun: excess[policy.Limit{Interface: x.Interface}],
			Answered: excess[policy.Limit{Interface: x.Interface, To: true}]}
	}
	n, err := w.Connections.DeleteConnections(owners, list)
	w.Log.Warn("connections of workloads with too many were deleted, since the table is nearly full",
		zap.Int("deleted", n), zap.Error(err))
	return err
}

// take enters the result of a reading, and reports the changes.
func (w *Watch) take(u usage, names map[string]string, limited map[policy.Limit]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	share := u.share(w.MaxConnections)
	for l := range limited {
		if !w.limited[l] {
			w.since[l] = w.now()
			w.Log.Warn("a workload gets no new connections", zap.String("workload", names[l.Interface]),
				zap.Bool("of others", l.To), zap.Int("connections", u.of[l]), zap.Int("share", share))
		}
	}
	for l := range w.limited {
		if !limited[l] {
			delete(w.since, l)
			w.Log.Info("a workload gets new connections again", zap.String("workload", w.names[l.Interface]),
				zap.Bool("of others", l.To), zap.Int("connections", u.of[l]), zap.Int("share", share))
		}
	}
	w.usage, w.names, w.limited = u, names, limited
}

// fail logs an error once.
func (w *Watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.failure == nil {
		w.Log.Warn("the connections of workloads are not known, trying again", zap.Error(err))
	}
	w.failure = err
}

// readFragments reads how many fragments were dropped.
func (w *Watch) readFragments(now time.Time) {
	dropped, err := w.Policy.DroppedFragments()
	if err != nil {
		w.Log.Debug("dropped fragments are not known", zap.Error(err))
		return
	}
	names := map[string]string{}
	for _, x := range w.Policy.Workloads() {
		names[x.Interface] = x.Key.Namespace + "/" + x.Key.Name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for iface, n := range dropped {
		f := w.fragments[iface]
		if f == nil {
			f = &fragments{}
			w.fragments[iface] = f
		}
		if n < f.counter { // the rule is new
			f.counter = 0
		}
		if n == f.counter {
			continue
		}
		if now.Sub(f.last) > recent {
			f.first = now
			w.Log.Warn("fragments of a workload are dropped", zap.String("workload", names[iface]),
				zap.Uint64("dropped", n-f.counter))
		}
		f.name, f.last = names[iface], now
		f.total, f.counter = f.total+n-f.counter, n
	}
	maps.DeleteFunc(w.fragments, func(iface string, f *fragments) bool {
		_, there := dropped[iface]
		return !there || f.total == 0
	})
}

// Notices name the limited workloads, the workload with most connections while the table is nearly full, and the
// workloads that send too many fragments.
func (w *Watch) Notices() []server.Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []server.Notice
	add := func(subject string, since time.Time, format string, args ...any) {
		list = append(list, server.Notice{Topic: "dataplane", Subject: subject, Since: since,
			Text: fmt.Sprintf(format, args...)})
	}
	share := w.usage.share(w.MaxConnections)
	for _, l := range slices.SortedFunc(maps.Keys(w.limited), compare) {
		text := "it began %d connections that the kernel still has, and a workload may have %d: it can begin no new " +
			"ones until it has %d; see what it connects to"
		if l.To {
			text = "it has %d connections of others, and a workload may have %d: no new ones reach it until it has " +
				"%d; see who connects to it"
		}
		add(w.names[l.Interface], w.since[l], text+", or raise --workload-max-connections or "+
			"net.netfilter.nf_conntrack_max", w.usage.of[l], share, share/4*3)
	}
	if !w.full.IsZero() {
		who := "no workload of this node has any"
		if name, n := w.largest(); n > 0 {
			who = fmt.Sprintf("%s has most, %d", name, n)
		}
		add("connections", w.full, "the kernel's table of connections has %d of at most %d entries (%s); a full table "+
			"lets no new connection begin: raise net.netfilter.nf_conntrack_max, or end what makes them",
			w.usage.entries, w.usage.most, who)
	}
	for _, iface := range slices.Sorted(maps.Keys(w.fragments)) {
		if f := w.fragments[iface]; w.now().Sub(f.last) <= recent {
			add(f.name, f.first, "it sends more than %d IP fragments a second, and %d were dropped so far; have it "+
				"send smaller packets, or raise --workload-max-fragments", w.MaxFragments, f.total)
		}
	}
	return list
}

func (w *Watch) largest() (name string, n int) {
	for _, l := range slices.SortedFunc(maps.Keys(w.usage.of), compare) {
		if w.usage.of[l] > n {
			name, n = w.names[l.Interface], w.usage.of[l]
		}
	}
	return name, n
}

// compare orders limits by interface, those of the workload's own connections first.
func compare(a, b policy.Limit) int {
	return cmp.Or(strings.Compare(a.Interface, b.Interface), cmp.Compare(way(a), way(b)))
}

// way is the value of a limit's label in metrics.
func way(l policy.Limit) string {
	if l.To {
		return "to"
	}
	return "from"
}

var (
	metricEntries = prometheus.NewDesc("manx_conntrack_entries",
		"Connections in the kernel's table.", nil, nil)
	metricMost = prometheus.NewDesc("manx_conntrack_max_entries",
		"Connections that fit into the kernel's table.", nil, nil)
	metricConnections = prometheus.NewDesc("manx_workload_connections",
		"Connections that a workload began (from), or answers (to), if more than half of its share, while the table "+
			"is read.",
		[]string{"workload", "direction"}, nil)
	metricLimited = prometheus.NewDesc("manx_workloads_without_new_connections",
		"Workloads that have more connections than they may.", nil, nil)
	metricFragments = prometheus.NewDesc("manx_workload_dropped_fragments_total",
		"Fragments of each workload that sent more than it may.", []string{"workload"}, nil)
)

// Describe implements prometheus.Collector.
func (w *Watch) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricEntries, metricMost, metricConnections, metricLimited, metricFragments} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (w *Watch) Collect(out chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(metricLimited, len(w.limited))
	if w.usage.most > 0 {
		gauge(metricEntries, w.usage.entries)
		gauge(metricMost, w.usage.most)
	}
	named := map[string]bool{} // two interfaces may be of one workload for a moment
	for l, n := range w.usage.of {
		if name := w.names[l.Interface]; n > w.usage.share(w.MaxConnections)/2 && !named[name+way(l)] {
			named[name+way(l)] = true
			gauge(metricConnections, n, name, way(l))
		}
	}
	clear(named)
	for _, f := range w.fragments {
		if !named[f.name] {
			named[f.name] = true
			out <- prometheus.MustNewConstMetric(metricFragments, prometheus.CounterValue, float64(f.total), f.name)
		}
	}
}
