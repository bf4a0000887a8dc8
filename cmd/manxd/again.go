package main

import (
	"context"
	"errors"

	"github.com/manxnet/manx/datastore/kubernetes"
)

// againError ends a process that wants to be started again, with the reason; its exit code is restarts.Again.
type againError struct{ why string }

func (e *againError) Error() string { return "starting again: " + e.why }

// untilMoved returns a context that ends when the objects of the datastore have been migrated to another API group,
// which a new process uses. ended returns the error of the process: an againError then, else that of its parts.
func untilMoved(ctx context.Context, c *kubernetes.Config) (until context.Context, ended func(error) error) {
	until, cancel := context.WithCancelCause(ctx)
	c.Moved = func(why string) { cancel(&againError{why}) }
	return until, func(err error) error {
		cancel(nil)
		var again *againError
		if errors.As(context.Cause(until), &again) {
			return again
		}
		return err
	}
}
