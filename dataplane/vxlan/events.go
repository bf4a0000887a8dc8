package vxlan

import (
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
)

// Handle takes over kernel events about interfaces.
func (t *Target) Handle(events []kernel.Event) {
	t.Driver.Handle(events)
	for i := range events {
		switch e := &events[i]; e.Type {
		case kernel.EventLink, kernel.EventLinkGone:
			if w := t.watches[e.Link.Name]; w != nil || isDevice(e.Link.Name) {
				t.deviceSeen(e.Link.Name)
			}
		}
	}
}

// DeviceChanged takes over a device that was made or changed just now, before its event: its entries are set again with
// the next Flush.
func (t *Target) DeviceChanged(l kernel.Link) {
	if isDevice(l.Name) {
		t.SeeLink(l)
		t.deviceSeen(l.Name)
	}
}

func isDevice(name string) bool {
	for _, o := range overlays() {
		if o.Device == name {
			return true
		}
	}
	return false
}

// deviceSeen takes note of what the kernel has removed from a device: all entries with the device, the neighbours when
// it goes down or gets another hardware address. No other program removed them, so they are no repairs.
func (t *Target) deviceSeen(name string) {
	l, w := t.Link(name), t.watches[name]
	switch {
	case w == nil || w.link != l.Index:
		t.flushed(name, func(key) bool { return true })
	case w.mac != l.MAC || w.up && !l.Up:
		t.flushed(name, key.isNeighbour)
		w.mac, w.up = l.MAC, l.Up
	case w.up == l.Up:
		return
	}
	t.Resync()
}

func (t *Target) flushed(device string, which func(key) bool) {
	for k, v := range t.Wanted() {
		if k.Device == device && which(k) {
			t.Table.Unset(k)
			t.Table.ObserveGone(k)
			t.Table.Set(k, v)
		}
	}
}

// follow watches the entries of the devices that exist.
func (t *Target) follow() {
	for _, o := range overlays() {
		l, w := t.Link(o.Device), t.watches[o.Device]
		if l.Kind != o.Kind {
			l = kernel.Link{}
		}
		if w != nil && (w.link != l.Index || w.stop == nil) {
			w.end()
			delete(t.watches, o.Device)
			w = nil
		}
		if w == nil && l.Index != 0 {
			w = &watch{link: l.Index}
			w.stop, _ = t.kernel.WatchVXLANEntries(l.Index, t.take) // without it they are compared every 10 s, too
			t.watches[o.Device] = w
		}
		if w != nil {
			w.mac, w.up = l.MAC, l.Up
		}
	}
}

// mostEvents bounds the events that wait for a Flush.
const mostEvents = 10_000

// take is called with events, in another goroutine.
func (t *Target) take(events []kernel.VXLANEvent) {
	t.mu.Lock()
	if len(events) == 0 || len(t.events)+len(events) > mostEvents {
		t.events, t.lost = nil, true
	} else {
		t.events = append(t.events, events...)
	}
	t.mu.Unlock()
	t.wake()
}

// Flush applies the desired entries. It returns the number of changes that were tried and of failures.
func (t *Target) Flush() (steps, failures int, err error) {
	t.mu.Lock()
	events, lost := t.events, t.lost
	t.events, t.lost = nil, false
	t.mu.Unlock()
	if lost {
		for _, w := range t.watches { // one that has failed reports nothing any more: begin again
			w.end()
			w.stop = nil
		}
	}
	odd := t.differing(events)
	if lost || len(odd) > mostReads {
		t.Resync()
		odd = nil
	}
	for _, k := range odd {
		t.readAgain(k)
	}
	return t.Driver.Flush()
}

// differing returns the entries that are not as they were last seen here. Those that this target has changed are.
func (t *Target) differing(events []kernel.VXLANEvent) (odd []key) {
	for _, e := range events {
		for name, w := range t.watches {
			if w.link != e.Entry.Link {
				continue
			}
			k, v := rowOf(name, e.Entry)
			_, have := t.Table.Get(k)
			same := have == nil && e.Gone || have != nil && !e.Gone && *have == v
			if !same && !slices.Contains(odd, k) {
				odd = append(odd, k)
			}
			if len(odd) > mostReads {
				return odd
			}
		}
	}
	return odd
}

// readAgain reads an entry: an event may be older than the last change.
func (t *Target) readAgain(k key) {
	switch v, ok, err := t.read(k); {
	case err != nil: // such as that the device is gone
		t.Resync()
	case ok:
		t.Table.Observe(k, v)
	default:
		t.Table.ObserveGone(k)
	}
}
