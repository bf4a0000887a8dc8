package main

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/netnslock"
)

// beTheOnlyDaemon takes the lock of this network namespace, which a daemon or a cleanup holds while it runs: two of
// them would each remove what the other one makes. Call the returned function at the end.
func beTheOnlyDaemon(log *zap.Logger) (release func(), err error) {
	l, err := netnslock.Acquire()
	if err != nil {
		return nil, fmt.Errorf("another manxd is running: %w", err)
	}
	if l.Squatter >= 0 {
		log.Warn("a user without the right to holds the name of this network namespace's lock; it is ignored", zap.Int("user", l.Squatter))
	}
	return func() { _ = l.Release() }, nil
}
