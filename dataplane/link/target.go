package link

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/safefile"
)

// Kernel has the methods of the kernel that a Target needs.
type Kernel interface {
	kernel.Links
	kernel.Sysctls
}

// checkEvery is how often settings are read again: the kernel has no events for most sysctls.
const checkEvery = 10 * time.Second

// Target keeps interfaces as configured. Report changes to it, then call Flush. Not safe for concurrent use.
type Target struct {
	kernel  Kernel
	now     func() time.Time
	mtuFile string
	config  Config
	peering []Peering
	// reassembly bounds what the kernel keeps of incomplete packets; bounded are the settings for it.
	reassembly Reassembly
	bounded    []setting
	table      *reconcile.Table[Key, string]
	links      map[string]kernel.Link
	wanted     map[Key]setting
	ipv6       bool

	stale   bool            // config or links changed
	touched map[string]bool // interfaces whose settings may have changed
	checkAt time.Time       // of the next full reading
	lastErr error

	own     map[string]bool  // devices whose addresses only this Target sets; one that was ours stays so
	missing map[string]error // devices that the kernel cannot make

	unencrypted time.Time // since when WireGuard is configured

	readOnly *kernel.ReadOnlyError // why no variable can be set; nil: they can
}

// Repairs lists the changes of other programs that Flush has undone since the last call, and how many more there were.
func (t *Target) Repairs() ([]reconcile.Repair, int) { return t.table.Repairs() }

// New makes a Target. mtuFile is where the CNI plugin reads the MTU, empty: no file; now is the clock.
func New(k Kernel, mtuFile string, now func() time.Time) *Target {
	t := &Target{
		kernel: k, now: now, mtuFile: mtuFile, stale: true,
		links: map[string]kernel.Link{}, wanted: map[Key]setting{}, touched: map[string]bool{},
		own: map[string]bool{}, missing: map[string]error{},
	}
	for _, name := range OwnDevices() {
		t.own[name] = true
	}
	equal := func(a, b string) bool { return a == b }
	t.table = reconcile.NewTable(t, equal, now, reconcile.DefaultBackoff)
	t.table.Prune(true) // an undesired address found here is an earlier one of an own device
	return t
}

// Configure sets the datastore's settings.
func (t *Target) Configure(c Config) {
	if c.WireGuard && !t.config.WireGuard {
		t.unencrypted = t.now()
	}
	t.config, t.stale = c, true
	for _, d := range c.Devices {
		if !t.own[d.Name] {
			t.own[d.Name] = true
			t.touch(d.Name)
		}
	}
}

// BoundReassembly sets what the kernel keeps of incomplete packets. Call it before the first Flush.
func (t *Target) BoundReassembly(r Reassembly) { t.reassembly = r }

// setPeering sets the addresses towards workloads that speak BGP.
func (t *Target) setPeering(list []Peering) {
	if !slices.Equal(t.peering, list) {
		t.peering, t.stale = list, true
	}
}

// Handle takes over kernel events: interfaces that came or changed are read again.
func (t *Target) Handle(events []kernel.Event) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case kernel.EventResync:
			t.Resync()
		case kernel.EventLink:
			t.putLink(e.Link)
		case kernel.EventLinkGone:
			if t.links[e.Link.Name].Index == e.Link.Index {
				delete(t.links, e.Link.Name)
				t.touch(e.Link.Name)
			}
		case kernel.EventAddress, kernel.EventAddressGone:
			t.addressChanged(e.Address)
		}
	}
}

func (t *Target) putLink(l kernel.Link) {
	old := t.links[l.Name]
	if old.Running = l.Running; old == l {
		t.links[l.Name] = l // no setting depends on the carrier, which a workload can take away as often as it likes
		return
	}
	for name, old := range t.links {
		if old.Index == l.Index && name != l.Name {
			delete(t.links, name)
			t.touch(name)
		}
	}
	t.links[l.Name] = l
	t.touch(l.Name)
}

// addressChanged has the addresses of an interface looked at if it is a device of our own, or if a is, or was, one
// towards a workload.
func (t *Target) addressChanged(a kernel.Address) {
	for name, l := range t.links {
		if l.Index == a.Link {
			if _, peering := t.wanted[peeringKey(name, a.Prefix)]; peering || t.own[name] {
				t.touch(name)
			}
			return
		}
	}
}

func (t *Target) touch(name string) { t.touched[name], t.stale = true, true }

// Retry makes the next Flush retry failed steps, and read everything again.
func (t *Target) Retry() {
	t.table.RetryAll()
	t.Resync()
}

// Resync makes the next Flush read everything again.
func (t *Target) Resync() { t.checkAt = time.Time{} }

