package main

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/safefile"
)

// lock takes turns with the other IPAM calls of this host, Calico's own plugin included: they would mostly fight for
// one block. It is an optimisation only, so a lock that cannot be had is no error.
func (c *call) lock(ctx context.Context) (unlock func()) {
	f, err := safefile.OpenOwn(c.conf.IPAMLockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		c.log.Warn("going on without the IPAM lock", zap.Error(err))
		return func() {}
	}
	if err := flock(ctx, f); err != nil {
		c.log.Warn("going on without the IPAM lock", zap.String("file", f.Name()), zap.Error(err))
	}
	return func() { _ = f.Close() }
}

// flock waits for the lock until ctx ends.
func flock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}
