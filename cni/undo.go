package cni

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Undo is a list of undo steps.
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

// Run runs all steps, last first, and calls done (which may be nil) after each step that succeeds. It continues after
// an error.
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

// takenBackError is the error of a call and the error of its clean-up. Only the cause selects the runtime's reaction.
type takenBackError struct{ cause, cleanup error }

func (e *takenBackError) Error() string { return e.cause.Error() + "; " + e.cleanup.Error() }
func (e *takenBackError) Unwrap() error { return e.cause }

// Afterwards adds the error of the clean-up to the error of a call.
func Afterwards(cause, cleanup error) error {
	if cleanup == nil {
		return cause
	}
	return &takenBackError{cause, cleanup}
}
