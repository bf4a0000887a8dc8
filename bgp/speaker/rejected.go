package speaker

import (
	"slices"
	"sync"

	"github.com/manxnet/manx/bgp/fib"
)

// rejects remembers what Rejected has found.
type rejects struct {
	budget budget
	mu     sync.Mutex
	list   []fib.Rejection
}

// Rejected returns the announced paths that this node refuses to use, sorted by prefix, with the reason. It looks at
// all routes, so that with very many of them it may give what it found a short time ago.
func (s *Speaker) Rejected() []fib.Rejection {
	s.rejects.budget.spend(0, func() {
		list := slices.Concat(s.fib.Rejected(), s.conflicting(), s.refusedRoutes())
		slices.SortFunc(list, fib.Rejection.Compare)
		s.rejects.mu.Lock()
		s.rejects.list = slices.Compact(list)
		s.rejects.mu.Unlock()
	})
	s.rejects.mu.Lock()
	defer s.rejects.mu.Unlock()
	return s.rejects.list
}
