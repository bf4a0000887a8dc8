package part

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/proto/server"
	"github.com/manxnet/manx/retry"
)

// backoff is the pause before a failed part runs again. After it has worked for the longest pause, the next pause is
// the shortest.
var backoff = retry.Backoff{Min: time.Second, Max: 30 * time.Second}

const (
	// reopen is the pause before a failed Open is tried again.
	reopen = time.Second
	// patience is the time that a part may take to end before a log line reports the delay.
	patience = 10 * time.Second
)

// Group runs parts. It is safe for concurrent use.
type Group struct {
	log     *zap.Logger
	members []*member
}

// NewGroup returns a group of parts in their order of start.
func NewGroup(log *zap.Logger, parts ...Part) *Group {
	g := &Group{log: log}
	for _, p := range parts {
		if p != nil {
			g.members = append(g.members, &member{Part: p, log: log.With(zap.String("part", p.Name()))})
		}
	}
	return g
}

// Show adds the parts to a server, with those that are down.
func (g *Group) Show(s *server.Server) {
	for _, m := range g.members {
		s.Add(m.Part)
		s.Add((*condition)(m))
	}
}

// Notices lists the parts that are down, for one that has a group of its own.
func (g *Group) Notices() (list []server.Notice) {
	for _, m := range g.members {
		list = append(list, (*condition)(m).Notices()...)
	}
	return list
}

// Run starts the parts in their order and keeps them running until ctx ends or a part fails permanently; Run returns
// that part's error. Then it ends the parts in the reverse order. Each part has ended, and is closed, before Run ends
// the part in front of it.
func (g *Group) Run(ctx context.Context) (err error) {
	failed := make(chan error, len(g.members)) // permanent errors
	var running []*run
	for _, m := range g.members {
		if ctx.Err() != nil || len(failed) > 0 {
			break
		}
		running = append(running, m.start(ctx, failed))
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	for i, m := range slices.Backward(g.members) {
		if i < len(running) {
			running[i].end()
		}
		if c, ok := m.Part.(Closer); ok {
			c.Close()
		}
	}
	return err
}

// member is a part with its state.
type member struct {
	Part
	log *zap.Logger

	mu      sync.Mutex
	failure string // why the part is down, empty if it is up
	since   time.Time
}

// run is a started part.
type run struct {
	*member
	stop context.CancelFunc
	done chan struct{}
}

// start opens and runs a part until it is ended, and sends a permanent error to failed. The part ends when its turn
// comes, not when ctx does. It is the requester of its datastore requests.
func (m *member) start(ctx context.Context, failed chan<- error) *run {
	ctx, stop := context.WithCancel(datastore.WithRequester(context.WithoutCancel(ctx), m.Name()))
	r := &run{member: m, stop: stop, done: make(chan struct{})}
	m.log.Debug("part starts")
	err := m.open()
	if isFatal(err) { // the parts behind it do not start
		failed <- err
		close(r.done)
		return r
	}
	go func() {
		defer close(r.done)
		if err := m.keep(ctx, err); err != nil {
			failed <- err
		}
	}()
	return r
}

func (r *run) end() {
	r.stop()
	slow := time.AfterFunc(patience, func() { r.log.Warn("the daemon ends, and waits for a part") })
	<-r.done
	slow.Stop()
	r.log.Debug("part ended")
}

func (m *member) open() error {
	if o, ok := m.Part.(Opener); ok {
		return o.Open()
	}
	return nil
}

// keep keeps an opened part running, after an error or not, until ctx ends, Run returns nil, or it fails permanently.
func (m *member) keep(ctx context.Context, err error) error {
	opened := func() error { return err } // the part was opened once
	err = backoff.Repeat(ctx, func(ctx context.Context) error {
		err := opened()
		opened = m.open
		for ; err != nil; err = m.open() {
			if isFatal(err) {
				return err
			}
			m.down(err)
			if !retry.Sleep(ctx, reopen) {
				return nil
			}
		}
		m.up()
		err = m.Run(ctx)
		if ctx.Err() != nil && err != nil && !errors.Is(err, context.Canceled) {
			m.log.Warn("part ended with an error", zap.Error(err))
		}
		return err
	}, func(err error) bool {
		if isFatal(err) {
			return false
		}
		m.down(err)
		return true
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// down records why the part does not run.
func (m *member) down(err error) {
	text := fmt.Sprintf("failed, started again: %v", err)
	if e, ok := m.Part.(Explainer); ok {
		text = e.Explain(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == "" {
		m.since = time.Now()
	}
	if m.failure != text {
		m.failure = text
		m.log.Error("part is down, trying again", zap.String("reason", text), zap.Error(err))
	}
}

// up records that the part runs.
func (m *member) up() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != "" {
		m.failure = ""
		m.log.Info("part runs again")
	}
}

// condition is a member in the form for the server.
type condition member

// Checks implements server.Checker: the part's own checks, and a failed one while it is down.
func (c *condition) Checks() []server.Check {
	p, ok := c.Part.(Ready)
	if !ok {
		return nil
	}
	check := p.Ready()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != "" {
		check.OK, check.Reason = false, c.failure
	}
	return []server.Check{check}
}

// Notices implements server.Noticer.
func (c *condition) Notices() []server.Notice {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == "" {
		return nil
	}
	return []server.Notice{{Topic: "daemon", Subject: c.Name(), Text: c.failure, Since: c.since}}
}
