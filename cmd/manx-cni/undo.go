package main

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// undoStack remembers how to take back what has been done.
type undoStack []undoStep

type undoStep struct {
	name string
	do   func(context.Context) error
}

func (u *undoStack) push(name string, do func(context.Context) error) {
	*u = append(*u, undoStep{name, do})
}

// run takes everything back, last first. One failure does not keep the others from being tried.
func (u *undoStack) run(log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	var problems []error
	for i := len(*u) - 1; i >= 0; i-- {
		s := (*u)[i]
		if err := s.do(ctx); err != nil {
			problems = append(problems, fmt.Errorf("clean up: %s: %w", s.name, err))
		} else {
			log.Info("taken back", zap.String("step", s.name))
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

// afterwards adds the outcome of the clean-up to the error of a call.
func afterwards(cause, cleanup error) error {
	if cleanup == nil {
		return cause
	}
	return &takenBackError{cause, cleanup}
}
