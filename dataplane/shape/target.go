package shape

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
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

// Kernel has the kernel calls of a Target.
type Kernel interface {
	tc.Shapes
	ListLinks() ([]kernel.Link, error)
}

// device names an interface with a limit.
type device string

// Link implements driver.Objects' key.
func (d device) Link() string { return string(d) }

// Target keeps the limits as configured. Not safe for concurrent use.
type Target struct {
	*driver.Driver[device, tc.Shape]
	kernel Kernel
}

// New makes a Target; now is the clock.
func New(k Kernel, now func() time.Time) *Target {
	t := &Target{kernel: k}
	t.Driver = driver.New(t, driver.Config[device, tc.Shape]{
		Name: "shape", Part: "bandwidth", ListLinks: k.ListLinks, Now: now})
	return t
}

// Handle also has the limit of the traffic from a workload compared when its interface was made again: the limit is
// kept on another device.
func (t *Target) Handle(events []kernel.Event) {
	for i := range events {
		l := events[i].Link
		name := tc.RedirectDevice(l.Name)
		if _, limited := t.Wanted()[device(name)]; limited && t.Link(l.Name).Index != l.Index {
			t.Touch(name)
		}
	}
	t.Driver.Handle(events)
}

// Desired implements driver.Objects: the limits of the workloads whose interfaces exist.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[device]tc.Shape {
	return desired(fromState(h), links)
}

// desired returns the limits of the endpoints whose interfaces exist, by device.
func desired(endpoints []endpoint, links map[string]kernel.Link) map[device]tc.Shape {
	shapes, seen := map[device]tc.Shape{}, map[string]bool{}
	for _, e := range endpoints {
		l, ok := links[e.Interface]
		if !ok {
			continue
		}
		if seen[l.Name] { // of several endpoints, the first has the interface, as in policy
			continue
		}
		seen[l.Name] = true
		if e.Ingress.Bandwidth > 0 {
			shapes[device(l.Name)] = tc.Shape{TokenBucket: e.Ingress.bucket(l.MTU)}
		}
		if e.Egress.Bandwidth > 0 {
			shapes[device(tc.RedirectDevice(l.Name))] = tc.Shape{From: l.Name, TokenBucket: e.Egress.bucket(l.MTU)}
		}
	}
	return shapes
}

// List implements driver.Objects.
func (t *Target) List() (map[device]tc.Shape, error) {
	all, err := t.kernel.ListShapes()
	have := make(map[device]tc.Shape, len(all))
	for name, s := range all {
		have[device(name)] = s
	}
	return have, err
}

// Apply implements driver.Objects.
func (t *Target) Apply(steps []reconcile.Step[device, tc.Shape]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		if s.Action == reconcile.Remove {
			errs[i] = t.kernel.RemoveShape(string(s.Key), s.Old)
		} else {
			errs[i] = t.kernel.SetShape(string(s.Key), s.New)
		}
	}
	return errs
}

// Notices returns the limits that could not be set or ended, by the interface of the workload.
func (t *Target) Notices() []reconcile.Notice {
	list := t.Driver.Notices()
	for i := range list {
		name := device(list[i].Subject)
		if want, have := t.Table.Get(name); want != nil && want.From != "" {
			name = device(want.From)
		} else if have != nil && have.From != "" {
			name = device(have.From)
		}
		list[i].Subject = "bandwidth of " + string(name)
	}
	slices.SortFunc(list, func(a, b reconcile.Notice) int {
		return cmp.Or(strings.Compare(a.Subject, b.Subject), strings.Compare(a.Text, b.Text))
	})
	return list
}
