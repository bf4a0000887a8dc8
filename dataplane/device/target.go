package device

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

// Target keeps the devices. Not safe for concurrent use.
type Target struct {
	*driver.Driver[key, value]
	kernel   kernel.Links
	now      func() time.Time
	devices  func(*hoststate.Host) []overlay.Device
	families map[string]model.Family // of the addresses on devices that are this node's own
	missing  map[string]error        // devices that the kernel cannot make
	last     []overlay.Device        // those that are desired
	kept     map[string]bool         // those of overlay.Device.Kept
	tooLarge []reconcile.Notice      // see overlay.Device.TooLarge
	log      *zap.Logger
	changed  func(kernel.Link) // may be nil
	leads    func(device string) bool
	unneeded map[string]bool // VXLAN devices that are to be deleted
	release  string          // of the kernel
	avoided  map[string]bool // devices that shall leave no checksums to the hardware; see AvoidOffload
	restore  map[string]bool // devices that shall do so again, since this run has changed that
}

// New makes a Target; now is the clock.
func New(k kernel.Links, now func() time.Time, log *zap.Logger) *Target {
	families := map[string]model.Family{}
	for _, o := range overlay.All() {
		families[o.Device] = o.Family
	}
	t := newTarget(k, now, (*hoststate.Host).Overlays, families)
	t.log, t.release = log, kernel.Release()
	return t
}

// FollowRoutes has a function asked whether routes lead through a device: then it stays.
func (t *Target) FollowRoutes(leads func(device string) bool) { t.leads = leads }

// setUnneeded determines the VXLAN devices that nothing needs any more: no pool, no route of this node, and, since the
// Node has no tunnel address, no other node. Kernels make the device of IPIP themselves, so it stays.
func (t *Target) setUnneeded(h *hoststate.Host) {
	t.unneeded = map[string]bool{}
	if !h.DatastoreSynced || h.Own == nil || h.PolicyOnly {
		return
	}
	disabled := overlay.Disabled(&h.Felix)
	for name := range t.families {
		if !overlay.HasVTEPs(name) || t.Link(name).Kind != overlay.KindVXLAN || disabled[name] != nil ||
			h.Own.TunnelAddress(name).IsValid() || t.leads != nil && t.leads(name) ||
			overlay.UsedDevice(name, &h.Felix, h.PoolTable()) {
			continue
		}
		t.unneeded[name] = true
	}
}

func (t *Target) deleteDevice(l kernel.Link) error {
	if err := t.kernel.DeleteLink(l.Index); err != nil {
		return err
	}
	t.log.Info("the device was deleted, since nothing needs it any more", zap.String("device", l.Name))
	t.LoseLink(l.Name)
	return nil
}

// FollowDevices has a function called with each device that a Flush has made or given other parameters: its entries
// may be gone.
func (t *Target) FollowDevices(changed func(kernel.Link)) { t.changed = changed }

func newTarget(
	k kernel.Links, now func() time.Time, devices func(*hoststate.Host) []overlay.Device,
	families map[string]model.Family,
) *Target {
	t := &Target{kernel: k, now: now, devices: devices, families: families, missing: map[string]error{},
		log: zap.NewNop(), restore: map[string]bool{}}
	t.Driver = driver.New(t, driver.Config[key, value]{
		Name: "device", Part: "interfaces", ListLinks: k.ListLinks, Now: now,
		// An undesired address on an own device is an earlier one, unless the last state of an earlier run is older.
		Prune: func(h *hoststate.Host) bool { return !h.Last }})
	return t
}

// Handle takes over kernel events.
func (t *Target) Handle(events []kernel.Event) {
	t.Driver.Handle(events)
	for i := range events {
		if e := &events[i]; e.Type != kernel.EventAddress && e.Type != kernel.EventAddressGone {
			continue
		} else if _, own := t.families[t.LinkName(e.Address.Link)]; own {
			t.Resync()
		}
	}
}

// Desired implements driver.Objects: of a device that does not exist yet, that it shall.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[key]value {
	host, source := h.UplinkMTU(links)
	want := map[key]value{}
	list := t.devices(h)
	t.setUnneeded(h)
	for name := range t.families {
		if l := links[name]; l.Kind == overlay.KindVXLAN && !t.unneeded[name] {
			want[key{Kind: exists, Device: name}] = value{Text: l.Kind, VXLAN: l.VXLAN} // unless it has to differ
		}
	}
	before := t.tooLarge
	t.tooLarge, t.last, t.kept = nil, list, map[string]bool{}
	for _, d := range list {
		t.noteTooLarge(d, d.TooLarge(host, source), before)
		if _, there := links[d.Name]; (d.Leaving || d.Kept) && !there {
			continue
		}
		// A device is not made again because of a state that is older than it may be.
		stays := h.Last && links[d.Name].Kind == overlay.KindVXLAN
		if t.kept[d.Name] = d.Kept; !d.Kept && !stays {
			want[key{Kind: exists, Device: d.Name}] = value{Text: d.Kind, VXLAN: vxlanOf(d)}
		}
		l, there := links[d.Name]
		if !there {
			continue
		}
		if n := d.MTUOn(host); n > 0 { // else it is not known yet
			want[key{Kind: mtu, Device: d.Name}] = value{Text: strconv.Itoa(n), Index: l.Index}
		}
		want[key{Kind: up, Device: d.Name}] = value{Text: "up", Index: l.Index}
		if text := t.wantedChecksum(h, d); text != "" {
			want[key{Kind: txChecksum, Device: d.Name}] = value{Text: text, Index: l.Index}
		}
		for _, a := range d.Addresses {
			want[key{Kind: address, Device: d.Name, Address: a}] = value{Text: a.String(), Index: l.Index}
		}
	}
	return want
}

