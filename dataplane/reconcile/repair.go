package reconcile

import "fmt"

// Repair tells of an object that others had changed and that has been brought back.
type Repair struct {
	Key    string
	Found  string // empty: it was gone
	Wanted string // empty: it should not have been there
}

// mostRepairs bounds what is remembered: whoever empties a routing table is told so once, not for each route.
const mostRepairs = 20

// Repairs returns what was repaired since the last call, and how many more there were.
func (t *Table[K, V]) Repairs() (list []Repair, more int) {
	list, more = t.repairs, t.moreRepairs
	t.repairs, t.moreRepairs = nil, 0
	return list, more
}

// drift marks an object that was as desired, or not there, and now differs by what others did.
func (t *Table[K, V]) drift(e *entry[K, V], present bool, v V) {
	switch {
	case e.dirty: // a change of our own is on its way
	case e.wanted:
		e.drifted = e.present && t.equal(e.want, e.have) && !(present && t.equal(e.want, v))
	default: // what is found first, or before pruning is allowed, is what an earlier run left
		e.drifted = t.compared && t.prune && present && !e.present
	}
}

// repaired notes a step that put right what others had done.
func (t *Table[K, V]) repaired(e *entry[K, V], s *Step[K, V]) {
	if !e.drifted {
		return
	}
	e.drifted = false
	if len(t.repairs) == mostRepairs {
		t.moreRepairs++
		return
	}
	r := Repair{Key: fmt.Sprint(s.Key)}
	if s.Action != Add {
		r.Found = fmt.Sprint(s.Old)
	}
	if s.Action != Remove {
		r.Wanted = fmt.Sprint(s.New)
	}
	t.repairs = append(t.repairs, r)
}
