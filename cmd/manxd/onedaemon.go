package main

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/netnslock"
)

// checkForOthers fails if another daemon runs in this network namespace: two of them would each remove the other's
// objects.
func checkForOthers() error { return otherDaemon(netnslock.Check()) }

// beTheOnlyDaemon takes the lock of this network namespace, which a daemon holds before its first change, and a cleanup
// while it runs. The caller calls the returned function at the end.
func beTheOnlyDaemon(log *zap.Logger) (release func(), err error) {
	l, err := netnslock.Acquire()
	if err != nil {
		return nil, otherDaemon(err)
	}
	if l.Squatter >= 0 {
		log.Warn("a user without the right to holds the name of this network namespace's lock; it is ignored",
			zap.Int("user", l.Squatter))
	}
	return func() { _ = l.Release() }, nil
}

func otherDaemon(err error) error {
	var held *netnslock.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("another manxd is running: %w", err)
	}
	return err
}
