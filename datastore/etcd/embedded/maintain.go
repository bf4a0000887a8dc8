package embedded

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
)

// maintainInterval is how often the embedded server is looked after.
const maintainInterval = time.Second

// maintain does what an operator does for a cluster of one's own: it sees to the disk, and it makes the server writable
// again when its quota was reached and something was deleted since.
func (e *Server) maintain(ctx context.Context) {
	tick := time.NewTicker(maintainInterval)
	defer tick.Stop()
	trouble := transitions{log: e.log}
	for {
		trouble.report("reserving disk space", e.disk.reserve())
		trouble.report("disk space", e.disk.check())
		trouble.report("recovering space", e.recoverSpace(ctx))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// recoverSpace compacts, defragments and lifts the alarm if the quota was reached and there is enough to gain.
func (e *Server) recoverSpace(ctx context.Context) error {
	server := e.server.Server
	for _, a := range server.Alarms() {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		// This fails if nothing was written since the last compaction, and then there is nothing to compact.
		_, _ = server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: server.KV().Rev(), Physical: true})
		if inUse := server.Backend().SizeInUse(); inUse > e.config.QuotaBytes/10*9 {
			return fullError{inUse, e.config.QuotaBytes}
		}
		if err := e.disk.check(); err != nil {
			return err // defragmenting makes a copy first
		}
		if err := server.Backend().Defrag(); err != nil {
			return err
		}
		disarm := &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: a.Alarm,
			MemberID: a.MemberID}
		if _, err := server.Alarm(ctx, disarm); err != nil {
			return err
		}
		e.log.Info("embedded datastore: space was recovered, writing is possible again",
			zap.Int64("bytes", server.Backend().Size()))
	}
	return nil
}
