package endpointstatus

import (
	"encoding/json"
	"maps"
	"sync"
)

// News has the status of the connected workloads in memory, for goroutines of the same process that wait for one: the
// files are for other programs. The zero value is ready. It is safe for concurrent use.
type News struct {
	mu     sync.Mutex
	status map[string]string // by the name of the file, as its content
	next   chan struct{}
}

// Status returns the status of a workload by the name of its file, false if it is not connected yet, and a channel that
// is closed at the next change of any status.
func (n *News) Status(name string) (s Status, connected bool, next <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	text, ok := n.status[name]
	return s, ok && json.Unmarshal([]byte(text), &s) == nil, n.next
}

// set replaces all statuses. A nil receiver has none.
func (n *News) set(status map[string]string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if maps.Equal(n.status, status) {
		return
	}
	n.status = status
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}
