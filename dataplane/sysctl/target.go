package sysctl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Kernel has the kernel calls of a Target.
type Kernel interface {
	kernel.Sysctls
	ListLinks() ([]kernel.Link, error)
}

// Target keeps the variables. Not safe for concurrent use.
type Target struct {
	*driver.Driver[key, string]
	kernel Kernel
	// reassembly bounds what the kernel keeps of incomplete packets; bounded are the variables for it.
	reassembly Reassembly
	bounded    map[key]string
	ipv6       bool                  // the kernel has it
	readOnly   *kernel.ReadOnlyError // why no variable can be set; nil: they can
}

// New makes a Target; now is the clock.
func New(k Kernel, r Reassembly, now func() time.Time) *Target {
	t := &Target{kernel: k, reassembly: r}
	t.Driver = driver.New(t, driver.Config[key, string]{
		Name: "sysctl", Part: "interfaces", Look: t.look, Read: t.readOne, ListLinks: k.ListLinks, Now: now})
	return t
}

// look reads whether the kernel has IPv6, and its room for incomplete packets.
func (t *Target) look() {
	_, err := t.kernel.Sysctl(forwarding6.Name)
	t.ipv6 = err == nil
	t.bounded = t.reassembly.settings(t.kernel)
}

// Desired implements driver.Objects.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[key]string {
	want := desired(h, links, t.ipv6)
	maps.Copy(want, t.bounded)
	return want
}

// List implements driver.Objects: the desired variables that exist.
func (t *Target) List() (map[key]string, error) {
	have := map[key]string{}
	for k := range t.Wanted() {
		v, ok, err := t.read(k)
		if err != nil {
			return nil, err
		}
		if ok {
			have[k] = v
		}
	}
	return have, nil
}

// readOne reads a variable. One that is missing because its interface has left is not wanted any more.
func (t *Target) readOne(k key) (value string, ok bool, err error) {
	value, ok, err = t.read(k)
	if err == nil && !ok && t.gone(k.Interface) {
		t.LoseLink(k.Interface)
	}
	return value, ok, err
}

func (t *Target) read(k key) (value string, ok bool, err error) {
	value, err = t.kernel.Sysctl(k.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return value, err == nil, err
}

// Apply implements driver.Objects. A variable that is not desired any more stays as it is.
func (t *Target) Apply(steps []reconcile.Step[key, string]) []error {
	errs := make([]error, len(steps))
	for i, s := range steps {
		if s.Action != reconcile.Remove {
			errs[i] = t.set(s.Key, s.New)
		}
	}
	return errs
}

func (t *Target) set(k key, value string) error {
	err := t.kernel.SetSysctl(k.Name, value)
	if err == nil {
		t.readOnly = nil
	}
	_ = errors.As(err, &t.readOnly)
	if errors.Is(err, fs.ErrNotExist) && t.gone(k.Interface) {
		t.LoseLink(k.Interface)
		return nil
	}
	return err
}

// gone reports whether an interface has left since its last event, as that of a pod that ends. Each interface has the
// variable.
func (t *Target) gone(name string) bool {
	if name == "" {
		return false
	}
	_, err := t.kernel.Sysctl("net/ipv4/conf/" + name + "/forwarding")
	return errors.Is(err, fs.ErrNotExist)
}

// Notices returns the failures. Those of variables that this process can never set have one cause, and one notice.
func (t *Target) Notices() []reconcile.Notice {
	var refused []key
	for k, s := range t.Table.All() {
		if s.Phase == reconcile.Failed {
			refused = append(refused, k)
		}
	}
	if t.readOnly == nil || len(refused) == 0 {
		return t.Driver.Notices()
	}
	example := slices.MinFunc(refused, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Name, b.Name))
	})
	return []reconcile.Notice{{Subject: "sysctls", Since: t.Table.Status(example).Since, Text: fmt.Sprintf(
		"%d settings of the kernel are not made, for instance %s=%s: %v", len(refused), example.Name,
		t.Wanted()[example], t.readOnly)}}
}

// NotForwarding returns why this host should be a router and is none, empty if that is not so.
func (t *Target) NotForwarding() string {
	for _, k := range []key{forwarding4, forwarding6} {
		s := t.Table.Status(k)
		want, have := t.Table.Get(k)
		if s.Phase == reconcile.Failed && (have == nil || want == nil || *have != *want) {
			return fmt.Sprintf("this host does not forward packets: %s", s.Reason)
		}
	}
	return ""
}
