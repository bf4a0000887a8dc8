package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Fake is a kernel in memory, for tests. The zero value is not usable; see NewFake.
type Fake struct {
	mu        sync.Mutex
	routes    map[RouteKey]Route
	links     map[int]Link
	addresses []Address
	sysctls   map[string]string
	without   map[string]bool // kinds of devices
	shapes    map[string]Shape
	noShaping bool
	calls     map[string]int
	failures  map[string]map[int]error
	log       []string
	watchers  map[int]fakeWatcher
}

var _ Kernel = (*Fake)(nil)

type fakeWatcher struct {
	handle func([]Event)
	tables []Table
}

// NewFake returns a kernel with the interface lo, which has index 1.
func NewFake() *Fake {
	return &Fake{
		routes:   map[RouteKey]Route{},
		links:    map[int]Link{1: {Index: 1, Name: "lo", MTU: 65536, Up: true, Running: true}},
		sysctls:  map[string]string{},
		calls:    map[string]int{},
		failures: map[string]map[int]error{},
		watchers: map[int]fakeWatcher{},
		without:  map[string]bool{},
	}
}

// Fail makes the nth call (from 1) of a method fail. "ApplyRoutes" counts operations, not calls. The name "*" counts
// all calls and operations together.
func (f *Fake) Fail(method string, nth int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures[method] == nil {
		f.failures[method] = map[int]error{}
	}
	f.failures[method][nth] = err
}

// Heal cancels the failures that are still to come.
func (f *Fake) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.failures)
}

// Calls returns how often a method was called; see Fail.
func (f *Fake) Calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

// Log returns every change that was asked for, in order, and forgets it.
func (f *Fake) Log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.log
	f.log = nil
	return log
}

// WithoutIPIP makes the kernel one that has no IPIP.
func (f *Fake) WithoutIPIP() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.without["ipip"] = true
}

// called counts a call and returns the failure that was ordered for it. The lock is held.
func (f *Fake) called(method string) error {
	f.calls[method]++
	f.calls["*"]++
	return errors.Join(f.failures[method][f.calls[method]], f.failures["*"][f.calls["*"]])
}

func (f *Fake) logf(format string, args ...any) { f.log = append(f.log, fmt.Sprintf(format, args...)) }

func (f *Fake) notify(events ...Event) {
	f.mu.Lock()
	watchers := slices.Collect(maps.Values(f.watchers))
	f.mu.Unlock()
	for _, w := range watchers {
		w.notify(events)
	}
}

func (w fakeWatcher) notify(events []Event) {
	var list []Event
	for _, e := range events {
		aboutRoute := e.Type == EventRoute || e.Type == EventRouteGone
		if !aboutRoute || slices.Contains(w.tables, e.Route.Table) {
			list = append(list, e)
		}
	}
	if len(list) > 0 {
		w.handle(list)
	}
}

// ListRoutes implements Routes.
func (f *Fake) ListRoutes(tables ...Table) ([]Route, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListRoutes"); err != nil {
		return nil, err
	}
	var all []Route
	for _, r := range f.routes {
		if slices.Contains(orMain(tables), r.Table) {
			all = append(all, r)
		}
	}
	return all, nil
}

// ApplyRoutes implements Routes.
func (f *Fake) ApplyRoutes(ops []RouteOp) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	errs := make([]error, len(ops))
	failed := false
	for i, op := range ops {
		err := f.called("ApplyRoutes")
		if err == nil {
			err = f.apply(op)
		}
		if err != nil {
			errs[i], failed = fmt.Errorf("%s route %s: %w", op.Verb, op.Route.Place(), err), true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

func (f *Fake) apply(op RouteOp) error {
	r := op.Route
	have, exists := f.routes[r.Key()]
	f.logf("%s %s", op.Verb, r)
	switch {
	case op.Verb == DeleteRoute:
		if exists && have.Protocol == r.Protocol {
			delete(f.routes, r.Key())
		}
		return nil
	case op.Verb == AddRoute && exists:
		return unix.EEXIST
	}
	for _, h := range r.NextHops {
		if l, ok := f.links[h.Link]; !ok {
			return unix.ENODEV
		} else if !l.Up {
			return unix.ENETDOWN
		}
	}
	f.routes[r.Key()] = r
	return nil
}

// ListLinks implements Links.
func (f *Fake) ListLinks() ([]Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListLinks"); err != nil {
		return nil, err
	}
	var all []Link
	for _, l := range f.links {
		all = append(all, l)
	}
	return all, nil
}

// ListAddresses implements Links.
func (f *Fake) ListAddresses() ([]Address, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListAddresses"); err != nil {
		return nil, err
	}
	return slices.Clone(f.addresses), nil
}

