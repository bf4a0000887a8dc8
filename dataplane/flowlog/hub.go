package flowlog

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// backlog is how many entries wait for a subscriber; one that is slower misses some.
const backlog = 256

// Hub passes entries on: as lines to a writer, and to subscribers. It is safe for concurrent use.
type Hub struct {
	lines io.Writer                 // nil for none
	name  func(iface string) string // of the endpoint at an interface; "" for none

	mu          sync.Mutex
	recorder    *recorder
	subscribers map[int]subscriber
	next        int
}

type subscriber struct {
	filter  Filter
	entries chan Entry
}

// NewHub makes a hub that records at most rate entries a second. lines may be nil. name is called for recorded entries.
func NewHub(rate int, lines io.Writer, name func(iface string) string) *Hub {
	return &Hub{lines: lines, name: name, recorder: newRecorder(rate), subscribers: map[int]subscriber{}}
}

// Add enters a packet that was dropped or logged.
func (h *Hub) Add(e Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(h.recorder.add(e))
}

// Run records flows that continue, until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			h.mu.Lock()
			h.publish(h.recorder.tick(now))
			h.mu.Unlock()
		}
	}
}

func (h *Hub) publish(entries []Entry) {
	for _, e := range entries {
		e.SourceEndpoint, e.DestinationEndpoint = h.name(e.In), h.name(e.Out)
		if h.lines != nil {
			_, _ = io.WriteString(h.lines, e.String()+"\n")
		}
		for _, n := range slices.Sorted(maps.Keys(h.subscribers)) {
			if s := h.subscribers[n]; s.filter.matches(&e) {
				select {
				case s.entries <- e:
				default: // too slow
				}
			}
		}
	}
}

// Subscribe returns the entries that a filter chooses, from now on until the returned function is called.
func (h *Hub) Subscribe(f Filter) (<-chan Entry, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.next
	h.next++
	s := subscriber{filter: f, entries: make(chan Entry, backlog)}
	h.subscribers[n] = s
	return s.entries, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subscribers, n)
	}
}
