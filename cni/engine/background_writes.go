package engine

import (
	"context"
	"time"
)

// laterTimeout bounds the writes that follow a response.
const laterTimeout = 30 * time.Second

// writes are the writes of an Add that end after its response. Its Finish waits for them, so an ADD succeeds only if
// all of them do. The write of the handle has begun beside that of the block; the endpoint is written after it: a
// container with an endpoint is also counted in its handle, whenever the process dies.
type writes struct {
	todo []func(context.Context) error
	done chan struct{} // closed when they have ended
	err  error
}

func (w *writes) add(write func(context.Context) error) { w.todo = append(w.todo, write) }

// end waits for the writes that have begun. It is for an Add that fails: only then may its addresses be released. A nil
// receiver has none.
func (w *writes) end(ctx context.Context) {
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), laterTimeout)
	defer cancel()
	for _, write := range w.todo {
		_ = write(ctx) // the release corrects the handle
	}
}

// start starts the writes. They go on after the end of the caller's context.
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

// wait waits for the writes, and returns their error.
func (w *writes) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle waits until no write of an earlier Add is under way. It returns whether there was one, and its error. After an
// error of ctx a write may still be under way.
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

// Wait waits for all writes that follow a response.
func (e *Engine) Wait() { e.under.Wait() }
