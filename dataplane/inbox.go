package dataplane

import (
	"net/netip"
	"sync"
	"time"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

// inbox collects what others tell the agent until it has time.
type inbox struct {
	mu   sync.Mutex
	next batch
}

type batch struct {
	reader  model.Reader
	changed []model.Key
	all     bool
	learned [][]route.Learned
	static  *[]route.Static
	peering *[]link.Peering
	events  []kernel.Event
	synced  *synced
	policy  *endpointstatus.Policy
	resync  bool
	retries []chan<- []Retried // who waits for what comes of trying again
	// forgotten are addresses whose connections are out of the kernel; see forgetConnections.
	forgotten []netip.Addr
}

func (i *inbox) put(f func(*batch)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f(&i.next)
}

func (i *inbox) take() *batch {
	i.mu.Lock()
	defer i.mu.Unlock()
	b := i.next
	i.next = batch{}
	return &b
}

// maxEvents bounds the memory of events that wait; one resync stands for more.
const maxEvents = 1 << 14

func (b *batch) addEvents(events []kernel.Event) {
	if b.events = append(b.events, events...); len(b.events) > maxEvents {
		b.events = []kernel.Event{{Type: kernel.EventResync}}
	}
}

// linger is how long the agent waits for more changes while many come.
const (
	linger       = 500 * time.Microsecond
	lingerRecent = 5 * time.Millisecond
	lingerSteps  = 8
)

// flushed remembers the last flush that changed routes.
type flushed struct {
	at    time.Time
	steps int
}

func (f flushed) busy(now time.Time) bool {
	return f.steps >= lingerSteps && now.Sub(f.at) < lingerRecent
}

// empty reports whether nothing waits.
func (i *inbox) empty() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	b := &i.next
	return b.reader == nil && len(b.learned) == 0 && b.static == nil && b.peering == nil && len(b.events) == 0 &&
		b.synced == nil && b.policy == nil && !b.resync && len(b.retries) == 0 && b.forgotten == nil
}
