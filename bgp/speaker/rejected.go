package speaker

import (
	"slices"
	"sync"

	"github.com/manxnet/manx/bgp/fib"
)

// rejects caches the result of Rejected.
type rejects struct {
	budget budget
	mu     sync.Mutex
	list   []fib.Rejection
}

// Rejected returns the announced paths that this node refuses to use, sorted by prefix, with the reason. It reads all
// routes; with very many of them it may return a recent result.
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
