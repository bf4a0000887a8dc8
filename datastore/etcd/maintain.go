package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
)

// maintainInterval is how often the embedded server is looked after.
const maintainInterval = 10 * time.Second

// maintain makes the server writable again after its quota was reached and something was deleted. In a cluster of
// one's own that is an operator's job: compact, defragment, disarm.
func (e *Embedded) maintain(ctx context.Context) {
	client := v3client.New(e.server.Server)
	defer client.Close()
	tick := time.NewTicker(maintainInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := e.recoverSpace(ctx, client); err != nil && ctx.Err() == nil {
				e.log.Warn("embedded datastore: cannot recover space", zap.Error(err))
			}
		}
	}
}

// recoverSpace does nothing unless the quota was reached.
func (e *Embedded) recoverSpace(ctx context.Context, client *clientv3.Client) error {
	alarms, err := client.AlarmList(ctx)
	if err != nil {
		return err
	}
	for _, a := range alarms.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		current, err := client.Get(ctx, "/", clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		_, _ = client.Compact(ctx, current.Header.Revision, clientv3.WithCompactPhysical()) // fails if there is nothing new to compact
		backend := e.server.Server.Backend()
		if inUse := backend.SizeInUse(); inUse > e.config.QuotaBytes/10*9 {
			e.log.Warn("embedded datastore: quota is reached, nothing can be written until something is deleted",
				zap.Int64("in-use-bytes", inUse), zap.Int64("quota-bytes", e.config.QuotaBytes))
			return nil
		}
		if err := backend.Defrag(); err != nil {
			return err
		}
		if _, err := client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return err
		}
		e.log.Info("embedded datastore: space was recovered, writing is possible again", zap.Int64("bytes", backend.Size()))
	}
	return nil
}
