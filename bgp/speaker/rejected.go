package speaker

import (
	"slices"

	"github.com/manxnet/manx/bgp/fib"
)

// rejects remembers what Rejected has found.
type rejects struct {
	budget budget
	list   []fib.Rejection // guarded by statusTable.mu
}

// Rejected returns the announced paths that this node refuses to use, sorted by prefix, with the reason. It looks at
// all routes, so that with very many of them it may give what it found a short time ago.
func (s *Speaker) Rejected() []fib.Rejection {
	s.status.spend(&s.status.rejects.budget, 0, func() {
		list := slices.Concat(s.fib.Rejected(), s.conflicting(), s.refusedRoutes())
		slices.SortFunc(list, fib.Rejection.Compare)
		s.status.mu.Lock()
		s.status.rejects.list = slices.Compact(list)
		s.status.mu.Unlock()
	})
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	return s.status.rejects.list
}
