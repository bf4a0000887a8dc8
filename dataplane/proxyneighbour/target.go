package proxyneighbour

import (
	"errors"
	"io/fs"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Kernel has the kernel calls of a Target.
type Kernel interface {
	kernel.ProxyNeighbours
	kernel.Sysctls
	ListLinks() ([]kernel.Link, error)
	ListAddresses() ([]kernel.Address, error)
}

// Target keeps the entries. Not safe for concurrent use.
type Target struct {
	*driver.Driver[key, string]
	kernel    Kernel
	now       func() time.Time
	routed    func(model.Key, netip.Prefix) bool
	addresses []kernel.Address
	readErr   error
	host      *hoststate.Host // nil: the host answers for nobody
	pool      string          // that is not answered for
	since     time.Time       // pool
}

// New makes a Target. routed reports whether the host has the route to an address of a workload; now is the clock.
func New(k Kernel, routed func(model.Key, netip.Prefix) bool, now func() time.Time) *Target {
	t := &Target{kernel: k, routed: routed, now: now}
	t.Driver = driver.New(t, driver.Config[key, string]{
		Name: "proxyneighbour", Part: "interfaces", Look: t.look, ListLinks: k.ListLinks, Now: now})
	return t
}

// SetState applies a state.
func (t *Target) SetState(h *hoststate.Host) {
	before := t.host
	if t.host = nil; enabled(h) {
		t.host = h
	}
	t.Driver.SetState(h)
	if before == nil && t.host != nil { // the addresses were not followed
		t.Resync()
	}
}

// Handle takes over kernel events.
func (t *Target) Handle(events []kernel.Event) {
	t.Driver.Handle(events)
	for i := range events {
		e := &events[i]
		if e.Type != kernel.EventAddress && e.Type != kernel.EventAddressGone || t.host == nil {
			continue
		}
		if name := t.LinkName(e.Address.Link); name == "" || !t.host.Interfaces.Match(name) {
			t.Resync()
		}
	}
}

// Flush decides again each time while the host answers for workloads: they wait for their routes.
func (t *Target) Flush() (steps, failures int, err error) {
	if t.host != nil {
		t.Touch("")
	}
	return t.Driver.Flush()
}

func (t *Target) look() {
	if t.addresses, t.readErr = nil, nil; t.host != nil {
		t.addresses, t.readErr = t.kernel.ListAddresses()
	}
}

// Desired implements driver.Objects.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[key]string {
	var subnets map[string][]netip.Prefix
	if t.host != nil {
		subnets = subnetsOf(h, links, t.addresses)
	}
	if pool := unanswered(h, subnets); pool != t.pool {
		t.pool, t.since = pool, t.now()
	}
	return desired(h, subnets, t.routed)
}

// List implements driver.Objects. An entry of another program counts where one is desired, and is never removed. One of
// IPv6 counts while the kernel heeds it.
func (t *Target) List() (map[key]string, error) {
	if t.readErr != nil {
		return nil, t.readErr
	}
	all, err := t.kernel.ListProxyNeighbours()
	if err != nil {
		return nil, err
	}
	have, heeded := map[key]string{}, map[string]bool{}
	for _, p := range all {
		k := key{t.LinkName(p.Link), p.Address}
		_, wanted := t.Wanted()[k]
		if !wanted {
			if p.Own {
				have[k] = ""
			}
			continue
		}
		if p.Address.Is6() {
			on, known := heeded[k.Interface]
			if !known {
				value, err := t.kernel.Sysctl(heedIPv6(k.Interface))
				on = err == nil && value == "1"
				heeded[k.Interface] = on
			}
			if !on {
				continue
			}
		}
		have[k] = ""
	}
	return have, nil
}

// heedIPv6 is the setting with which the kernel heeds entries of IPv6 on an interface. Without entries it does nothing,
// so nobody resets it.
func heedIPv6(iface string) string { return "net/ipv6/conf/" + iface + "/proxy_ndp" }

// Apply implements driver.Objects.
func (t *Target) Apply(steps []reconcile.Step[key, string]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		l := t.Link(s.Key.Interface)
		switch {
		case s.Action == reconcile.Remove && l.Index == 0: // it went with the interface
		case s.Action == reconcile.Remove:
			errs[i] = t.kernel.RemoveProxyNeighbour(l.Index, s.Key.Address)
		case s.Key.Address.Is6():
			errs[i] = t.kernel.SetSysctl(heedIPv6(s.Key.Interface), "1")
			if errors.Is(errs[i], fs.ErrNotExist) {
				errs[i] = errors.New("the kernel has no IPv6 on interface " + s.Key.Interface)
			}
			fallthrough
		default:
			errs[i] = errors.Join(errs[i], t.kernel.SetProxyNeighbour(l.Index, s.Key.Address))
		}
	}
	return errs
}

// Notices also names a pool of services that would need the host to answer.
func (t *Target) Notices() []reconcile.Notice {
	list := t.Driver.Notices()
	if t.pool != "" {
		list = append(list, reconcile.Notice{Subject: "IPPool " + t.pool, Since: t.since,
			Text: "localSubnetL2Reachability answers for workloads alone, and nobody for the addresses of services " +
				"in this pool, which is on a subnet of the host"})
	}
	return list
}
