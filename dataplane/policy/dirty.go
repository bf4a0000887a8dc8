package policy

// dirty is what changed since the last settle, or for it.
type dirty[T comparable] map[T]bool

func (d *dirty[T]) add(x T) {
	if *d == nil {
		*d = dirty[T]{}
	}
	(*d)[x] = true
}
