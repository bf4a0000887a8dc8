package prefixtable

import "iter"

// Interned numbers values, equal ones alike, so that rows can share them; 0 is no value's number. A value stays until
// Sweep finds it unused. The zero Interned is empty. Not safe for concurrent use.
type Interned[K comparable, V any] struct {
	numbers map[K]uint32
	values  []interned[K, V] // by number; that of 0 is unused
	free    []uint32
	kept    int // by the last Sweep
}

type interned[K comparable, V any] struct {
	key    K
	value  V
	exists bool
	used   bool
}

// Number returns the number of the value of k, which make makes if there is none yet.
func (t *Interned[K, V]) Number(k K, make func() V) uint32 {
	if n, ok := t.numbers[k]; ok {
		return n
	}
	if t.numbers == nil {
		t.numbers, t.values = map[K]uint32{}, append(t.values, interned[K, V]{})
	}
	n := uint32(len(t.values))
	if f := len(t.free); f > 0 {
		n, t.free = t.free[f-1], t.free[:f-1]
	} else {
		t.values = append(t.values, interned[K, V]{})
	}
	t.values[n] = interned[K, V]{key: k, value: make(), exists: true}
	t.numbers[k] = n
	return n
}

// At returns the value of a number. The pointer is valid until the next call of Number.
func (t *Interned[K, V]) At(n uint32) *V { return &t.values[n].value }

// Len is the number of values.
func (t *Interned[K, V]) Len() int { return len(t.numbers) }

// fewValues are kept without looking whether they are used.
const fewValues = 1024

// Crowded reports whether a Sweep is due: at least half of many values came since the last one, so that its cost is
// shared by them.
func (t *Interned[K, V]) Crowded() bool { return len(t.numbers) > 2*t.kept+fewValues }

// Sweep forgets all values but those in use. A number that it frees may become another value's.
func (t *Interned[K, V]) Sweep(inUse iter.Seq[uint32]) {
	for n := range inUse {
		t.values[n].used = true
	}
	for n := range t.values {
		v := &t.values[n]
		if v.exists && !v.used {
			delete(t.numbers, v.key)
			*v = interned[K, V]{}
			t.free = append(t.free, uint32(n))
		}
		v.used = false
	}
	t.kept = len(t.numbers)
}
