// Package bus carries news between parts of the daemon that do not know each other.
package bus

import (
	"sync"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// Bus has a topic for each kind of news. The zero value is ready.
type Bus struct {
	// Links has events of links, addresses and routes of this host.
	Links Topic[[]kernel.Event]
	// Undecided is published when something outside the datastore has changed on which BGP depends.
	Undecided Topic[struct{}]
	// Decided has each decision about BGP that was made from the datastore.
	Decided Topic[Decision]
	// LastState has the state of an earlier run, from which BGP begins because the datastore does not answer.
	LastState Topic[model.Reader]
	// PolicyReached has the endpoints whose policy is in the kernel.
	PolicyReached Topic[endpointstatus.Policy]
	// Connected has the workloads with policy and routes in the kernel.
	Connected Latest[map[model.Key]endpointstatus.Status]
}

// Decision is a decision about BGP, with the snapshot of the datastore from which it was made.
type Decision struct {
	Snapshot *datastore.Snapshot
	Desired  bgp.Desired
}

// Topic passes values from those who publish them to those who have subscribed before. It is safe for concurrent use.
type Topic[T any] struct {
	mu          sync.RWMutex
	subscribers []func(T)
}

// Subscribe has f called with each later value, in the goroutine that publishes it; f must not block, and
// must not publish on this topic. It is for constructors: a subscription does not end.
func (t *Topic[T]) Subscribe(f func(T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subscribers = append(t.subscribers, f)
}

// Publish passes a value to all subscribers, in the order in which they have subscribed.
func (t *Topic[T]) Publish(value T) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, f := range t.subscribers {
		f(value)
	}
}

// Latest has the value that was published last, for those who wait for the right one. It is safe for concurrent use.
type Latest[T any] struct {
	mu    sync.Mutex
	value T
	next  chan struct{} // nil: nobody waits
}

// Publish replaces the value.
func (l *Latest[T]) Publish(value T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value = value
	if l.next != nil {
		close(l.next)
		l.next = nil
	}
}

// Get returns the value, the zero value before the first one, and a channel that is closed when the next one is
// published.
func (l *Latest[T]) Get() (value T, next <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = make(chan struct{})
	}
	return l.value, l.next
}
