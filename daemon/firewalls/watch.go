package firewalls

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/proto/server"
)

const (
	// poll is the interval between comparisons of the generation of nftables, which costs some 20 microseconds.
	poll = time.Second
	// again is the interval between evaluations without a change of nftables: the packets of the node change, too.
	again = time.Minute
	// share bounds the part of the time that reading and evaluating take: one in so many. No pause is longer than
	// longest, on a busy machine either.
	share   = 20
	longest = 30 * time.Second
	// fresh is the age up to which Tables returns rules that have been read before.
	fresh = time.Second
)

// page tells the reader of a notice what to do.
const page = "manxd leaves rules of other programs as they are; docs/firewalls.md shows the remedies"

// Kernel has the calls of *nftables.Conn that a Watch uses.
type Kernel interface {
	Generation() (uint32, error)
	ReadOthers(interfaceName func(uint32) string) ([]*hostfirewall.Table, error)
}

// Config has the parameters of a Watch.
type Config struct {
	Kernel Kernel
	// InterfaceName returns the name of an interface, empty if there is none.
	InterfaceName func(index uint32) string
	// Packets returns the packets of this node.
	Packets func() hostfirewall.Host
	// Legacy are the files with the names of the tables of iptables' older backend, in /proc/net.
	Legacy []string
	Log    *zap.Logger
}

// Watch follows the rules of other programs. It is safe for concurrent use.
type Watch struct {
	Config

	reading sync.Mutex // one read at a time
	tables  []*hostfirewall.Table
	// generation of nftables that tables are of; 0: none has been read.
	generation uint32
	readAt     time.Time

	mu      sync.Mutex
	found   []finding
	legacy  []string // tables of the older backend
	failure error    // of the last read
	failed  time.Time
}

type finding struct {
	hostfirewall.Finding
	since time.Time
}

// New returns a Watch; Run starts it.
func New(c Config) *Watch { return &Watch{Config: c} }

// Run looks for rules that drop packets, until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	var evaluated time.Time
	var of uint32 // the generation that was evaluated; Tables may have read a later one
	var last error
	for {
		began := time.Now()
		_, generation, err := w.read(false)
		if generation != of || err != nil || last != nil || began.Sub(evaluated) > again {
			w.evaluate(err)
			evaluated, of = began, generation
		}
		last = err
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(max(poll, share*time.Since(began)), longest)):
		}
	}
}

// Tables returns the tables of other programs, at most a second old.
func (w *Watch) Tables() ([]*hostfirewall.Table, error) {
	tables, _, err := w.read(true)
	return tables, err
}

// read returns the tables and their generation, after reading them again if nftables has changed; with settle, unless
// they are fresh.
func (w *Watch) read(settle bool) (tables []*hostfirewall.Table, generation uint32, err error) {
	w.reading.Lock()
	defer w.reading.Unlock()
	if generation, err = w.Kernel.Generation(); err != nil {
		return nil, 0, err
	}
	if w.generation != 0 && (generation == w.generation || settle && time.Since(w.readAt) < fresh) {
		return w.tables, w.generation, nil
	}
	if tables, err = w.Kernel.ReadOthers(w.InterfaceName); err != nil {
		return nil, 0, err
	}
	w.tables, w.generation, w.readAt = tables, generation, time.Now()
	return tables, generation, nil
}

// evaluate finds the chains that drop packets of this node.
func (w *Watch) evaluate(failure error) {
	w.reading.Lock()
	tables := w.tables
	w.reading.Unlock()
	found := hostfirewall.Find(tables, w.Packets())
	legacy := legacyTables(w.Legacy)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(failure)
	w.legacy = legacy
	if failure == nil {
		w.set(found)
	}
}

// fail records why the rules cannot be read. A kernel without nf_tables has none.
func (w *Watch) fail(err error) {
	if errors.Is(err, nftables.ErrMissing) {
		err = nil
	}
	if err != nil && w.failure == nil {
		w.failed = time.Now()
		w.Log.Warn("the rules of other programs cannot be read, trying again", zap.Error(err))
	}
	w.failure = err
}

// set replaces the findings, and logs the differences.
func (w *Watch) set(found []hostfirewall.Finding) {
	before := w.found
	w.found = nil
	same := func(f hostfirewall.Finding) func(finding) bool {
		return func(x finding) bool { return x.Subject() == f.Subject() && x.By == f.By && x.Certain == f.Certain }
	}
	for _, f := range found {
		x := finding{f, time.Now()}
		if i := slices.IndexFunc(before, same(f)); i >= 0 {
			x.since = before[i].since
		} else {
			w.Log.Warn("rules of another program "+f.String(), zap.String("table", f.Table),
				zap.String("chain", f.Chain))
		}
		w.found = append(w.found, x)
	}
	for _, f := range before {
		if !slices.ContainsFunc(w.found, same(f.Finding)) {
			w.Log.Info("rules of another program do not drop packets any more", zap.String("table", f.Table),
				zap.String("chain", f.Chain), zap.String("by", f.By))
		}
	}
}

// legacyTables lists the tables of iptables' older backend that filter packets, "ip filter" for instance. A file that
// cannot be read has none: it belongs to root, and is there only if the backend is.
func legacyTables(files []string) (list []string) {
	for i, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, name := range strings.Fields(string(content)) {
			if name == "filter" {
				list = append(list, []string{"ip ", "ip6 "}[i%2]+name)
			}
		}
	}
	return list
}

// Notices implements server.Noticer.
func (w *Watch) Notices() (list []server.Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.found {
		list = append(list, server.Notice{Topic: "dataplane", Subject: f.Subject(), Since: f.since,
			Text: f.String() + "; " + page})
	}
	for _, t := range w.legacy {
		program := "iptables-legacy"
		if strings.HasPrefix(t, "ip6") {
			program = "ip6tables-legacy"
		}
		list = append(list, server.Notice{Topic: "dataplane", Subject: "legacy table " + t, Text: fmt.Sprintf(
			"the older backend of iptables has it, which manxd cannot read: check with %s -S whether its rules drop "+
				"packets of workloads; %s", program, page)})
	}
	if w.failure != nil {
		list = append(list, server.Notice{Topic: "dataplane", Subject: "rules of other programs", Since: w.failed,
			Text: fmt.Sprintf("they cannot be read, so it is not known whether they drop packets that policy allows: "+
				"%v", w.failure)})
	}
	return list
}

var dropping = prometheus.NewDesc("manx_host_firewall_dropping_chains",
	"Base chains of other programs that drop packets which policy allows; see manxctl status.", nil, nil)

// Describe implements prometheus.Collector.
func (w *Watch) Describe(out chan<- *prometheus.Desc) { out <- dropping }

// Collect implements prometheus.Collector.
func (w *Watch) Collect(out chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out <- prometheus.MustNewConstMetric(dropping, prometheus.GaugeValue, float64(len(w.found)))
}
