package engine

import (
	"context"
	"time"
)

// laterTimeout bounds the writes that follow an answer.
const laterTimeout = 30 * time.Second

// writes are those that an Add left to be done behind its answer. Its Finish waits for them, so an ADD has succeeded
// only when all of them have. They take place one after another, the endpoint last: a container that has an endpoint is
// counted in its handle, too, whenever the process dies.
type writes struct {
	todo []func(context.Context) error
	done chan struct{} // closed when they have ended
	err  error
}

func (w *writes) add(write func(context.Context) error) { w.todo = append(w.todo, write) }

// start begins them. The caller's end does not end them.
func (w *writes) start(ctx context.Context, ended func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), laterTimeout)
	w.done = make(chan struct{})
	go func() {
		defer ended()
		defer cancel()
		defer close(w.done)
		for _, write := range w.todo {
			if w.err = write(ctx); w.err != nil {
				return
			}
		}
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

// Wait waits for all writes that were left to be done behind an answer.
func (e *Engine) Wait() { e.under.Wait() }
