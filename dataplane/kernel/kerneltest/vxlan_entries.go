package kerneltest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
)

// fdbKey is the kernel's identity of an FDB entry.
type fdbKey struct {
	link int
	mac  string
}

// entryWatcher follows the entries of a device.
type entryWatcher struct {
	link    int
	changed func([]kernel.VXLANEvent)
}

// PutVXLANEntry sets a permanent entry as another program would.
func (f *Kernel) PutVXLANEntry(e kernel.VXLANEntry) {
	f.mu.Lock()
	f.putEntry(e, false)
	f.mu.Unlock()
	f.entryChanged(kernel.VXLANEvent{Entry: e})
}

// DropVXLANEntry removes an entry as another program would.
func (f *Kernel) DropVXLANEntry(e kernel.VXLANEntry) {
	f.mu.Lock()
	f.dropEntry(e)
	f.mu.Unlock()
	f.entryChanged(kernel.VXLANEvent{Entry: e, Gone: true})
}

func (f *Kernel) putEntry(e kernel.VXLANEntry, own bool) {
	if e.Neighbour.IsValid() {
		f.neighbours[neighbourKey{e.Link, e.Neighbour}] = kernel.Neighbour{Link: e.Link, Address: e.Neighbour,
			MAC: e.MAC, Kind: kernel.Permanent, Own: own}
		return
	}
	f.fdb[fdbKey{e.Link, e.MAC}] = e.Remote
}

func (f *Kernel) dropEntry(e kernel.VXLANEntry) {
	if e.Neighbour.IsValid() {
		delete(f.neighbours, neighbourKey{e.Link, e.Neighbour})
		return
	}
	delete(f.fdb, fdbKey{e.Link, e.MAC})
}

func (f *Kernel) entryChanged(e kernel.VXLANEvent) {
	f.mu.Lock()
	watchers := slices.Collect(maps.Values(f.entryWatchers))
	f.mu.Unlock()
	for _, w := range watchers {
		if w.link == e.Entry.Link {
			w.changed([]kernel.VXLANEvent{e})
		}
	}
}

// ListVXLANEntries implements VXLANEntries.
func (f *Kernel) ListVXLANEntries(link int) ([]kernel.VXLANEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("ListVXLANEntries"); err != nil {
		return nil, err
	}
	if f.links[link].Kind != kernel.KindVXLAN {
		return nil, unix.ENODEV
	}
	var all []kernel.VXLANEntry
	for k, n := range f.neighbours {
		if k.link == link && n.Kind == kernel.Permanent {
			all = append(all, kernel.VXLANEntry{Link: link, Neighbour: n.Address, MAC: n.MAC})
		}
	}
	for k, remote := range f.fdb {
		if k.link == link {
			all = append(all, kernel.VXLANEntry{Link: link, MAC: k.mac, Remote: remote})
		}
	}
	return all, nil
}

// VXLANEntry implements VXLANEntries.
func (f *Kernel) VXLANEntry(e kernel.VXLANEntry) (found kernel.VXLANEntry, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("VXLANEntry"); err != nil {
		return found, false, err
	}
	if _, there := f.links[e.Link]; !there {
		return found, false, unix.ENODEV
	}
	if e.Neighbour.IsValid() {
		n, there := f.neighbours[neighbourKey{e.Link, e.Neighbour}]
		e.MAC, ok = n.MAC, there && n.Kind == kernel.Permanent
	} else {
		e.Remote, ok = f.fdb[fdbKey{e.Link, e.MAC}]
	}
	return e, ok, nil
}

// SetVXLANEntry implements VXLANEntries.
func (f *Kernel) SetVXLANEntry(e kernel.VXLANEntry) error {
	err := f.changeEntry("SetVXLANEntry", e, func() { f.putEntry(e, true) })
	if err == nil {
		f.entryChanged(kernel.VXLANEvent{Entry: e})
	}
	return err
}

// RemoveVXLANEntry implements VXLANEntries.
func (f *Kernel) RemoveVXLANEntry(e kernel.VXLANEntry) error {
	err := f.changeEntry("RemoveVXLANEntry", e, func() { f.dropEntry(e) })
	if err == nil {
		f.entryChanged(kernel.VXLANEvent{Entry: e, Gone: true})
	}
	return err
}

func (f *Kernel) changeEntry(method string, e kernel.VXLANEntry, change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called(method); err != nil {
		return fmt.Errorf("%s: %w", e, err)
	}
	switch l, ok := f.links[e.Link]; {
	case !ok:
		return unix.ENODEV
	case method == "SetVXLANEntry" && !e.Neighbour.IsValid() && e.Remote.Is6() != l.VXLAN.Local.Is6():
		return unix.EAFNOSUPPORT
	}
	change()
	f.logf("%s %s", method, entryText(e))
	return nil
}

func entryText(e kernel.VXLANEntry) string {
	if e.Neighbour.IsValid() {
		return fmt.Sprintf("%s at %s dev #%d", e.Neighbour, e.MAC, e.Link)
	}
	return fmt.Sprintf("%s to %s dev #%d", e.MAC, textOf(e.Remote), e.Link)
}

func textOf(a netip.Addr) string {
	if !a.IsValid() {
		return "elsewhere"
	}
	return a.String()
}

// WatchVXLANEntries implements VXLANEntries.
func (f *Kernel) WatchVXLANEntries(link int, changed func([]kernel.VXLANEvent)) (stop func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("WatchVXLANEntries"); err != nil {
		return nil, err
	}
	id := f.calls["WatchVXLANEntries"]
	f.entryWatchers[id] = entryWatcher{link, changed}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.entryWatchers, id)
	}, nil
}
