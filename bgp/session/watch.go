package speaker

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// SessionEvent is a change of one session, or its end.
type SessionEvent struct {
	Status  SessionStatus
	Removed bool // the session is not wanted any more
}

type statusWatcher struct {
	pending map[netip.Addr]SessionEvent
	wake    chan struct{}
}

// WatchSessions sends the status of all sessions, and then each one that changes, until ctx is done; then the channel
// is closed. A slow reader misses intermediate states, never the last one.
func (s *Speaker) WatchSessions(ctx context.Context) <-chan SessionEvent {
	w := &statusWatcher{pending: map[netip.Addr]SessionEvent{}, wake: make(chan struct{}, 1)}
	t := s.status
	t.mu.Lock()
	now := time.Now()
	for addr, e := range t.entries {
		w.pending[addr] = SessionEvent{Status: e.status(now)}
	}
	t.watchers[w] = true
	t.mu.Unlock()
	w.signal()
	out := make(chan SessionEvent)
	go func() {
		defer close(out)
		defer t.unwatch(w)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.ctx.Done():
				return
			case <-w.wake:
			}
			for _, ev := range t.drain(w) {
				select {
				case out <- ev:
				case <-ctx.Done():
					return
				case <-s.ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (w *statusWatcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// publish is called with the table locked.
func (t *statusTable) publish(e *sessionEntry, now time.Time, removed bool) {
	if len(t.watchers) == 0 {
		return
	}
	ev := SessionEvent{Status: e.status(now), Removed: removed}
	for w := range t.watchers {
		w.pending[e.session.Address.Unmap()] = ev
		w.signal()
	}
}

func (t *statusTable) drain(w *statusWatcher) []SessionEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(w.pending), netip.Addr.Compare)
	events := make([]SessionEvent, 0, len(keys))
	for _, k := range keys {
		events = append(events, w.pending[k])
	}
	clear(w.pending)
	return events
}

func (t *statusTable) unwatch(w *statusWatcher) {
	t.mu.Lock()
	delete(t.watchers, w)
	t.mu.Unlock()
}
