package reconcile

import "fmt"

// Repair is an object that another program had changed and that was restored.
type Repair struct {
	Key    string
	Found  string // empty: it was gone
	Wanted string // empty: it should not have been there
}

// MostRepairs bounds the list of repairs: an emptied routing table is reported once, not for each route.
const MostRepairs = 20

// RepairLog remembers repairs, MostRepairs of them, and how many more there were.
type RepairLog struct {
	list []Repair
	more int
}

// Add records a repair, which make describes unless the log is full.
func (l *RepairLog) Add(make func() Repair) {
	if len(l.list) == MostRepairs {
		l.more++
		return
	}
	l.list = append(l.list, make())
}

// Take returns the repairs since the last call, and how many more there were.
func (l *RepairLog) Take() (list []Repair, more int) {
	list, more = l.list, l.more
	*l = RepairLog{}
	return list, more
}

// Repairs returns the repairs since the last call, and how many more there were.
func (t *Table[K, V]) Repairs() (list []Repair, more int) { return t.repairs.Take() }

// drift marks an object that was as desired, or absent, and now differs through changes by others.
func (t *Table[K, V]) drift(e *entry[K, V], present bool, v V) {
	switch {
	case e.dirty: // a change of our own is on its way
	case e.wanted:
		e.drifted = e.present && t.equal(e.want, e.have) && !(present && t.equal(e.want, v))
	default: // objects found first, or before pruning is allowed, are left from an earlier run
		e.drifted = t.compared && t.prune && present && !e.present
	}
}

// repaired records a step that undid changes by others.
func (t *Table[K, V]) repaired(e *entry[K, V], s *Step[K, V]) {
	if !e.drifted {
		return
	}
	e.drifted = false
	t.repairs.Add(func() Repair {
		r := Repair{Key: fmt.Sprint(s.Key)}
		if s.Action != Add {
			r.Found = fmt.Sprint(s.Old)
		}
		if s.Action != Remove {
			r.Wanted = fmt.Sprint(s.New)
		}
		return r
	})
}
