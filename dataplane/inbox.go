package dataplane

import (
	"sync"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
)

// inbox collects the agent's inputs until it has time.
type inbox struct {
	mu    sync.Mutex
	next  batch
	spare []locrib.Route // for the learned routes of the batch after the next
}

type batch struct {
	since    time.Time // when the first of the inputs below came
	hasState bool      // state came, too
	state    State
	learned  []locrib.Route
	events   []kernel.Event
	resync   bool
	woken    bool               // a change that targets read themselves
	retries  []chan<- []Retried // callers that wait for the results of a retry
}

func (i *inbox) put(now time.Time, f func(*batch)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.next.since.IsZero() {
		i.next.since = now
	}
	f(&i.next)
}

func (i *inbox) take() batch {
	i.mu.Lock()
	defer i.mu.Unlock()
	b := i.next
	i.next = batch{learned: i.spare}
	i.spare = nil
	return b
}

// mostSpare bounds the buffer kept between two batches, in routes; each is 64 bytes.
const mostSpare = 1 << 12

// giveBack returns the buffer from take after use.
func (i *inbox) giveBack(learned []locrib.Route) {
	if cap(learned) > mostSpare {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.spare = learned[:0]
}

// onlyLearned reports whether the batch has only learned routes. An empty batch is one whose time came.
func (b *batch) onlyLearned() bool {
	return len(b.learned) > 0 && !b.hasState && len(b.events) == 0 && !b.resync && !b.woken && len(b.retries) == 0
}

// onlyState reports whether the batch has only a state.
func (b *batch) onlyState() bool {
	return b.hasState && len(b.learned) == 0 && len(b.events) == 0 && !b.resync && !b.woken && len(b.retries) == 0
}

// takeKernel takes only the kernel's events.
func (i *inbox) takeKernel() (events []kernel.Event, resync bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	events, resync = i.next.events, i.next.resync
	i.next.events, i.next.resync = nil, false
	return events, resync
}

// maxEvents bounds the memory of events that wait; one resync replaces more.
const maxEvents = 1 << 14

func (b *batch) addEvents(events []kernel.Event) {
	if b.events = append(b.events, events...); len(b.events) > maxEvents {
		b.events = []kernel.Event{{Type: kernel.EventResync}}
	}
}

// linger is the time that the agent waits for more changes in a burst of them.
const linger = 500 * time.Microsecond

// fullBatch is the number of learned routes that are worth a system call of their own.
const fullBatch = 64

// full reports whether so many learned routes wait that waiting for more does not pay.
func (i *inbox) full() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.next.learned) >= fullBatch
}

// empty reports whether nothing waits.
func (i *inbox) empty() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	b := &i.next
	return !b.hasState && len(b.learned) == 0 && len(b.events) == 0 && !b.resync && !b.woken && len(b.retries) == 0
}