// Devices returns the desired devices that exist, with the MTUs that they have.
func (t *Target) Devices() (list []overlay.Device) {
	for _, d := range t.last {
		if l := t.Link(d.Name); l.Index != 0 {
			d.MTU = l.MTU
			list = append(list, d)
		}
	}
	return list
}

// noteTooLarge has a notice of a device whose packets do not fit the host, as the text says, if any. Those before may
// have it already.
func (t *Target) noteTooLarge(d overlay.Device, text string, before []reconcile.Notice) {
	if text == "" {
		return
	}
	n := reconcile.Notice{Subject: "device " + d.Name, Text: text, Since: t.now()}
	for _, o := range before {
		if o.Subject == n.Subject && o.Text == n.Text {
			n.Since = o.Since
		}
	}
	t.tooLarge = append(t.tooLarge, n)
}

// Notices returns one for each property that cannot be set, and for devices whose packets are too large.
func (t *Target) Notices() []reconcile.Notice { return append(t.Driver.Notices(), t.tooLarge...) }

// List implements driver.Objects: the properties of the desired devices, and the addresses of all that are own.
func (t *Target) List() (map[key]value, error) {
	have, own := map[key]value{}, map[int]string{}
	for name := range t.unneeded {
		l := t.Link(name)
		have[key{Kind: exists, Device: name}] = value{Text: l.Kind, VXLAN: l.VXLAN}
	}
	for k := range t.Wanted() {
		l := t.Link(k.Device)
		switch {
		case l.Index == 0:
		case k.Kind == exists:
			have[k] = value{Text: l.Kind, VXLAN: l.VXLAN}
		case k.Kind == mtu:
			have[k] = value{Text: strconv.Itoa(l.MTU), Index: l.Index}
		case k.Kind == up && l.Up:
			have[k] = value{Text: "up", Index: l.Index}
		case k.Kind == txChecksum:
			on, err := t.kernel.TxChecksum(l.Name)
			if err != nil {
				return nil, err
			}
			have[k] = value{Text: onOff(on), Index: l.Index}
			if on {
				delete(t.restore, l.Name)
			}
		}
	}
	for name := range t.families {
		if l := t.Link(name); l.Index != 0 {
			own[l.Index] = name
		}
	}
	if len(own) == 0 {
		return have, nil
	}
	addresses, err := t.kernel.ListAddresses()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if name, ok := own[a.Link]; ok && !t.kept[name] && t.decides(name, a.Prefix.Addr()) {
			have[key{Kind: address, Device: name, Address: a.Prefix}] = value{Text: a.Prefix.String(), Index: a.Link}
		}
	}
	return have, nil
}

// decides reports whether it is decided here which such addresses a device has: the kernel makes link-local ones of
// IPv6 itself.
func (t *Target) decides(device string, a netip.Addr) bool {
	family := model.IPv4
	if a.Is6() {
		family = model.IPv6
	}
	own := t.families[device]
	return (own == 0 || own == family) && (a.Is4() || !a.IsLinkLocalUnicast())
}

// Apply implements driver.Objects.
func (t *Target) Apply(steps []reconcile.Step[key, value]) []error {
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

func (t *Target) apply(s reconcile.Step[key, value]) error {
	l := t.Link(s.Key.Device)
	if s.Action == reconcile.Remove {
		switch {
		case s.Key.Kind == exists && t.unneeded[s.Key.Device] && l.Index != 0:
			return t.deleteDevice(l)
		case s.Key.Kind != address || l.Index == 0 || t.kept[s.Key.Device]:
			return nil // the device stays as it is
		}
		return t.kernel.DeleteAddress(kernel.Address{Link: l.Index, Prefix: s.Key.Address})
	}
	switch s.Key.Kind {
	case exists:
		return t.makeDevice(kernel.Device{Name: s.Key.Device, Kind: s.New.Text, VXLAN: s.New.VXLAN})
	case mtu:
		n, err := strconv.Atoi(s.New.Text)
		if err != nil {
			return err
		}
		return t.kernel.SetMTU(l.Index, n)
	case txChecksum:
		return t.setChecksum(l, s.New.Text == onOff(true))
	case address:
		return t.kernel.AddAddress(kernel.Address{Link: l.Index, Prefix: s.Key.Address})
	case up:
		err := t.kernel.SetUp(l.Index)
		if v := l.VXLAN; errors.Is(err, unix.EADDRINUSE) && v.Port != 0 {
			return fmt.Errorf("%w: another program has UDP port %d (ss -ulp 'sport = %[2]d')", err, v.Port)
		}
		return err
	}
	return fmt.Errorf("unknown kind of property %q", s.Key.Kind)
}

func (t *Target) makeDevice(d kernel.Device) error {
	why := d.Replaces(t.Link(d.Name))
	l, err := t.kernel.EnsureDevice(d)
	delete(t.missing, d.Name)
	var none kernel.NoKindError
	var taken kernel.VNITakenError
	switch {
	case err == nil:
		if why != "" {
			t.log.Info("the device was deleted and made again", zap.String("device", d.Name), zap.String("reason", why))
		}
		t.SeeLink(l)
		if t.changed != nil {
			t.changed(l)
		}
	case errors.As(err, &none):
		t.missing[d.Name] = none
	case errors.As(err, &taken) && t.Link(d.Name).Index == 0: // or the former device is still of use
		t.missing[d.Name] = taken
	}
	return err
}

// Missing returns, for each desired device that this kernel cannot make, the reason.
func (t *Target) Missing() map[string]error {
	why := map[string]error{}
	for name, err := range t.missing {
		if _, wanted := t.Wanted()[key{Kind: exists, Device: name}]; wanted {
			why[name] = err
		}
	}
	return why
}
