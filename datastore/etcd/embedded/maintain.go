package embedded

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
)

// maintainInterval is the interval between maintenance passes of the embedded server.
const maintainInterval = time.Second

// maintain does an operator's work for the server: it checks the disk, and lifts the quota alarm if space was freed
// since.
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

// recoverSpace compacts, defragments and lifts the alarm if the quota was reached and enough space can be freed.
func (e *Server) recoverSpace(ctx context.Context) error {
	server := e.server.Server
	for _, a := range server.Alarms() {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		// This fails if there was no write since the last compaction; then there is nothing to compact.
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
