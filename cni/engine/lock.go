package engine

import (
	"context"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/safefile"
)

// lock serializes the IPAM calls of this host, including those of Calico's plugin: most would conflict on one block. It
// is only an optimisation, so a failure to lock is no error.
func (c *call) lock(ctx context.Context) (unlock func()) {
	c.ipam.Lock() // the calls of this process wait on a mutex, without polling
	open, err := safefile.Lock(ctx, c.conf.IPAMLockFile)
	if err != nil && c.lockFails.CompareAndSwap(false, true) {
		c.log.Warn("going on without the IPAM lock", zap.String("file", c.conf.IPAMLockFile), zap.Error(err))
	}
	return func() {
		open()
		c.ipam.Unlock()
	}
}
