// Package ipamaudit checks slowly, in the background, whether the records of IPAM agree with the objects that use
// addresses.
package ipamaudit

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam/check"
	"github.com/manxnet/manx/retry"
)

const (
	// interval is the time between two audits. Each one takes 10 % more or less, so that those of many clusters spread.
	interval = time.Hour
	// lasting is the time that a contradiction must last: the garbage collection has its grace period, and an address
	// is assigned before an object uses it.
	lasting = 20 * time.Minute
)

// Report is the result of the last audit.
type Report struct {
	At    time.Time             // zero before the first one
	Found map[check.Problem]int // lasting contradictions
}

// Text describes the contradictions, empty for none.
func (r Report) Text() string {
	var parts []string
	for _, p := range check.Problems {
		if n := r.Found[p]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, p.Title()))
		}
	}
	return strings.Join(parts, "; ")
}

// Auditor audits, and remembers the last report. It is safe for concurrent use.
type Auditor struct {
	mu   sync.Mutex
	last Report
}

// Last returns the last report, an empty one where no audit runs.
func (a *Auditor) Last() Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

func (a *Auditor) set(r Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = r
}

// Run audits until ctx ends. store has the objects of the datastore except handles, which are read for each audit;
// source has the endpoints of Kubernetes' pods, nil if these are the datastore's.
func (a *Auditor) Run(ctx context.Context, s datastore.Store, store, source *datastore.Tables, log *zap.Logger) error {
	defer a.set(Report{})
	return a.run(ctx, log, func() (check.Result, bool, error) { return look(ctx, s, store, source) }, retry.Sleep)
}

// run does the audits with the given look, which may find nothing out yet, and the given pauses.
func (a *Auditor) run(
	ctx context.Context, log *zap.Logger, look func() (check.Result, bool, error),
	sleep func(context.Context, time.Duration) bool,
) error {
	for sleep(ctx, spread(lasting)) {
		first, ok, err := look()
		if err == nil && ok && first.Count() > 0 && sleep(ctx, lasting) {
			var second check.Result
			if second, ok, err = look(); err == nil && ok {
				first = both(first, second)
			}
		}
		switch {
		case err != nil:
			log.Warn("the records of IPAM could not be audited", zap.Error(err))
		case ok && ctx.Err() == nil:
			a.publish(first, log)
		}
		if !sleep(ctx, spread(interval-lasting)) {
			break
		}
	}
	return ctx.Err()
}

func spread(d time.Duration) time.Duration { return d*9/10 + rand.N(d/5) }

// publish reports what was found. The log has the first contradictions of each kind.
func (a *Auditor) publish(r check.Result, log *zap.Logger) {
	const shown = 3
	report := Report{At: time.Now(), Found: map[check.Problem]int{}}
	for _, p := range check.Problems {
		list := r.Found[p]
		if report.Found[p] = len(list); len(list) == 0 {
			continue
		}
		var lines []string
		for _, f := range list[:min(shown, len(list))] {
			lines = append(lines, f.Line(report.At))
		}
		log.Warn("the records of IPAM contradict each other", zap.String("problem", string(p)),
			zap.Int("number", len(list)), zap.Strings("first", lines))
	}
	a.set(report)
}

// both returns what both results have.
func both(a, b check.Result) check.Result {
	type identity struct {
		problem       check.Problem
		subject, text string
	}
	seen := map[identity]bool{}
	for p, list := range a.Found {
		for _, f := range list {
			seen[identity{p, f.Subject, f.Text}] = true
		}
	}
	found := map[check.Problem][]check.Finding{}
	for p, list := range b.Found {
		for _, f := range list {
			if seen[identity{p, f.Subject, f.Text}] {
				found[p] = append(found[p], f)
			}
		}
	}
	b.Found = found
	return b
}

// look checks once. ok is false while the tables are out of date.
func look(
	ctx context.Context, s datastore.Store, store, source *datastore.Tables,
) (r check.Result, ok bool, err error) {
	now := store.Snapshot()
	var o check.Options
	if source != nil {
		pods := source.Snapshot()
		if !pods.InSync() {
			return r, false, nil
		}
		o.Pods = pods
	}
	if !now.InSync() {
		return r, false, nil
	}
	handles, _, err := s.List(ctx, model.KindIPAMHandle, "")
	if err != nil {
		return r, false, err
	}
	r = check.Check(withHandles{now, model.NewSet(handles...)}, o)
	for q := range now.Quarantined() {
		if k := q.Object.Key.Kind; k == model.KindWorkloadEndpoint || k == model.KindNode {
			delete(r.Found, check.Leaked) // it may use them
		}
	}
	return r, true, nil
}

// withHandles is a snapshot with the handles, which are in no table.
type withHandles struct {
	*datastore.Snapshot
	handles model.Set
}

// All implements model.Reader.
func (w withHandles) All(kind model.Kind) iter.Seq[*model.Object] {
	if kind == model.KindIPAMHandle {
		return w.handles.All(kind)
	}
	return w.Snapshot.All(kind)
}
