package link

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Kernel is what a Target needs.
type Kernel interface {
	kernel.Links
	kernel.Sysctls
}

// checkEvery is how often settings are read again: the kernel has no events for most sysctls.
const checkEvery = 10 * time.Second

// Target keeps interfaces as configured. Tell it what changed, then Flush. Not safe for concurrent use.
type Target struct {
	kernel  Kernel
	now     func() time.Time
	mtuFile string
	config  Config
	table   *reconcile.Table[Key, string]
	links   []kernel.Link
	wanted  map[Key]string
	ipv6    bool

	stale   bool // links or config changed
	checkAt time.Time
	lastErr error
	noIPIP  error
}

// New makes a Target. mtuFile is where the CNI plugin looks for the MTU, empty for nowhere; now is the clock.
func New(k Kernel, mtuFile string, now func() time.Time) *Target {
	t := &Target{kernel: k, now: now, mtuFile: mtuFile, wanted: map[Key]string{}, stale: true}
	equal := func(a, b string) bool { return a == b }
	t.table = reconcile.NewTable(t, equal, now, reconcile.DefaultBackoff)
	t.table.Prune(true) // what is not wanted on tunl0 is an address of before
	return t
}

// Configure takes over what the datastore says.
func (t *Target) Configure(c Config) {
	t.config, t.stale = c, true
}

// Handle takes over what happened in the kernel: interfaces that came or changed are looked at again.
func (t *Target) Handle(events []kernel.Event) {
	for _, e := range events {
		switch e.Type {
		case kernel.EventResync, kernel.EventLink, kernel.EventLinkGone:
			t.stale = true
		case kernel.EventAddress, kernel.EventAddressGone:
			t.stale = t.stale || t.isTunnel(e.Address.Link)
		}
	}
}

func (t *Target) isTunnel(index int) bool {
	return slices.ContainsFunc(t.links, func(l kernel.Link) bool { return l.Index == index && l.Name == TunnelDevice })
}

// Resync makes the next Flush read everything again.
func (t *Target) Resync() { t.checkAt = time.Time{} }

// Flush brings everything there. It returns the number of changes that were tried and of failures.
func (t *Target) Flush() (steps, failures int, err error) {
	for range len(kindOrder) { // each round may make the next one possible: a device has an MTU once it exists
		now := t.now()
		if t.stale || !now.Before(t.checkAt) {
			if err = t.refresh(now); err != nil {
				return steps, failures, err
			}
		}
		n, failed := t.table.Flush()
		steps, failures = steps+n, failures+failed
		if n == failed {
			break
		}
		t.stale = true
	}
	return steps, failures, nil
}

// refresh reads interfaces and settings and decides what should be.
func (t *Target) refresh(now time.Time) error {
	t.checkAt = now.Add(checkEvery)
	links, err := t.kernel.ListLinks()
	if t.lastErr = err; err != nil {
		return err
	}
	_, err = t.kernel.Sysctl("net/ipv6/conf/all/forwarding")
	t.links, t.stale, t.ipv6 = links, false, err == nil
	fresh := map[Key]string{}
	for _, s := range desired(t.config, links, t.ipv6, t.mtuFile) {
		fresh[s.Key] = s.Value
		t.table.Set(s.Key, s.Value)
	}
	for k := range t.wanted {
		if _, ok := fresh[k]; !ok {
			t.unset(k)
		}
	}
	t.wanted = fresh
	t.lastErr = t.table.Resync()
	return t.lastErr
}

// unset: only addresses are removed when nobody wants them; everything else is left as it is.
func (t *Target) unset(k Key) {
	if k.Kind != Address {
		t.table.ObserveGone(k)
	}
	t.table.Unset(k)
}

// List implements reconcile.Target: the values of all wanted settings, and all addresses of tunl0.
func (t *Target) List() (map[Key]string, error) {
	actual := map[Key]string{}
	for k := range t.wanted {
		if v, ok, err := t.read(k); err != nil {
			return nil, err
		} else if ok {
			actual[k] = v
		}
	}
	tunnel, ok := t.tunnel()
	if !ok {
		return actual, nil
	}
	addresses, err := t.kernel.ListAddresses()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if a.Link == tunnel.Index && a.Prefix.Addr().Is4() {
			actual[Key{Address, a.Prefix.String()}] = ""
		}
	}
	return actual, nil
}

