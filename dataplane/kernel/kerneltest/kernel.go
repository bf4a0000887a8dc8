package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/announce"
	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/tc"
	"github.com/manxnet/manx/dataplane/kernel/wireguard"
)

// Kernel is a kernel in memory, for tests. The zero value is not usable; see New.
type Kernel struct {
	mu        sync.Mutex
	routes    map[kernel.RouteKey]kernel.Route
	links     map[int]kernel.Link
	addresses []kernel.Address
	sysctls   map[string]string
	without   map[string]bool // kinds of devices
	shapes    map[string]tc.Shape
	noShaping bool

	noTxChecksum map[string]bool // by device

	neighbours map[neighbourKey]kernel.Neighbour
	proxies    map[neighbourKey]kernel.ProxyNeighbour
	fdb        map[fdbKey]netip.Addr
	farEnds    map[int]kernel.FarEnd
	overflows  kernel.Overflows
	connected  map[netip.Addr]bool
	hearing    map[string]func() // by device

	calls    map[string]int
	failures map[string]map[int]error
	log      []string
	watchers map[int]watcher

	entryWatchers map[int]entryWatcher

	rules       []kernel.Rule
	refusedPeer wireguard.Key
	arpMark     uint32
	tunnels     map[int]*tunnel // of WireGuard, by interface
}

var (
	_ kernel.Kernel          = (*Kernel)(nil)
	_ tc.Shapes              = (*Kernel)(nil)
	_ conntrack.Table        = (*Kernel)(nil)
	_ announce.Announcements = (*Kernel)(nil)
	_ wireguard.Devices      = (*Kernel)(nil)
)

type watcher struct {
	handle func([]kernel.Event)
	tables []kernel.Table
}

// New returns a kernel with the interface lo, which has index 1.
func New() *Kernel {
	return &Kernel{
		routes:   map[kernel.RouteKey]kernel.Route{},
		links:    map[int]kernel.Link{1: {Index: 1, Name: "lo", MTU: 65536, Up: true, Running: true}},
		sysctls:  map[string]string{},
		calls:    map[string]int{},
		failures: map[string]map[int]error{},
		watchers: map[int]watcher{},
		without:  map[string]bool{},

		noTxChecksum: map[string]bool{},

		neighbours: map[neighbourKey]kernel.Neighbour{},
		proxies:    map[neighbourKey]kernel.ProxyNeighbour{},
		fdb:        map[fdbKey]netip.Addr{},
		farEnds:    map[int]kernel.FarEnd{},
		connected:  map[netip.Addr]bool{},
		hearing:    map[string]func(){},

		entryWatchers: map[int]entryWatcher{},

		tunnels: map[int]*tunnel{},
	}
}

// Fail makes the nth call (from 1) of a method fail. "ApplyRoutes" counts operations, not calls. The name "*" counts
// all calls and operations together.
func (f *Kernel) Fail(method string, nth int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures[method] == nil {
		f.failures[method] = map[int]error{}
	}
	f.failures[method][nth] = err
}

// Heal cancels the pending failures.
func (f *Kernel) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.failures)
}

// Calls returns how often a method was called; see Fail.
func (f *Kernel) Calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

// Log returns every requested change, in order, and clears the list.
func (f *Kernel) Log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.log
	f.log = nil
	return log
}

// WithoutIPIP removes the support of IPIP from the kernel.
func (f *Kernel) WithoutIPIP() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.without["ipip"] = true
}

// called counts a call and returns its injected failure. The lock is held.
func (f *Kernel) called(method string) error {
	f.calls[method]++
	f.calls["*"]++
	return errors.Join(f.failures[method][f.calls[method]], f.failures["*"][f.calls["*"]])
}

func (f *Kernel) logf(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *Kernel) notify(events ...kernel.Event) {
	f.mu.Lock()
	watchers := slices.Collect(maps.Values(f.watchers))
	f.mu.Unlock()
	for _, w := range watchers {
		w.notify(events)
	}
}

func (w watcher) notify(events []kernel.Event) {
	var list []kernel.Event
	for _, e := range events {
		aboutRoute := e.Type == kernel.EventRoute || e.Type == kernel.EventRouteGone
		if !aboutRoute || slices.Contains(w.tables, e.Route.Table) {
			list = append(list, e)
		}
	}
	if len(list) > 0 {
		w.handle(list)
	}
}

// ListRoutes implements Routes.
func (f *Kernel) ListRoutes(tables ...kernel.Table) ([]kernel.Route, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListRoutes"); err != nil {
		return nil, err
	}
	var all []kernel.Route
	for _, r := range f.routes {
		if slices.Contains(kernel.OrMain(tables), r.Table) {
			all = append(all, r)
		}
	}
	return all, nil
}

