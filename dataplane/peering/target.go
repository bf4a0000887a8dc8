package peering

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// key is an address on an interface.
type key struct {
	Interface string
	Address   netip.Prefix
}

func (k key) String() string { return fmt.Sprintf("peering %s %s", k.Interface, k.Address) }

// Link implements driver.Objects' key.
func (k key) Link() string { return k.Interface }

// Kernel has the kernel calls of a Target.
type Kernel interface {
	kernel.Links
	kernel.Sysctls
}

// Target keeps the addresses. Not safe for concurrent use.
type Target struct {
	*driver.Driver[key, string]
	kernel Kernel
	ipv6   bool // the kernel has it
}

// New makes a Target; now is the clock.
func New(k Kernel, now func() time.Time) *Target {
	t := &Target{kernel: k}
	t.Driver = driver.New(t, driver.Config[key, string]{
		Name: "peering", Part: "interfaces", Look: t.look, ListLinks: k.ListLinks, Now: now,
		// The addresses follow from BGP, not from the objects of this host.
		Follows: func(*hoststate.Host) bool { return true }})
	return t
}

func (t *Target) look() {
	_, err := t.kernel.Sysctl("net/ipv6/conf/all/forwarding")
	t.ipv6 = err == nil
}

// Desired implements driver.Objects: those of the interfaces that exist.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[key]string {
	want := map[key]string{}
	for _, p := range h.Peering {
		if _, exists := links[p.Interface]; exists && (t.ipv6 || p.Address.Is4()) {
			want[key{p.Interface, netip.PrefixFrom(p.Address, p.Address.BitLen())}] = ""
		}
	}
	return want
}

// Handle takes over kernel events.
func (t *Target) Handle(events []kernel.Event) {
	t.Driver.Handle(events)
	for i := range events {
		if e := &events[i]; e.Type == kernel.EventAddress || e.Type == kernel.EventAddressGone {
			name := t.LinkName(e.Address.Link)
			if _, wanted := t.Wanted()[key{name, e.Address.Prefix}]; wanted {
				t.Touch(name)
			}
		}
	}
}

// List implements driver.Objects: the desired addresses and those still to be removed. All others are the workloads' or
// their administrators'.
func (t *Target) List() (map[key]string, error) {
	if len(t.Wanted()) == 0 && t.Table.Len() == 0 {
		return nil, nil
	}
	addresses, err := t.kernel.ListAddresses()
	if err != nil {
		return nil, err
	}
	there := map[kernel.Address]bool{}
	for _, a := range addresses {
		there[kernel.Address{Link: a.Link, Prefix: a.Prefix}] = true
	}
	have := map[key]string{}
	for k := range t.Table.All() { // the desired ones are in it
		if l := t.Link(k.Interface); l.Index != 0 && there[kernel.Address{Link: l.Index, Prefix: k.Address}] {
			have[k] = ""
		}
	}
	return have, nil
}

// Apply implements driver.Objects.
func (t *Target) Apply(steps []reconcile.Step[key, string]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		l := t.Link(s.Key.Interface)
		a := kernel.Address{Link: l.Index, Prefix: s.Key.Address}
		switch {
		case l.Index == 0 && s.Action == reconcile.Remove: // it went with the interface
		case l.Index == 0:
			errs[i] = fmt.Errorf("interface %s does not exist", s.Key.Interface)
		case s.Action == reconcile.Remove:
			errs[i] = t.kernel.DeleteAddress(a)
		default:
			errs[i] = t.kernel.AddAddress(a)
		}
	}
	return errs
}
