package cni

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Undo remembers how to take back what has been done.
type Undo []undoStep

const undoTimeout = 30 * time.Second

type undoStep struct {
	name string
	do   func(context.Context) error
}

// Push adds a step.
func (u *Undo) Push(name string, do func(context.Context) error) {
	*u = append(*u, undoStep{name, do})
}

// Run takes everything back, last first, and calls done (which may be nil) after each step that succeeds. One failure
// does not keep the others from being tried.
func (u *Undo) Run(done func(step string)) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	var problems []error
	for i := len(*u) - 1; i >= 0; i-- {
		s := (*u)[i]
		if err := s.do(ctx); err != nil {
			problems = append(problems, fmt.Errorf("clean up: %s: %w", s.name, err))
		} else if done != nil {
			done(s.name)
		}
	}
	*u = nil
	return errors.Join(problems...)
}

// takenBackError is the failure of a call, with what went wrong when it was taken back. Only the cause decides what
// a runtime should do.
type takenBackError struct{ cause, cleanup error }

func (e *takenBackError) Error() string { return e.cause.Error() + "; " + e.cleanup.Error() }
func (e *takenBackError) Unwrap() error { return e.cause }

// Afterwards adds the outcome of the clean-up to the error of a call.
func Afterwards(cause, cleanup error) error {
	if cleanup == nil {
		return cause
	}
	return &takenBackError{cause, cleanup}
}
