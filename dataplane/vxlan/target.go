package vxlan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/driver"
	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/vtep"
)

// Kernel has the kernel calls of a Target.
type Kernel interface {
	kernel.VXLANEntries
	ListLinks() ([]kernel.Link, error)
}

// key names an entry: a neighbour by its address, an FDB entry by its hardware address.
type key struct {
	Device    string
	Neighbour netip.Addr
	MAC       string
}

// String names the entry for people.
func (k key) String() string {
	if k.isNeighbour() {
		return fmt.Sprintf("neighbour %s dev %s", k.Neighbour, k.Device)
	}
	return fmt.Sprintf("fdb %s dev %s", k.MAC, k.Device)
}

func (k key) isNeighbour() bool { return k.Neighbour.IsValid() }

// value is where an entry leads: a neighbour to a hardware address, an FDB entry to a node.
type value struct {
	MAC    string
	Remote netip.Addr
}

// String writes the value for people.
func (v value) String() string {
	if v.MAC == "" && !v.Remote.IsValid() {
		return "another port, VNI, interface or next hop"
	}
	return cmp.Or(v.MAC, v.Remote.String())
}

const (
	// mostReads is how many entries are read one by one; more are listed.
	mostReads = 100
	// mostRefused bounds the nodes that have a notice of their own.
	mostRefused = 10
)

// Target keeps the entries. Not safe for concurrent use.
type Target struct {
	*driver.Driver[key, value]
	kernel  Kernel
	now     func() time.Time
	wake    func()
	used    []overlay.Overlay
	needed  map[string]bool     // devices of those that pools need
	nodes   map[place]vtep.VTEP // that have entries
	watches map[string]*watch   // by device
	refused map[refusal]time.Time
	more    int // refusals without a notice of their own

	moreSince time.Time

	mu     sync.Mutex // guards the fields below
	events []kernel.VXLANEvent
	lost   bool // some events were
}

// watch follows the entries of a device.
type watch struct {
	link int
	mac  string
	up   bool
	stop func() // nil: the watch could not be started
}

// refusal is why a node gets no entries.
type refusal struct{ Overlay, Node, Why string }

// New makes a Target; now is the clock. wake is to make the agent call Flush soon, and must not block.
func New(k Kernel, now func() time.Time, wake func()) *Target {
	t := &Target{kernel: k, now: now, wake: wake, nodes: map[place]vtep.VTEP{}, watches: map[string]*watch{},
		refused: map[refusal]time.Time{}}
	t.Driver = driver.New(t, driver.Config[key, value]{Name: "vxlan", Part: "neighbours", ListLinks: k.ListLinks,
		Now: now, Follows: t.follows, Look: t.follow, Read: t.read})
	return t
}

// Close ends the watches of the devices' entries, which stay.
func (t *Target) Close() {
	for _, w := range t.watches {
		w.end()
	}
	clear(t.watches)
}

func (w *watch) end() {
	if w.stop != nil {
		w.stop()
	}
}

// overlays returns those with a VXLAN device.
func overlays() []overlay.Overlay {
	return slices.DeleteFunc(slices.Clone(overlay.All()), func(o overlay.Overlay) bool {
		return o.Kind != overlay.KindVXLAN
	})
}

// follows reports whether the entries may differ with a state: workloads of this host, which change often, have none.
func (t *Target) follows(h *hoststate.Host) bool {
	if !h.Concerned && !h.VTEPsChanged {
		return false
	}
	pools, used, needed := h.PoolTable(), []overlay.Overlay(nil), map[string]bool{}
	for _, o := range overlays() {
		if !h.PolicyOnly && o.Has(&h.Felix, pools, h.Own) {
			used = append(used, o)
			needed[o.Device] = o.Used(&h.Felix, pools)
		}
	}
	same := slices.EqualFunc(used, t.used, func(a, b overlay.Overlay) bool { return a.Device == b.Device })
	same = same && maps.Equal(needed, t.needed)
	t.used, t.needed = used, needed
	if same && h.VTEPsOf != nil {
		t.amend(h)
		return false
	}
	return h.VTEPsChanged || !same
}

