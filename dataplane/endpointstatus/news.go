package endpointstatus

import "sync"

// News signals changes of files to goroutines of the same process that wait for one. The zero value is ready. It is
// safe for concurrent use.
type News struct {
	mu   sync.Mutex
	next chan struct{}
}

// Next returns a channel that is closed at the next change: a caller that gets it before it reads a file misses none.
func (n *News) Next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// changed ends all waits. A nil receiver has none.
func (n *News) changed() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}
