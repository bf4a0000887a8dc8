package session

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Event is a change of one session, or its end.
type Event struct {
	Status  Status
	Removed bool // the session is not wanted any more
}

type watcher struct {
	pending map[netip.Addr]Event
	wake    chan struct{}
}

// Watch sends the status of all sessions, and then each one that changes, until ctx or the owner's context is done;
// then the channel is closed. A slow reader misses intermediate states, never the last one.
func (t *Table) Watch(ctx, owner context.Context) <-chan Event {
	w := &watcher{pending: map[netip.Addr]Event{}, wake: make(chan struct{}, 1)}
	t.mu.Lock()
	now := time.Now()
	for addr, e := range t.entries {
		w.pending[addr] = Event{Status: t.status(e, now)}
	}
	t.watchers[w] = true
	t.mu.Unlock()
	w.signal()
	out := make(chan Event)
	go func() {
		defer close(out)
		defer t.unwatch(w)
		for {
			select {
			case <-ctx.Done():
				return
			case <-owner.Done():
				return
			case <-w.wake:
			}
			for _, ev := range t.drain(w) {
				select {
				case out <- ev:
				case <-ctx.Done():
					return
				case <-owner.Done():
					return
				}
			}
		}
	}()
	return out
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// publish is called with the table locked.
func (t *Table) publish(e *entry, now time.Time, removed bool) {
	if len(t.watchers) == 0 {
		return
	}
	ev := Event{Status: t.status(e, now), Removed: removed}
	for w := range t.watchers {
		w.pending[e.session.Address.Unmap()] = ev
		w.signal()
	}
}

func (t *Table) drain(w *watcher) []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(w.pending), netip.Addr.Compare)
	events := make([]Event, 0, len(keys))
	for _, k := range keys {
		events = append(events, w.pending[k])
	}
	clear(w.pending)
	return events
}

func (t *Table) unwatch(w *watcher) {
	t.mu.Lock()
	delete(t.watchers, w)
	t.mu.Unlock()
}
