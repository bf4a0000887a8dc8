package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.uber.org/zap"
)

// reopener opens log files again when the process receives SIGHUP, which logrotate sends. The signal does not end the
// daemon.
type reopener struct {
	mu    sync.Mutex
	files []func()
}

// reopenOnHangup listens for the signal until ctx ends.
func reopenOnHangup(ctx context.Context, log *zap.Logger) *reopener {
	r := &reopener{}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangups)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				log.Info("SIGHUP: opening log files again; nothing else changes")
				r.reopen()
			}
		}
	}()
	return r
}

// add adds the function that opens a file again.
func (r *reopener) add(file func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = append(r.files, file)
}

func (r *reopener) reopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, file := range r.files {
		file()
	}
}