// Flush applies the desired settings. It returns the number of changes that were tried and of failures.
func (t *Target) Flush() (steps, failures int, err error) {
	for range len(kindOrder) { // each round may make the next one possible: a device has an MTU once it exists
		now := t.now()
		if !now.Before(t.checkAt) {
			err = t.readAll(now)
		} else if t.stale {
			err = t.readTouched()
		}
		if t.lastErr = err; err != nil {
			return steps, failures, err
		}
		n, failed := t.table.Flush()
		steps, failures = steps+n, failures+failed
		if !t.stale {
			break
		}
	}
	return steps, failures, nil
}

func (t *Target) readAll(now time.Time) error {
	t.checkAt = now.Add(checkEvery)
	links, err := t.kernel.ListLinks()
	if err != nil {
		return err
	}
	clear(t.links)
	for _, l := range links {
		t.links[l.Name] = l
	}
	_, err = t.kernel.Sysctl(forwarding6)
	t.ipv6 = err == nil
	t.bounded = t.reassembly.settings(t.kernel)
	t.decide()
	return t.table.Resync()
}

// readTouched reads settings that are newly desired or belong to an interface that changed. If that fails, everything
// is read.
func (t *Target) readTouched() error {
	touched := t.touched
	for _, k := range t.decide() {
		if err := t.observe(k); err != nil {
			t.Resync()
			return err
		}
	}
	if err := t.readAddresses(touched); err != nil {
		t.Resync()
		return err
	}
	return nil
}

// readAddresses reads the addresses of those devices that are our own.
func (t *Target) readAddresses(devices map[string]bool) error {
	addresses, err := t.ownAddresses(devices)
	if err != nil {
		return err
	}
	for k := range t.table.All() {
		if k.Kind == Address && devices[k.Device] && !slices.Contains(addresses, k) {
			t.table.ObserveGone(k)
		}
	}
	for _, k := range addresses {
		t.table.Observe(k, "")
	}
	return nil
}

func (t *Target) observe(k Key) error {
	if k.Kind == Address {
		return nil
	}
	v, ok, err := t.read(k)
	if err != nil {
		return err
	}
	if ok {
		t.table.Observe(k, v)
		return nil
	}
	if k.Kind == Sysctl && t.gone(k.Device) {
		t.forget(k.Device)
		t.table.Unset(k) // first: it went with the interface, and no other program took it away
	}
	t.table.ObserveGone(k)
	return nil
}

// forget takes note of the end of an interface before its event, so that nothing is wanted of it any more.
func (t *Target) forget(device string) {
	delete(t.links, device)
	t.touch(device)
}

// decide sets the desired settings in the table. It returns the settings whose actual value may not be known.
func (t *Target) decide() (unknown []Key) {
	fresh := make(map[Key]setting, len(t.wanted))
	settings := desired(t.config, t.links, t.ipv6, t.mtuFile)
	for _, s := range slices.Concat(settings, peeringSettings(t.peering, t.links, t.ipv6), t.bounded) {
		fresh[s.Key] = s
		if _, known := t.wanted[s.Key]; !known || t.touched[s.Device] {
			unknown = append(unknown, s.Key)
		}
		t.table.Set(s.Key, s.Value)
	}
	for k := range t.wanted {
		if _, ok := fresh[k]; !ok {
			t.unset(k)
		}
	}
	t.wanted, t.touched, t.stale = fresh, map[string]bool{}, false
	return unknown
}

// unset: only addresses are removed when no longer desired; everything else is left as it is.
func (t *Target) unset(k Key) {
	if k.Kind != Address && k.Kind != PeeringAddress {
		t.table.ObserveGone(k)
	}
	t.table.Unset(k)
}

// List implements reconcile.Applier: the values of all desired settings, all addresses of own devices, and those still
// to be removed from workloads' interfaces.
func (t *Target) List() (map[Key]string, error) {
	actual := map[Key]string{}
	for k := range t.wanted {
		if v, ok, err := t.read(k); err != nil {
			return nil, err
		} else if ok {
			actual[k] = v
		}
	}
	for k := range t.table.All() {
		if _, ok, err := t.readPeering(k); err != nil {
			return nil, err
		} else if ok {
			actual[k] = ""
		}
	}
	addresses, err := t.ownAddresses(t.own)
	if err != nil {
		return nil, err
	}
	for _, k := range addresses {
		actual[k] = ""
	}
	return actual, nil
}

