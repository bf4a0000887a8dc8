package nodestatus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Reporter keeps the status of the CalicoNodeStatus objects of one node current. Without such objects it only waits.
type Reporter struct {
	Store datastore.Store
	Node  string
	// Facts returns the state to report; routes only on request. After an error nothing is written, and the report is
	// tried again; ErrNotYet is an error that is not logged as a fault.
	Facts func(routes bool) (Facts, error)
	Log   *zap.Logger
	// Retry is the pause after a failed report, unless its period is shorter; default 10 s.
	Retry time.Duration

	mu  sync.Mutex
	bad map[model.Key]error // unusable objects, and why

	objects map[model.Key]*reported
	// reading is set while the watch delivers a full read, whose revisions may be older than earlier ones: the
	// datastore may have been restored to an earlier state.
	reading bool
}

// reported is one object of this node.
type reported struct {
	object  *model.Object
	due     time.Time // zero: not again
	failure string    // of the last report, as logged
}

func (r *reported) spec() v3.CalicoNodeStatusSpec { return r.object.Value.(*v3.CalicoNodeStatus).Spec }

// period returns the time between reports, 0 for none after the first.
func (r *reported) period() time.Duration {
	if p := r.spec().UpdatePeriodSeconds; p != nil {
		return time.Duration(*p) * time.Second
	}
	return 0
}

const (
	tries        = 3
	defaultRetry = 10 * time.Second
)

// Run reports when an object appears or its spec changes, and then at its period, until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	r.Retry = cmp.Or(r.Retry, defaultRetry)
	r.objects = map[model.Key]*reported{}
	events := r.Store.Watch(ctx, model.KindCalicoNodeStatus)
	for {
		var timer <-chan time.Time // never, while nothing is due
		if next, ok := r.next(); ok {
			timer = time.After(time.Until(next))
		}
		select {
		case e, ok := <-events:
			if !ok {
				return cmp.Or(ctx.Err(), errors.New("the watch of CalicoNodeStatus ended: the store was closed"))
			}
			r.take(e)
		case <-timer:
			r.report(ctx)
		}
	}
}

// next returns when the next report is due.
func (r *Reporter) next() (next time.Time, ok bool) {
	for _, x := range r.objects {
		if !x.due.IsZero() && (!ok || x.due.Before(next)) {
			next, ok = x.due, true
		}
	}
	return next, ok
}

// take processes one event. A changed status alone causes no report, or two writers would alternate for ever; a deleted
// one does.
func (r *Reporter) take(e datastore.Event) {
	switch e.Type {
	case datastore.EventInSync, datastore.EventLost:
		r.reading = e.Type == datastore.EventLost
		return
	case datastore.EventAlive:
		return
	}
	r.note(e)
	s, ours := mine(e.Object, r.Node)
	if e.Type == datastore.EventDelete || !ours {
		delete(r.objects, e.Key)
		return
	}
	old := r.objects[e.Key]
	if old == nil {
		r.objects[e.Key] = &reported{object: e.Object, due: time.Now()}
		return
	}
	if !r.reading && e.Revision < old.object.Revision {
		return // older than our last write
	}
	if !reflect.DeepEqual(old.spec(), s.Spec) || s.Status.LastUpdated.IsZero() {
		old.due = time.Now()
	}
	old.object = e.Object
}

// note records whether an object is usable. The node of an unusable one is unknown.
func (r *Reporter) note(e datastore.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Type == datastore.EventDelete || e.Object == nil || e.Object.Err == nil {
		delete(r.bad, e.Key)
		return
	}
	if r.bad == nil {
		r.bad = map[model.Key]error{}
	}
	r.bad[e.Key] = e.Object.Err
}

// Unusable returns the objects that cannot be decoded or are invalid, with the reason. The status of every node shows
// them.
func (r *Reporter) Unusable() map[model.Key]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.bad)
}

// mine returns the value of a usable object about the node.
func mine(o *model.Object, node string) (*v3.CalicoNodeStatus, bool) {
	if o == nil || o.Err != nil {
		return nil, false
	}
	s, ok := o.Value.(*v3.CalicoNodeStatus)
	return s, ok && s.Spec.Node == node
}

// report writes all reports that are due, with one read of the facts.
func (r *Reporter) report(ctx context.Context) {
	now := time.Now()
	var due []model.Key
	routes := false
	for _, key := range slices.SortedFunc(maps.Keys(r.objects), func(a, b model.Key) int {
		return strings.Compare(a.Name, b.Name)
	}) {
		if x := r.objects[key]; !x.due.IsZero() && !x.due.After(now) {
			due = append(due, key)
			routes = routes || slices.Contains(x.spec().Classes, v3.NodeStatusClassTypeRoutes)
		}
	}
	facts, err := r.Facts(routes)
	for _, key := range due {
		x := r.objects[key]
		if err == nil {
			r.settle(key, x, r.write(ctx, x, facts))
		} else {
			r.settle(key, x, fmt.Errorf("gather the status: %w", err))
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// settle sets the time of an object's next report.
func (r *Reporter) settle(key model.Key, x *reported, err error) {
	period := x.period()
	x.due = time.Time{}
	if period > 0 {
		x.due = time.Now().Add(period)
	}
	switch {
	case errors.Is(err, datastore.ErrNotFound), errors.Is(err, errNotOurs):
		delete(r.objects, key)
	case err != nil:
		if period == 0 || period > r.Retry {
			x.due = time.Now().Add(r.Retry)
		}
		if text := err.Error(); text != x.failure && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrNotYet) {
			x.failure = text
			r.Log.Warn("the status of this node is not reported, trying again", zap.String("target", "node-status"),
				zap.String("key", key.Name), zap.Error(err))
		}
	default:
		x.failure = ""
	}
}

// ErrNotYet reports that there is nothing to report yet.
var ErrNotYet = errors.New("the node is starting")

var errNotOurs = errors.New("the object is about another node now")

// write writes the whole status of one object. After a conflict it reads the object again.
func (r *Reporter) write(ctx context.Context, x *reported, facts Facts) error {
	var err error
	for range tries {
		if errors.Is(err, datastore.ErrConflict) {
			fresh, err := r.Store.Get(ctx, x.object.Key)
			if err != nil {
				return err
			}
			if _, ours := mine(fresh, r.Node); !ours {
				return errNotOurs
			}
			x.object = fresh
		}
		next := x.object.Clone()
		v := next.Value.(*v3.CalicoNodeStatus)
		v.Status = report(v.Spec, facts, time.Now())
		var stored *model.Object
		if stored, err = r.Store.Update(ctx, next); err == nil {
			x.object = stored
			return nil
		}
		if !errors.Is(err, datastore.ErrConflict) {
			return err
		}
	}
	return err
}
