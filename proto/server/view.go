package server

import "sync/atomic"

// A view shows one subject: the calls of the API about it, its check, notices and metrics. It exists from the
// beginning; until it has a source its answers are empty.

// shown holds the source of a view, which comes and changes while the daemon runs.
type shown[S any] struct{ source atomic.Pointer[S] }

// Show sets the source to show from now on.
func (s *shown[S]) Show(source S) { s.source.Store(&source) }

// now is the source at this moment, the zero value before the first Show.
func (s *shown[S]) now() (source S) {
	if p := s.source.Load(); p != nil {
		source = *p
	}
	return source
}
