package engine

import (
	"context"
	"errors"
	"sync"
	"time"
)

// laterTimeout bounds the writes that follow an answer.
const laterTimeout = 30 * time.Second

// writes are those that an Add left to be done behind its answer. Its Finish waits for them, so an ADD has succeeded
// only when all of them have.
type writes struct {
	todo []func(context.Context) error
	done chan struct{} // closed when all have ended
	err  error
}

func (w *writes) add(write func(context.Context) error) { w.todo = append(w.todo, write) }

// start begins them, all at once. The caller's end does not end them.
func (w *writes) start(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), laterTimeout)
	w.done = make(chan struct{})
	var all sync.WaitGroup
	errs := make([]error, len(w.todo))
	for i, write := range w.todo {
		all.Go(func() { errs[i] = write(ctx) })
	}
	go func() {
		defer cancel()
		all.Wait()
		w.err = errors.Join(errs...)
		close(w.done)
	}()
}

// wait waits for them, and returns what went wrong.
func (w *writes) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle waits until nothing of an earlier Add is under way, and returns whether there was one and how it ended. After
// an error of ctx it may still be.
func (c *call) settle(ctx context.Context) (was bool, err error) {
	p := c.own.pending
	if p == nil {
		return false, nil
	}
	err = p.wait(ctx)
	if err == nil || ctx.Err() == nil {
		c.own.pending = nil
	}
	return true, err
}
