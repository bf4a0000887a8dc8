package main

import (
	"context"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/proto/server"
)

// watchdog tells systemd that manxd has started, and from then on that it lives (sd_notify(3)): systemd ends a process
// that does not say so for WatchdogSec, and starts a new one. What counts as alive is the same as for /livez. Without
// systemd it does nothing.
type watchdog struct {
	live func(context.Context) server.Check
	log  *zap.Logger
}

func newWatchdog(d deps.Deps) *watchdog { return &watchdog{d.Control.Live, d.Log} }

func (w *watchdog) Name() string { return "watchdog" }

// Run implements part.Part. The daemon has started when its control socket is served: the rest may wait for a
// datastore that comes up after it.
func (w *watchdog) Run(ctx context.Context) error {
	if _, err := systemd.SdNotify(false, systemd.SdNotifyReady); err != nil {
		return err
	}
	limit, err := systemd.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return err
	}
	tick := time.NewTicker(limit / 4)
	defer tick.Stop()
	for {
		if c := w.live(ctx); c.OK {
			if _, err := systemd.SdNotify(false, systemd.SdNotifyWatchdog); err != nil {
				return err
			}
		} else if ctx.Err() == nil {
			w.log.Error("systemd is about to end this process, because it hangs", zap.String("reason", c.Reason))
		}
		select {
		case <-ctx.Done():
			_, _ = systemd.SdNotify(false, systemd.SdNotifyStopping)
			return ctx.Err()
		case <-tick.C:
		}
	}
}
