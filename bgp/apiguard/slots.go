package apiguard

import (
	"context"
	"sync"
)

// Slots bounds how many slots callers hold at the same time. Root has a share of its own, so that others cannot keep it
// out.
type Slots struct {
	each, others int

	mu     sync.Mutex
	held   map[uint32]int
	all    int           // of others than root
	change chan struct{} // closed when a slot becomes free
}

// NewSlots allows each user so many, and all users but root together so many.
func NewSlots(each, others int) *Slots {
	return &Slots{each: each, others: others, held: map[uint32]int{}, change: make(chan struct{})}
}

// Take takes a slot for a user; ok is false if none is free. release returns the slot, once.
func (s *Slots) Take(uid uint32) (release func(), ok bool) {
	release, _ = s.take(uid)
	return release, release != nil
}

// Wait takes a slot for a user as soon as there is one, or returns the error of ctx.
func (s *Slots) Wait(ctx context.Context, uid uint32) (release func(), err error) {
	for {
		release, change := s.take(uid)
		if release != nil {
			return release, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Busy returns the number of taken slots of all users.
func (s *Slots) Busy() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, held := range s.held {
		n += held
	}
	return n
}

func (s *Slots) take(uid uint32) (release func(), change <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[uid] >= s.each || uid != 0 && s.all >= s.others {
		return nil, s.change
	}
	s.add(uid, 1)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(uid, -1)
		close(s.change)
		s.change = make(chan struct{})
	}), nil
}

func (s *Slots) add(uid uint32, n int) {
	if s.held[uid] += n; s.held[uid] == 0 {
		delete(s.held, uid)
	}
	if uid != 0 {
		s.all += n
	}
}
