package reconcile

import "time"

// Phase is the progress of an object.
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
	// Leftover: the target has it from an earlier run and it is not desired (yet); it goes when pruning is allowed.
	Leftover Phase = "leftover"
	// Removing: it is no longer desired, but could not be removed yet.
	Removing Phase = "removing"
)

// Status is the state of one object.
type Status struct {
	Phase Phase
	// Reason is a sentence for people; empty if there is none.
	Reason string
	// Since is when Phase or Reason last changed.
	Since time.Time
	// Revision counts the changes of the desired state; it is that of the object's last change.
	Revision uint64
}

// Facts determine the phase of an object.
type Facts struct {
	Wanted, Present bool
	AsWanted        bool  // if both
	Adopted         bool  // present since before anyone wanted it
	Failure         error // of the last attempt
}

// Phase returns the phase and its reason; neither for an object that is neither wanted nor there.
func (f Facts) Phase() (Phase, string) {
	switch {
	case f.Failure != nil && f.Wanted:
		return Failed, f.Failure.Error()
	case f.Failure != nil:
		return Removing, f.Failure.Error()
	case f.Adopted && f.Present:
		return Leftover, "left by an earlier run; removed once datastore and BGP are in sync, " +
			"unless it is wanted by then"
	case f.Wanted && f.Present && f.AsWanted:
		return Applied, ""
	case f.Wanted:
		return Pending, ""
	case f.Present:
		return Removing, ""
	}
	return "", ""
}