func (t *Target) tunnel() (kernel.Link, bool) {
	i := slices.IndexFunc(t.links, func(l kernel.Link) bool { return l.Name == TunnelDevice })
	if i < 0 {
		return kernel.Link{}, false
	}
	return t.links[i], true
}

func (t *Target) read(k Key) (value string, ok bool, err error) {
	tunnel, exists := t.tunnel()
	switch k.Kind {
	case Device:
		return tunnel.Kind, exists, nil
	case MTU:
		return strconv.Itoa(tunnel.MTU), exists, nil
	case Up:
		return "up", exists && tunnel.Up, nil
	case Sysctl:
		value, err = t.kernel.Sysctl(k.Name)
	case File:
		var data []byte
		data, err = os.ReadFile(k.Name)
		value = strings.TrimSpace(string(data))
	default:
		return "", false, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return value, err == nil, err
}

// Apply implements reconcile.Target.
func (t *Target) Apply(steps []reconcile.Step[Key, string]) []error {
	order := make([]int, len(steps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(slices.Index(kindOrder, steps[a].Key.Kind), slices.Index(kindOrder, steps[b].Key.Kind))
	})
	errs := make([]error, len(steps))
	for _, i := range order {
		errs[i] = t.apply(steps[i])
	}
	return errs
}

func (t *Target) apply(s reconcile.Step[Key, string]) error {
	tunnel, _ := t.tunnel()
	switch s.Key.Kind {
	case Device:
		_, err := t.kernel.EnsureIPIP(s.Key.Name)
		t.noIPIP = nil
		if errors.Is(err, kernel.ErrNoIPIP) {
			t.noIPIP = kernel.ErrNoIPIP
		}
		return err
	case MTU:
		mtu, err := strconv.Atoi(s.New)
		if err != nil {
			return err
		}
		return t.kernel.SetMTU(tunnel.Index, mtu)
	case Up:
		return t.kernel.SetUp(tunnel.Index)
	case Address:
		return t.applyAddress(tunnel, s)
	case Sysctl:
		return t.kernel.SetSysctl(s.Key.Name, s.New)
	case File:
		return writeFile(s.Key.Name, s.New)
	}
	return fmt.Errorf("unknown kind of setting %q", s.Key.Kind)
}

func (t *Target) applyAddress(tunnel kernel.Link, s reconcile.Step[Key, string]) error {
	p, err := netip.ParsePrefix(s.Key.Name)
	if err != nil {
		return err
	}
	if s.Action == reconcile.Remove {
		return t.kernel.DeleteAddress(kernel.Address{Link: tunnel.Index, Prefix: p})
	}
	return t.kernel.AddAddress(kernel.Address{Link: tunnel.Index, Prefix: p})
}

// writeFile replaces the file as a whole: readers never see a part of it. As Felix, without a newline.
func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the MTU: %w", err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return fmt.Errorf("write the MTU: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write the MTU: %w", err)
	}
	return nil
}

// NoIPIP is kernel.ErrNoIPIP if a pool uses IPIP and the kernel has none.
func (t *Target) NoIPIP() error {
	if !t.config.IPIP {
		return nil
	}
	return t.noIPIP
}

// Next is how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	at := t.checkAt
	if retry, ok := t.table.Next(); ok && retry.Before(at) {
		at = retry
	}
	return max(at.Sub(t.now()), time.Millisecond)
}

// Failures is the number of settings that the kernel refused.
func (t *Target) Failures() int { return t.table.Failures() }

// Status is the state of one setting.
type Status struct {
	Key
	Desired, Actual string
	reconcile.Status
}

// Statuses returns all settings in order.
func (t *Target) Statuses() []Status {
	var rows []Status
	for k, s := range t.table.All() {
		row := Status{Key: k, Status: s}
		want, have := t.table.Get(k)
		if want != nil {
			row.Desired = *want
		}
		if have != nil {
			row.Actual = *have
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Status) int {
		return cmp.Or(cmp.Compare(slices.Index(kindOrder, a.Kind), slices.Index(kindOrder, b.Kind)), cmp.Compare(a.Name, b.Name))
	})
	return rows
}
