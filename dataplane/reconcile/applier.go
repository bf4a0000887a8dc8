package reconcile

// Action is the kind of a step.
type Action uint8

const (
	Add Action = iota + 1
	Change
	Remove
)

func (a Action) String() string { return [...]string{"", "add", "change", "remove"}[a] }

// Step is one change of an object. New is unset for Remove, Old is unset for Add.
type Step[K comparable, V any] struct {
	Action Action
	Key    K
	New    V
	Old    V
}

// Applier lists and changes the objects that a Table brings to their desired state.
type Applier[K comparable, V any] interface {
	// List returns the objects that exist and are its own to change.
	List() (map[K]V, error)
	// Apply does as many of the steps as it can, in order, and may be given the same step again: adding a present or
	// removing an absent object succeeds. The result is nil when all went well; otherwise it has an entry for each
	// step. Values are never nil interfaces and must not be changed.
	Apply(steps []Step[K, V]) []error
}
