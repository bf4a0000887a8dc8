package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/proto/server"
)

const (
	sleptTick   = time.Second
	sleptLong   = 8 * time.Second // beyond the tick, before it is reported
	sleptNotice = time.Hour       // for which there is a notice
)

// sleepWatch notices that this process did not run for a while. What failed in that time is no fault of the peers, the
// paths or the datastore.
type sleepWatch struct {
	log *zap.Logger

	mu   sync.Mutex
	text string
	at   time.Time // of the end
}

func newSleepWatch(d deps.Deps) *sleepWatch { return &sleepWatch{log: d.Log} }

func (s *sleepWatch) Name() string { return "sleep" }

// Run implements part.Part.
func (s *sleepWatch) Run(ctx context.Context) error {
	tick := time.NewTicker(sleptTick)
	defer tick.Stop()
	for last := uptime(); ; last = uptime() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if gap := uptime() - last - sleptTick; gap > sleptLong {
			s.slept(gap)
		}
	}
}

func (s *sleepWatch) slept(gap time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = time.Now()
	s.text = fmt.Sprintf("manxd did not run for %s, until %s: it was stopped, as by SIGSTOP, or the host slept or had "+
		"no processor time; peers may have ended sessions meanwhile",
		gap.Round(time.Second), s.at.Format(time.TimeOnly))
	s.log.Error(s.text)
}

// Notices implements server.Noticer.
func (s *sleepWatch) Notices() []server.Notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == "" || time.Since(s.at) > sleptNotice {
		return nil
	}
	return []server.Notice{{Topic: "daemon", Subject: "manxd", Text: s.text, Since: s.at}}
}
