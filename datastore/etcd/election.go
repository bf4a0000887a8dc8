package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/election"
)

// electionRoot has one key for each election, with the leader's name as its value and the leader's lease. It is below
// Root, so that every writer of the datastore may lead, and in no range that Calico's programs read.
const electionRoot = Root + "manx/v1/elections/"

var _ datastore.Backend = (*Store)(nil)

// Campaign implements datastore.Elector. The end of ctx also ends leadership.
//
// A waiting candidate has no lease, only a watch of one key: elections cost etcd little, however many the candidates.
// Leadership is a key that exists once, bound to a lease. etcd counts the lease's time from the arrival of a renewal,
// the leader from its sending, less a reserve.
func (s *Store) Campaign(ctx context.Context, name, candidate string) (datastore.Leadership, error) {
	c := s.campaign(name)
	c.Candidate = candidate
	return c.Run(ctx, &lease{store: s, key: electionRoot + name, candidate: candidate, ttl: c.TTL})
}

func (s *Store) campaign(name string) election.Campaign {
	return election.Campaign{Election: name, TTL: cmp.Or(s.config.LeaseTTL, election.DefaultTTL), Closed: s.ctx,
		Tasks: &s.watches, Log: s.log}
}

// Observe implements datastore.Elector.
func (s *Store) Observe(ctx context.Context, name string) <-chan string {
	return s.campaign(name).Observe(ctx, func(ctx context.Context, each func(string) bool) error {
		return s.follow(ctx, electionRoot+name, func(kv *mvccpb.KeyValue) bool {
			if kv == nil {
				return each("")
			}
			return each(string(kv.Value))
		})
	})
}

func (s *Store) explained(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return s.explain(ctx, err)
}

// lease implements election.Lease.
type lease struct {
	store          *Store
	key, candidate string
	ttl            time.Duration

	id      clientv3.LeaseID
	created int64 // the revision that created our key

	stream etcdserverpb.Lease_LeaseKeepAliveClient // of renewals, nil while there is none
	drop   context.CancelFunc                      // ends it
}

// Free implements election.Lease.
func (l *lease) Free(ctx context.Context) error {
	return l.store.follow(ctx, l.key, func(kv *mvccpb.KeyValue) bool { return kv != nil })
}

// Claim implements election.Lease.
func (l *lease) Claim(ctx context.Context) (until time.Time, err error) {
	s := l.store
	limited, cancel := s.bounded(ctx)
	defer cancel()
	there, err := s.client.Get(limited, l.key, clientv3.WithKeysOnly())
	if err != nil {
		return until, s.explain(ctx, err)
	}
	if len(there.Kvs) > 0 {
		return until, election.ErrTaken
	}
	sent := time.Now()
	granted, err := s.client.Grant(limited, int64((l.ttl+time.Second-1)/time.Second))
	if err != nil {
		return until, s.explain(ctx, err)
	}
	l.id, until = granted.ID, endOf(sent, granted.TTL)
	won, err := s.client.Txn(limited).If(clientv3.Compare(clientv3.CreateRevision(l.key), "=", 0)).
		Then(clientv3.OpPut(l.key, l.candidate, clientv3.WithLease(l.id))).Commit()
	if err == nil && won.Succeeded && time.Now().Before(until) {
		l.created = won.Header.Revision
		return until, nil
	}
	// The key may have been created all the same; if this fails, too, the lease expires.
	_ = l.Release(context.WithoutCancel(ctx))
	if err != nil {
		return until, s.explain(ctx, err)
	}
	return until, election.ErrTaken
}

// endOf returns the time at which a leader stops if its renewal was sent at the given time.
func endOf(sent time.Time, ttlSeconds int64) time.Time {
	return election.End(sent, time.Duration(ttlSeconds)*time.Second)
}

// Taken implements election.Lease.
func (l *lease) Taken(ctx context.Context) error {
	return l.store.follow(ctx, l.key, func(kv *mvccpb.KeyValue) bool {
		return kv != nil && kv.CreateRevision == l.created
	})
}

// Renew implements election.Lease. (The client's own call retries without a pause while there is no connection, and
// authenticates each time.) The stream of renewals ends with ctx.
func (l *lease) Renew(ctx context.Context) (until time.Time, err error) {
	if l.stream == nil {
		ctx, drop := context.WithCancel(ctx)
		stream, err := clientv3.RetryLeaseClient(l.store.client).LeaseKeepAlive(ctx)
		if err != nil {
			drop()
			return until, err
		}
		l.stream, l.drop = stream, drop
	}
	sent := time.Now()
	limit := time.AfterFunc(election.Every(l.ttl), l.drop)
	defer limit.Stop()
	err = l.stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(l.id)})
	var answer *etcdserverpb.LeaseKeepAliveResponse
	if err == nil {
		answer, err = l.stream.Recv()
	}
	switch {
	case err != nil:
		l.drop()
		l.stream = nil
		return until, err
	case answer.TTL <= 0:
		return until, fmt.Errorf("%w: the datastore has forgotten the lease", datastore.ErrNotLeading)
	}
	return endOf(sent, answer.TTL), nil
}

// Release implements election.Lease. Revoking the lease deletes the key.
func (l *lease) Release(ctx context.Context) error {
	limited, cancel := l.store.bounded(ctx)
	defer cancel()
	_, err := l.store.client.Revoke(limited, l.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return l.store.explained(ctx, err)
}

// follow calls each with the value of a key, nil for none, and then after each change, until each returns false. It
// continues after lost connections, and fails when ctx ends or the datastore refuses.
func (s *Store) follow(ctx context.Context, key string, each func(*mvccpb.KeyValue) bool) error {
	return election.Persist(ctx, func(ctx context.Context) error {
		return s.explained(ctx, s.followOnce(ctx, key, each))
	})
}

func (s *Store) followOnce(ctx context.Context, key string, each func(*mvccpb.KeyValue) bool) error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	limited, done := s.bounded(ctx)
	now, err := s.client.Get(limited, key)
	done()
	if err != nil {
		return err
	}
	var kv *mvccpb.KeyValue
	if len(now.Kvs) > 0 {
		kv = now.Kvs[0]
	}
	if !each(kv) {
		return nil
	}
	s.cancelWhenLost(ctx, cancel)
	for resp := range s.client.Watch(ctx, key, clientv3.WithRev(now.Header.Revision+1)) {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, e := range resp.Events {
			if kv = e.Kv; e.Type == clientv3.EventTypeDelete {
				kv = nil
			}
			if !each(kv) {
				return nil
			}
		}
	}
	return cmp.Or(context.Cause(ctx), errConnectionLost)
}