// ownAddresses returns the addresses of those devices that are our own and exist.
func (t *Target) ownAddresses(devices map[string]bool) ([]Key, error) {
	names := map[int]string{}
	for name := range devices {
		if l, exists := t.links[name]; exists && t.own[name] {
			names[l.Index] = name
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	addresses, err := t.kernel.ListAddresses()
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, a := range addresses {
		if name, ok := names[a.Link]; ok && decided(name, a.Prefix.Addr()) {
			keys = append(keys, Key{Kind: Address, Device: name, Address: a.Prefix})
		}
	}
	return keys, nil
}

// decided reports whether it is decided here which such addresses a device has: the kernel makes link-local ones of
// IPv6 itself, and IPIP is for IPv4 only.
func decided(device string, a netip.Addr) bool {
	return a.Is4() || device != TunnelDevice && !a.IsLinkLocalUnicast()
}

func (t *Target) read(k Key) (value string, ok bool, err error) {
	l, exists := t.links[k.Device]
	switch k.Kind {
	case Device:
		return l.Kind, exists, nil
	case MTU:
		return strconv.Itoa(l.MTU), exists, nil
	case Up:
		return "up", exists && l.Up, nil
	case PeeringAddress:
		return t.readPeering(k)
	case Sysctl:
		value, err = t.kernel.Sysctl(k.Name)
	case File:
		var data []byte
		data, err = safefile.Read(k.Name, 1<<10)
		value = strings.TrimSpace(string(data))
	default:
		return "", false, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return value, err == nil, err
}

// readPeering reports whether an address is on a workload's interface.
func (t *Target) readPeering(k Key) (value string, ok bool, err error) {
	l, exists := t.links[k.Device]
	if k.Kind != PeeringAddress || !exists {
		return "", false, nil
	}
	addresses, err := t.kernel.ListAddresses()
	for _, a := range addresses {
		ok = ok || a.Link == l.Index && a.Prefix == k.Address
	}
	return "", ok && err == nil, err
}

// Apply implements reconcile.Applier.
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
	l, exists := t.links[s.Key.Device]
	switch s.Key.Kind {
	case Device:
		return t.makeDevice(kernel.Device{Name: s.Key.Device, Kind: s.New})
	case MTU:
		mtu, err := strconv.Atoi(s.New)
		if err != nil {
			return err
		}
		return t.kernel.SetMTU(l.Index, mtu)
	case Up:
		return t.kernel.SetUp(l.Index)
	case Address, PeeringAddress:
		a := kernel.Address{Link: l.Index, Prefix: s.Key.Address}
		switch {
		case exists && s.Action == reconcile.Remove:
			return t.kernel.DeleteAddress(a)
		case exists:
			return t.kernel.AddAddress(a)
		case s.Action == reconcile.Remove:
			return nil // it went with the interface
		}
		return fmt.Errorf("interface %s does not exist", s.Key.Device)
	case Sysctl:
		err := t.setSysctl(s.Key.Name, s.New)
		if errors.Is(err, fs.ErrNotExist) && t.gone(s.Key.Device) {
			t.forget(s.Key.Device)
			return nil
		}
		return err
	case File:
		return writeFile(s.Key.Name, s.New)
	}
	return fmt.Errorf("unknown kind of setting %q", s.Key.Kind)
}

// gone reports whether an interface has left since its last event, as that of a pod that ends. Each interface has the
// variable.
func (t *Target) gone(device string) bool {
	if device == "" {
		return false
	}
	_, err := t.kernel.Sysctl("net/ipv4/conf/" + device + "/forwarding")
	return errors.Is(err, fs.ErrNotExist)
}

func (t *Target) setSysctl(name, value string) error {
	err := t.kernel.SetSysctl(name, value)
	if err == nil {
		t.readOnly = nil
	}
	_ = errors.As(err, &t.readOnly)
	return err
}

func (t *Target) makeDevice(d kernel.Device) error {
	l, err := t.kernel.EnsureDevice(d)
	delete(t.missing, d.Name)
	var none kernel.NoKindError
	if errors.As(err, &none) {
		t.missing[d.Name] = none
	}
	if err == nil {
		t.putLink(l)
	}
	return err
}

// writeFile replaces the file as a whole: readers never read a part of it. As Felix, without a newline.
func writeFile(path, content string) error {
	if err := safefile.Replace(path, []byte(content), 0o644); err != nil {
		return fmt.Errorf("write the MTU: %w", err)
	}
	return nil
}

// Missing returns, for each desired device that this kernel cannot make, the reason.
func (t *Target) Missing() map[string]error {
	why := map[string]error{}
	for _, d := range t.config.Devices {
		if err := t.missing[d.Name]; err != nil {
			why[d.Name] = err
		}
	}
	return why
}

// Next returns how long the next Flush may wait if nothing happens before.
func (t *Target) Next() time.Duration {
	at := t.checkAt
	if retry, ok := t.table.Next(); ok && retry.Before(at) {
		at = retry
	}
	return max(at.Sub(t.now()), time.Millisecond)
}

// Failures is the number of settings that the kernel refused.
func (t *Target) Failures() int { return t.table.Failures() }

// problem returns the failures, nil if there are none.
func (t *Target) problem() error { return t.table.Problem() }

// Status is the state of one setting.
type Status struct {
	Key
	Desired, Actual string
	reconcile.Status
	// ReadOnly: this process can never set the variable. Notices has the reason.
	ReadOnly bool
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
		row.ReadOnly = k.Kind == Sysctl && s.Phase == reconcile.Failed && t.readOnly != nil
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Status) int {
		return cmp.Or(cmp.Compare(slices.Index(kindOrder, a.Kind), slices.Index(kindOrder, b.Kind)),
			cmp.Compare(a.Key.String(), b.Key.String()))
	})
	return rows
}
