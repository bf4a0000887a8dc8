package kernel

import (
	"context"
	"slices"
	"time"
)

// eventBatch collects events. An interface that goes back and forth between two states, as that of a workload which
// takes its end down and up, has few events in a batch: each transition once, and the last state.
type eventBatch struct {
	events []Event
	links  map[int][]int // by interface: which of the events are about it, since the last one of another kind
}

// omitted is the type of an event that is left out.
const omitted EventType = 0

func (b *eventBatch) add(e Event) {
	if b.links == nil {
		b.links = map[int][]int{}
	}
	switch e.Type {
	case EventLink:
		seen := b.links[e.Link.Index]
		if n := len(seen); n >= 3 && e.Link.Up && b.repeats(seen[n-3:], e.Link) {
			b.events[seen[n-1]].Type = omitted
			b.links[e.Link.Index] = seen[:n-1]
			return
		}
		b.links[e.Link.Index] = append(seen, len(b.events))
	case EventLinkGone:
		delete(b.links, e.Link.Index)
	case EventAddress, EventAddressGone:
		delete(b.links, e.Address.Link)
	case EventResync:
		clear(b.links)
	}
	b.events = append(b.events, e)
}

// repeats reports whether three events and l are the same two states, twice. An interface that was down
// administratively has lost its routes, so that each time counts.
func (b *eventBatch) repeats(last []int, l Link) bool {
	first, second, third := &b.events[last[0]].Link, &b.events[last[1]].Link, &b.events[last[2]].Link
	return *first == *third && *second == l && first.Up
}

// take returns the events since the last call.
func (b *eventBatch) take() []Event {
	events := slices.DeleteFunc(b.events, func(e Event) bool { return e.Type == omitted })
	b.events = nil
	clear(b.links)
	return events
}

const (
	// prompt is the number of batches in quick succession that are handled at once.
	prompt = 16
	// pace is the time for each further one: a workload can cause thousands of events in a second, and each batch costs
	// a step of the agents.
	pace = 10 * time.Millisecond
)

// pacer bounds the number of batches in a time. The zero value has handled none.
type pacer struct {
	busyUntil time.Time // when all batches so far would be handled at the pace
}

// delay returns how long to wait after a batch that was handled at a time.
func (p *pacer) delay(now time.Time) time.Duration {
	if p.busyUntil.Before(now) {
		p.busyUntil = now
	}
	p.busyUntil = p.busyUntil.Add(pace)
	return max(p.busyUntil.Sub(now)-prompt*pace, 0)
}

// pause waits after a batch, or until ctx ends.
func (p *pacer) pause(ctx context.Context, now time.Time) {
	if d := p.delay(now); d > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
}
