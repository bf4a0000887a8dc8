package flowlog

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// backlog is how many drops wait for a subscriber; one that is slower misses some.
const backlog = 256

// Hub hands drops on: as lines to a writer, and to whoever subscribes. It is safe for concurrent use.
type Hub struct {
	lines io.Writer                 // nil for none
	name  func(iface string) string // of the endpoint at an interface; "" for none

	mu          sync.Mutex
	recorder    *Recorder
	subscribers map[int]subscriber
	next        int
}

type subscriber struct {
	filter Filter
	drops  chan Drop
}

// NewHub makes a hub that tells at most rate drops a second. lines may be nil. name is asked for what is told only.
func NewHub(rate int, lines io.Writer, name func(iface string) string) *Hub {
	return &Hub{lines: lines, name: name, recorder: NewRecorder(rate), subscribers: map[int]subscriber{}}
}

// Add enters a packet that was dropped.
func (h *Hub) Add(d Drop) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tell(h.recorder.Add(d))
}

// Run tells of flows that go on, until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			h.mu.Lock()
			h.tell(h.recorder.Tick(now))
			h.mu.Unlock()
		}
	}
}

func (h *Hub) tell(drops []Drop) {
	for _, d := range drops {
		d.SourceEndpoint, d.DestinationEndpoint = h.name(d.In), h.name(d.Out)
		if h.lines != nil {
			_, _ = io.WriteString(h.lines, d.String()+"\n")
		}
		for _, n := range slices.Sorted(maps.Keys(h.subscribers)) {
			if s := h.subscribers[n]; s.filter.Matches(&d) {
				select {
				case s.drops <- d:
				default: // too slow
				}
			}
		}
	}
}

// Subscribe returns the drops that a filter chooses, from now on until the returned function is called.
func (h *Hub) Subscribe(f Filter) (<-chan Drop, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.next
	h.next++
	s := subscriber{filter: f, drops: make(chan Drop, backlog)}
	h.subscribers[n] = s
	return s.drops, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subscribers, n)
	}
}
