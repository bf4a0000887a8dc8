package reconcile

import "time"

// Phase says how far an object is.
type Phase string

const (
	// Pending: it will be applied with the next flush.
	Pending Phase = "pending"
	// Applied: the target has it as desired.
	Applied Phase = "applied"
	// Failed: the target refused it; it is tried again.
	Failed Phase = "failed"
	// Blocked: it cannot be applied as things are; it is applied once that changes.
	Blocked Phase = "blocked"
	// Leftover: the target has it from an earlier run and nobody wants it (yet); it goes when pruning is allowed.
	Leftover Phase = "leftover"
	// Removing: nobody wants it any more, but it could not be removed yet.
	Removing Phase = "removing"
)

// Status is the state of one object.
type Status struct {
	Phase Phase
	// Reason is a sentence for people; empty when there is nothing to say.
	Reason string
	// Since is when Phase or Reason became what they are.
	Since time.Time
	// Revision counts the changes of the desired state; it is that of the object's last change.
	Revision uint64
}
