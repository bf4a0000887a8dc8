package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/retry"
)

// compactKey holds the current revision at the time of the last compaction; the number of its writes distinguishes
// compactors. kube-apiserver and Calico use the same key, so that all of them together compact once in a period.
const compactKey = "compact_rev_key"

var _ datastore.Compactor = (*Store)(nil)

// Compact implements datastore.Compactor. etcd keeps all revisions of the last period, in which an interrupted watch
// can resume.
func (s *Store) Compact(ctx context.Context, period time.Duration) error {
	if period <= 0 {
		return fmt.Errorf("compact etcd: a period of %s is too short", period)
	}
	var at compaction
	for {
		if !retry.Sleep(ctx, period) {
			return ctx.Err()
		}
		next, err := s.compactOnce(ctx, at)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, datastore.ErrUnauthorized):
			return fmt.Errorf("compact etcd: %w", err)
		case err != nil:
			s.log.Warn("etcd could not be compacted, trying again", zap.Duration("after", period), zap.Error(err))
			continue
		}
		at = next
	}
}

// compaction is a compactor's record of the last compaction.
type compaction struct {
	version  int64 // of compactKey
	revision int64 // the current one then; 0: not known
}

// compactOnce drops the revisions before the last compaction, unless another compactor has since, and records the
// current revision.
func (s *Store) compactOnce(ctx context.Context, last compaction) (compaction, error) {
	limited, cancel := s.bounded(ctx)
	defer cancel()
	resp, err := s.client.Txn(limited).If(clientv3.Compare(clientv3.Version(compactKey), "=", last.version)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(last.revision, 10))).
		Else(clientv3.OpGet(compactKey)).Commit()
	if err != nil {
		return last, s.explained(ctx, err)
	}
	now := compaction{version: last.version + 1, revision: resp.Header.Revision}
	if !resp.Succeeded {
		now.version = 0
		if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			now.version = kvs[0].Version
		}
		return now, nil // another compactor is active
	}
	if last.revision == 0 {
		return now, nil
	}
	_, err = s.client.Compact(limited, last.revision)
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = nil // another compactor has compacted more
	}
	if err != nil {
		return now, s.explained(ctx, err)
	}
	s.log.Debug("etcd was compacted", zap.Int64("revision", last.revision))
	return now, nil
}
