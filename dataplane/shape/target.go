package shape

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/tc"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// endpoint is a workload's interface on this node, with its limits.
type endpoint struct {
	Interface string
	// Ingress limits the traffic to the workload, Egress the traffic from it.
	Ingress, Egress limit
}

// checkEvery is how often the limits are read again: the kernel reports no changes by others.
const checkEvery = 10 * time.Second

// retryRead is the delay before another read after a failure.
const retryRead = time.Second

// idle is the interval between flushes without work.
const idle = time.Hour

// Kernel has the kernel calls of a Target.
type Kernel interface {
	tc.Shapes
	ListLinks() ([]kernel.Link, error)
}

// Target keeps the limits as configured. Report changes to it, then call Flush. Not safe for concurrent use.
type Target struct {
	kernel    Kernel
	now       func() time.Time
	table     *reconcile.Table[string, tc.Shape] // by device
	endpoints []endpoint                         // with limits
	wanted    map[string]tc.Shape
	devices   map[string]bool // those that limits depend on
	stale     bool            // the limits have to be read again
	checkAt   time.Time
}

// New makes a Target; now is the clock.
func New(k Kernel, now func() time.Time) *Target {
	t := &Target{kernel: k, now: now, stale: true}
	equal := func(a, b tc.Shape) bool { return a == b }
	t.table = reconcile.NewTable(t, equal, now, reconcile.DefaultBackoff)
	return t
}

// configure sets the workloads of this node.
func (t *Target) configure(all []endpoint) {
	var limited []endpoint
	same := true
	for _, e := range all {
		if e.Ingress.Bandwidth <= 0 && e.Egress.Bandwidth <= 0 {
			continue
		}
		same = same && len(limited) < len(t.endpoints) && t.endpoints[len(limited)] == e
		limited = append(limited, e)
	}
	if same && len(limited) == len(t.endpoints) {
		return
	}
	t.endpoints, t.stale = limited, true
	t.devices = map[string]bool{}
	for _, e := range limited {
		t.devices[e.Interface], t.devices[tc.RedirectDevice(e.Interface)] = true, true
	}
}

// Handle takes over kernel events.
func (t *Target) Handle(events []kernel.Event) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case kernel.EventResync:
			t.stale = true
		case kernel.EventLink, kernel.EventLinkGone:
			t.stale = t.stale || t.devices[e.Link.Name]
		}
	}
}

// Retry makes the next Flush retry failed steps, and read everything again.
func (t *Target) Retry() {
	t.table.RetryAll()
	t.Resync()
}

// Resync makes the next Flush read everything again.
func (t *Target) Resync() { t.stale = true }

// synced sets whether the datastore has been read in full: then limits of an earlier run may be removed.
func (t *Target) synced(yes bool) { t.table.Prune(yes) }

// Flush applies the desired limits. It returns how many changes were tried and how many of them failed.
func (t *Target) Flush() (steps, failures int, err error) {
	if now := t.now(); t.stale || !now.Before(t.checkAt) {
		t.checkAt = now.Add(checkEvery)
		if err := t.read(); err != nil {
			t.checkAt = now.Add(retryRead)
			return 0, 0, err
		}
		t.stale = false
	}
	steps, failures = t.table.Flush()
	if t.table.Len() == 0 && len(t.endpoints) == 0 {
		t.checkAt = t.now().Add(idle)
	}
	return steps, failures, nil
}

func (t *Target) read() error {
	links, err := t.kernel.ListLinks()
	if err != nil {
		return err
	}
	byName := make(map[string]kernel.Link, len(links))
	for _, l := range links {
		byName[l.Name] = l
	}
	fresh := desired(t.endpoints, byName)
	for device := range t.wanted {
		if _, still := fresh[device]; !still {
			t.table.Unset(device)
		}
	}
	for device, s := range fresh {
		t.table.Set(device, s)
	}
	t.wanted = fresh
	return t.table.Resync()
}

// desired returns the limits of the endpoints whose interfaces exist, by device.
func desired(endpoints []endpoint, links map[string]kernel.Link) map[string]tc.Shape {
	shapes := map[string]tc.Shape{}
	for _, e := range endpoints {
		l, ok := links[e.Interface]
		if !ok {
			continue
		}
		if e.Ingress.Bandwidth > 0 {
			shapes[l.Name] = tc.Shape{TokenBucket: e.Ingress.bucket(l.MTU)}
		}
		if e.Egress.Bandwidth > 0 {
			shapes[tc.RedirectDevice(l.Name)] = tc.Shape{From: l.Name, TokenBucket: e.Egress.bucket(l.MTU)}
		}
	}
	return shapes
}

// List implements reconcile.Applier.
func (t *Target) List() (map[string]tc.Shape, error) { return t.kernel.ListShapes() }

// Apply implements reconcile.Applier.
func (t *Target) Apply(steps []reconcile.Step[string, tc.Shape]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		if s.Action == reconcile.Remove {
			errs[i] = t.kernel.RemoveShape(s.Key, s.Old)
		} else {
			errs[i] = t.kernel.SetShape(s.Key, s.New)
		}
	}
	return errs
}

// Next returns how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	at := t.checkAt
	if retry, ok := t.table.Next(); ok && retry.Before(at) {
		at = retry
	}
	return max(at.Sub(t.now()), time.Millisecond)
}

// Failure is a limit that could not be set or ended; it is tried again.
type Failure struct {
	Interface string // the workload's
	Reason    string
	Since     time.Time
}

// Failed returns the limits that the kernel refused, by interface.
func (t *Target) Failed() []Failure {
	var list []Failure
	for device, s := range t.table.All() {
		if s.Phase != reconcile.Failed && (s.Phase != reconcile.Removing || s.Reason == "") {
			continue
		}
		iface := device
		if want, have := t.table.Get(device); want != nil && want.From != "" {
			iface = want.From
		} else if have != nil && have.From != "" {
			iface = have.From
		}
		list = append(list, Failure{Interface: iface, Reason: s.Reason, Since: s.Since})
	}
	slices.SortFunc(list, func(a, b Failure) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), strings.Compare(a.Reason, b.Reason))
	})
	return list
}

// failures is the number of limits that the kernel refused.
func (t *Target) failures() int { return t.table.Failures() }

// problem returns the failures, nil if there are none.
func (t *Target) problem() error { return t.table.Problem() }

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return t.table.Repairs() }