// EnsureDevice implements Links.
func (f *Fake) EnsureDevice(d Device) (Link, error) {
	f.mu.Lock()
	if err := f.called("EnsureDevice"); err != nil {
		f.mu.Unlock()
		return Link{}, err
	}
	index := 1
	for _, l := range f.links {
		if l.Name == d.Name {
			f.mu.Unlock()
			return d.check(l)
		}
		index = max(index, l.Index)
	}
	if f.without[d.Kind] {
		f.mu.Unlock()
		return Link{}, fmt.Errorf("create interface %s: %w", d.Name, NoKindError{d.Kind})
	}
	l := Link{Index: index + 1, Name: d.Name, Kind: d.Kind, MTU: 1480}
	f.links[l.Index] = l
	f.logf("create %s", d.Name)
	f.mu.Unlock()
	f.notify(Event{Type: EventLink, Link: l})
	return l, nil
}

func (f *Fake) changeLink(method string, link int, change func(*Link)) error {
	f.mu.Lock()
	err := f.called(method)
	l, ok := f.links[link]
	if err == nil && !ok {
		err = unix.ENODEV
	}
	if err == nil {
		change(&l)
		f.links[link] = l
		f.logf("%s %s", method, l.Name)
	}
	f.mu.Unlock()
	if err == nil {
		f.notify(Event{Type: EventLink, Link: l})
	}
	return err
}

// SetMTU implements Links.
func (f *Fake) SetMTU(link, mtu int) error {
	return f.changeLink("SetMTU", link, func(l *Link) { l.MTU = mtu })
}

// SetUp implements Links.
func (f *Fake) SetUp(link int) error {
	return f.changeLink("SetUp", link, func(l *Link) { l.Up, l.Running = true, true })
}

// AddAddress implements Links.
func (f *Fake) AddAddress(a Address) error {
	f.mu.Lock()
	if err := f.called("AddAddress"); err != nil {
		f.mu.Unlock()
		return err
	}
	if !slices.Contains(f.addresses, a) {
		f.addresses = append(f.addresses, a)
		f.logf("add address %s", a.Prefix)
	}
	f.mu.Unlock()
	f.notify(Event{Type: EventAddress, Address: a})
	return nil
}

// DeleteAddress implements Links.
func (f *Fake) DeleteAddress(a Address) error {
	f.mu.Lock()
	if err := f.called("DeleteAddress"); err != nil {
		f.mu.Unlock()
		return err
	}
	f.addresses = slices.DeleteFunc(f.addresses, func(have Address) bool { return have == a })
	f.logf("remove address %s", a.Prefix)
	f.mu.Unlock()
	f.notify(Event{Type: EventAddressGone, Address: a})
	return nil
}

// Sysctl implements Sysctls.
func (f *Fake) Sysctl(name string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("Sysctl"); err != nil {
		return "", err
	}
	v, ok := f.sysctls[name]
	if !ok {
		return "", fmt.Errorf("read sysctl %s: %w", name, fs.ErrNotExist)
	}
	return v, nil
}

// SetSysctl implements Sysctls.
func (f *Fake) SetSysctl(name, value string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("SetSysctl"); err != nil {
		return err
	}
	f.sysctls[name] = value
	f.logf("sysctl %s=%s", name, value)
	return nil
}

// Watch implements Watcher.
func (f *Fake) Watch(ctx context.Context, handle func([]Event), tables ...Table) error {
	f.mu.Lock()
	if err := f.called("Watch"); err != nil {
		f.mu.Unlock()
		return err
	}
	id := f.calls["Watch"]
	f.watchers[id] = fakeWatcher{handle, orMain(tables)}
	f.mu.Unlock()
	handle([]Event{{Type: EventResync}})
	<-ctx.Done()
	f.mu.Lock()
	delete(f.watchers, id)
	f.mu.Unlock()
	return nil
}