// ApplyRoutes implements Routes.
func (f *Kernel) ApplyRoutes(ops []kernel.RouteOp) []error {
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

func (f *Kernel) apply(op kernel.RouteOp) error {
	r := op.Route
	have, exists := f.routes[r.Key()]
	f.logf("%s %s", op.Verb, r)
	switch {
	case op.Verb == kernel.DeleteRoute:
		if exists && have.Protocol == r.Protocol {
			delete(f.routes, r.Key())
		}
		return nil
	case op.Verb == kernel.AddRoute && exists:
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
func (f *Kernel) ListLinks() ([]kernel.Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListLinks"); err != nil {
		return nil, err
	}
	var all []kernel.Link
	for _, l := range f.links {
		all = append(all, l)
	}
	return all, nil
}

// ListAddresses implements Links.
func (f *Kernel) ListAddresses() ([]kernel.Address, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListAddresses"); err != nil {
		return nil, err
	}
	return slices.Clone(f.addresses), nil
}

// EnsureDevice implements Links.
func (f *Kernel) EnsureDevice(d kernel.Device) (kernel.Link, error) {
	f.mu.Lock()
	if err := f.called("EnsureDevice"); err != nil {
		f.mu.Unlock()
		return kernel.Link{}, err
	}
	index := 1
	links := slices.Collect(maps.Values(f.links))
	for _, l := range links {
		if l.Name == d.Name && (l.Kind != d.Kind || d.Replaces(l) == "") {
			return f.adjust(d, l)
		}
		index = max(index, l.Index)
	}
	err := d.Taken(links)
	if f.without[d.Kind] {
		err = kernel.NoKindError{Kind: d.Kind}
	}
	if err != nil {
		f.mu.Unlock()
		return kernel.Link{}, fmt.Errorf("create interface %s: %w", d.Name, err)
	}
	for _, l := range links {
		if l.Name == d.Name {
			f.dropLink(l.Index)
			f.mu.Unlock()
			f.notify(kernel.Event{Type: kernel.EventLinkGone, Link: l})
			f.mu.Lock()
		}
	}
	l := kernel.Link{Index: index + 1, Name: d.Name, Kind: d.Kind, MTU: 1480, VXLAN: d.VXLAN, MAC: d.VXLAN.MAC}
	f.links[l.Index] = l
	f.logf("create %s", d.Name)
	f.mu.Unlock()
	f.notify(kernel.Event{Type: kernel.EventLink, Link: l})
	return l, nil
}

// adjust changes the parameters of an existing device. The lock is held, and released.
func (f *Kernel) adjust(d kernel.Device, l kernel.Link) (kernel.Link, error) {
	l, err := d.Check(l)
	changed := err == nil && d.VXLAN != l.VXLAN
	if changed {
		if l.MAC != d.VXLAN.MAC {
			f.flushNeighbours(l.Index)
		}
		l.VXLAN, l.MAC = d.VXLAN, d.VXLAN.MAC
		f.links[l.Index] = l
		f.logf("change %s to %s", d.Name, d.VXLAN)
	}
	f.mu.Unlock()
	if changed {
		f.notify(kernel.Event{Type: kernel.EventLink, Link: l})
	}
	return l, err
}

// DeleteLink implements Links.
func (f *Kernel) DeleteLink(link int) error {
	f.mu.Lock()
	if err := f.called("DeleteLink"); err != nil {
		f.mu.Unlock()
		return err
	}
	l, ok := f.links[link]
	if ok {
		f.dropLink(link)
		f.logf("delete %s", l.Name)
	}
	f.mu.Unlock()
	if ok {
		f.notify(kernel.Event{Type: kernel.EventLinkGone, Link: l})
	}
	return nil
}

func (f *Kernel) changeLink(method string, link int, change func(*kernel.Link)) error {
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
		f.notify(kernel.Event{Type: kernel.EventLink, Link: l})
	}
	return err
}

// SetMTU implements Links.
func (f *Kernel) SetMTU(link, mtu int) error {
	return f.changeLink("SetMTU", link, func(l *kernel.Link) { l.MTU = mtu })
}

// SetUp implements Links.
func (f *Kernel) SetUp(link int) error {
	return f.changeLink("SetUp", link, func(l *kernel.Link) { l.Up, l.Running = true, true })
}

// TxChecksum implements Links. It is on until it is switched off.
func (f *Kernel) TxChecksum(device string) (on bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("TxChecksum"); err != nil {
		return false, err
	}
	return !f.noTxChecksum[device], nil
}

// SetTxChecksum implements Links.
func (f *Kernel) SetTxChecksum(device string, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("SetTxChecksum"); err != nil {
		return err
	}
	f.noTxChecksum[device] = !on
	f.logf("SetTxChecksum %s %t", device, on)
	return nil
}

// AddAddress implements Links.
func (f *Kernel) AddAddress(a kernel.Address) error {
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
	f.notify(kernel.Event{Type: kernel.EventAddress, Address: a})
	return nil
}

// DeleteAddress implements Links.
func (f *Kernel) DeleteAddress(a kernel.Address) error {
	f.mu.Lock()
	if err := f.called("DeleteAddress"); err != nil {
		f.mu.Unlock()
		return err
	}
	f.addresses = slices.DeleteFunc(f.addresses, func(have kernel.Address) bool { return have == a })
	if !slices.ContainsFunc(f.addresses, func(have kernel.Address) bool {
		return have.Link == a.Link && have.Prefix.Addr().Is4()
	}) {
		f.flush4(a.Link)
	}
	f.logf("remove address %s", a.Prefix)
	f.mu.Unlock()
	f.notify(kernel.Event{Type: kernel.EventAddressGone, Address: a})
	return nil
}

// Sysctl implements Sysctls.
func (f *Kernel) Sysctl(name string) (string, error) {
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
func (f *Kernel) SetSysctl(name, value string) error {
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
func (f *Kernel) Watch(ctx context.Context, handle func([]kernel.Event), tables ...kernel.Table) error {
	f.mu.Lock()
	if err := f.called("Watch"); err != nil {
		f.mu.Unlock()
		return err
	}
	id := f.calls["Watch"]
	f.watchers[id] = watcher{handle, kernel.OrMain(tables)}
	f.mu.Unlock()
	handle([]kernel.Event{{Type: kernel.EventResync}})
	<-ctx.Done()
	f.mu.Lock()
	delete(f.watchers, id)
	f.mu.Unlock()
	return nil
}