// amend takes over the endpoints of a few nodes.
func (t *Target) amend(h *hoststate.Host) {
	t.setRefused(h)
	set, gone := map[key]value{}, []key(nil)
	for _, node := range h.VTEPsOf {
		if node == h.Node {
			continue
		}
		for _, o := range t.used {
			at := place{o.Device, node}
			if old, had := t.nodes[at]; had {
				gone = append(gone, key{Device: o.Device, Neighbour: old.Tunnel}, key{Device: o.Device, MAC: old.MAC})
				delete(t.nodes, at)
			}
			if v, err := h.VTEPs(o.Family).Of(node); err == nil && t.Link(o.Device).Kind == o.Kind {
				t.put(set, o.Device, v)
			}
		}
	}
	t.Amend(set, gone)
}

// place is a node on a device.
type place struct{ device, node string }

// put adds the entries of a node.
func (t *Target) put(want map[key]value, device string, v vtep.VTEP) {
	want[key{Device: device, Neighbour: v.Tunnel}] = value{MAC: v.MAC}
	want[key{Device: device, MAC: v.MAC}] = value{Remote: v.Address}
	t.nodes[place{device, v.Node}] = v
}

// Desired implements driver.Objects.
func (t *Target) Desired(h *hoststate.Host, links map[string]kernel.Link) map[key]value {
	want := make(map[key]value, len(t.Wanted()))
	t.setRefused(h)
	t.nodes = make(map[place]vtep.VTEP, len(t.nodes))
	for _, o := range t.used {
		if links[o.Device].Kind != o.Kind {
			continue
		}
		for v := range h.VTEPs(o.Family).All() {
			if v.Node != h.Node {
				t.put(want, o.Device, v)
			}
		}
	}
	return want
}

// List implements driver.Objects: all permanent entries of the devices, whoever made them.
func (t *Target) List() (map[key]value, error) {
	have := map[key]value{}
	for _, o := range overlays() {
		l := t.Link(o.Device)
		if l.Kind != o.Kind {
			continue
		}
		list, err := t.kernel.ListVXLANEntries(l.Index)
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Device, err)
		}
		for _, e := range list {
			k, v := rowOf(o.Device, e)
			have[k] = v
		}
	}
	return have, nil
}

// read is the driver's Read.
func (t *Target) read(k key) (v value, ok bool, err error) {
	l := t.Link(k.Device)
	if l.Index == 0 {
		return value{}, false, nil
	}
	e, ok, err := t.kernel.VXLANEntry(kernel.VXLANEntry{Link: l.Index, Neighbour: k.Neighbour, MAC: k.MAC})
	_, v = rowOf(k.Device, e)
	return v, ok, err
}

func rowOf(device string, e kernel.VXLANEntry) (key, value) {
	if e.Neighbour.IsValid() {
		return key{Device: device, Neighbour: e.Neighbour}, value{MAC: e.MAC}
	}
	return key{Device: device, MAC: e.MAC}, value{Remote: e.Remote}
}

// Apply implements driver.Objects. A neighbour leads to an FDB entry, so it comes after it and goes before it.
func (t *Target) Apply(steps []reconcile.Step[key, value]) []error {
	errs := make([]error, len(steps))
	for _, first := range []bool{true, false} {
		for i, s := range steps {
			if remove := s.Action == reconcile.Remove; first == (remove == s.Key.isNeighbour()) {
				errs[i] = t.apply(s)
			}
		}
	}
	return errs
}

func (t *Target) apply(s reconcile.Step[key, value]) error {
	l := t.Link(s.Key.Device)
	e := kernel.VXLANEntry{Link: l.Index, Neighbour: s.Key.Neighbour, MAC: cmp.Or(s.Key.MAC, s.New.MAC),
		Remote: s.New.Remote}
	switch {
	case s.Action != reconcile.Remove:
		return t.kernel.SetVXLANEntry(e)
	case l.Index == 0:
		return nil // it went with the device
	}
	return t.kernel.RemoveVXLANEntry(e)
}
