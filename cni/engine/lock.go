package engine

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/safefile"
)

// lock serializes the IPAM calls of this host, including those of Calico's plugin: most would conflict on one block. It
// is only an optimisation, so a failure to lock is no error.
func (c *call) lock(ctx context.Context) (unlock func()) {
	c.ipam.Lock() // the calls of this process wait on a mutex, without polling
	open, err := lockFile(ctx, c.conf.IPAMLockFile)
	if err != nil && c.lockFails.CompareAndSwap(false, true) {
		c.log.Warn("going on without the IPAM lock", zap.String("file", c.conf.IPAMLockFile), zap.Error(err))
	}
	return func() {
		open()
		c.ipam.Unlock()
	}
}

func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := safefile.OpenOwn(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return func() {}, err
	}
	return func() { _ = f.Close() }, flock(ctx, f)
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
