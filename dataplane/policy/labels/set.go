package labels

import "iter"

// set is a set of pointers. Very many of them have one member only, such as the class of a label that only one pod has;
// they do without a map.
type set[V any] struct {
	one  *V
	more map[*V]struct{} // if there are or were several: then one is not used
}

func (s *set[V]) add(v *V) {
	switch {
	case s.more != nil:
		s.more[v] = struct{}{}
	case s.one == nil || s.one == v:
		s.one = v
	default:
		s.more = map[*V]struct{}{s.one: {}, v: {}}
		s.one = nil
	}
}

func (s *set[V]) remove(v *V) {
	if s.one == v {
		s.one = nil
	}
	delete(s.more, v)
	if len(s.more) == 0 {
		s.more = nil
	}
}

func (s *set[V]) has(v *V) bool {
	_, ok := s.more[v]
	return ok || v != nil && s.one == v
}

func (s *set[V]) len() int {
	if s.one != nil {
		return 1
	}
	return len(s.more)
}

// all visits the members. The set may be changed meanwhile; an added member may be visited or not.
func (s *set[V]) all() iter.Seq[*V] {
	return func(yield func(*V) bool) {
		if s.one != nil {
			yield(s.one)
			return
		}
		for v := range s.more {
			if !yield(v) {
				return
			}
		}
	}
}
