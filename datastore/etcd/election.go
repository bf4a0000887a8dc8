package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore"
)

// electionRoot holds one key for each election, with the leader's name as its value and the leader's lease. It is below
// Root, so that who may write the datastore may lead, and in no range that Calico's programs read.
const electionRoot = Root + "manx/v1/elections/"

const (
	defaultLeaseTTL = 15 * time.Second
	// A lease is renewed three times in its life. The leader stops a fifth of it early: clocks may differ in speed.
	renewals, reserve = 3, 5
	// scatter spreads the candidates that see a leader go, so that most find the next one there.
	scatter = 100 * time.Millisecond
)

var electionName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

var _ datastore.Backend = (*Store)(nil)

// Campaign implements datastore.Elector. Leadership ends with ctx, too.
//
// A candidate has no lease while it waits, only a watch of one key: elections cost etcd little, however many the
// candidates. Leadership is a key that exists once, bound to a lease; etcd counts the lease's time from when a renewal
// arrives and the leader from when it was sent, less a reserve.
func (s *Store) Campaign(ctx context.Context, election, candidate string) (datastore.Leadership, error) {
	if !electionName.MatchString(election) || candidate == "" {
		return nil, fmt.Errorf("election %q with candidate %q: want a name of lower-case letters, digits, dots and "+
			"dashes, and a candidate", election, candidate)
	}
	s.watches.Add(1)
	defer s.watches.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(errors.New("the store was closed")) })
	give := func(err error) (datastore.Leadership, error) {
		stop()
		cancel(nil)
		return nil, fmt.Errorf("election %s: %w", election, err)
	}
	key, said := electionRoot+election, ""
	for delay := minDelay; ; delay = min(2*delay, maxDelay) {
		if _, err := s.await(ctx, key, absentValue); err != nil {
			return give(err)
		}
		if !sleep(ctx, rand.N(scatter)) {
			return give(context.Cause(ctx))
		}
		l, err := s.claim(ctx, key, candidate)
		switch {
		case l != nil:
			l.cancel, l.stop = cancel, stop
			s.watches.Go(l.hold)
			return l, nil
		case ctx.Err() != nil:
			return give(context.Cause(ctx))
		case errors.Is(err, datastore.ErrUnauthorized):
			return give(err)
		case err == nil: // somebody else was faster
			delay = minDelay
			continue
		}
		if text := err.Error(); text != said {
			said = text
			s.log.Warn("nobody leads, and this candidate cannot either, trying again",
				zap.String("election", election), zap.Error(err))
		}
		if !sleep(ctx, delay/2+rand.N(delay)) {
			return give(context.Cause(ctx))
		}
	}
}

func absentValue(kv *mvccpb.KeyValue) bool { return kv == nil }

// sleep waits, and returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// claim makes the candidate the leader if nobody is; nil if somebody is.
func (s *Store) claim(ctx context.Context, key, candidate string) (*leadership, error) {
	limited, cancel := s.bounded(ctx)
	defer cancel()
	there, err := s.client.Get(limited, key, clientv3.WithKeysOnly())
	if err != nil || len(there.Kvs) > 0 {
		return nil, s.explained(ctx, err)
	}
	ttl := cmp.Or(s.config.LeaseTTL, defaultLeaseTTL)
	sent := time.Now()
	lease, err := s.client.Grant(limited, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return nil, s.explained(ctx, err)
	}
	l := &leadership{store: s, key: key, lease: lease.ID, ttl: time.Duration(lease.TTL) * time.Second,
		ctx: ctx, done: make(chan struct{})}
	l.until = l.endOf(sent, lease.TTL)
	won, err := s.client.Txn(limited).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, candidate, clientv3.WithLease(lease.ID))).Commit()
	if err != nil || !won.Succeeded || !time.Now().Before(l.until) {
		_ = l.revoke(context.WithoutCancel(ctx)) // it may have been put all the same; if this fails, too, the lease runs out
		return nil, s.explained(ctx, err)
	}
	l.created = won.Header.Revision
	return l, nil
}

func (s *Store) explained(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return s.explain(ctx, err)
}

// leadership implements datastore.Leadership.
type leadership struct {
	store   *Store
	key     string
	created int64 // the revision that made the key ours
	lease   clientv3.LeaseID
	ttl     time.Duration
	until   time.Time // nobody else can lead before

	stream etcdserverpb.Lease_LeaseKeepAliveClient // of renewals, nil while there is none
	drop   context.CancelFunc                      // ends it

	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool
	done   chan struct{} // closed when nothing renews the lease any more
}

// endOf is when a leader stops whose renewal was sent at a time.
func (l *leadership) endOf(sent time.Time, ttlSeconds int64) time.Time {
	ttl := time.Duration(ttlSeconds) * time.Second
	return sent.Add(ttl - ttl/reserve)
}

// Context implements datastore.Leadership.
func (l *leadership) Context() context.Context { return l.ctx }

// hold renews the lease until leadership ends.
func (l *leadership) hold() {
	defer close(l.done)
	defer l.stop()
	end := time.AfterFunc(time.Until(l.until), func() {
		l.cancel(fmt.Errorf("%w: the datastore did not renew the lease in time", datastore.ErrNotLeading))
	})
	defer end.Stop()
	defer func() {
		if l.stream != nil {
			l.drop()
		}
	}()
	l.store.watches.Go(l.guard)
	for sleep(l.ctx, l.ttl/renewals) {
		for failed := l.renew(end); failed != nil; failed = l.renew(end) {
			if errors.Is(failed, rpctypes.ErrLeaseNotFound) {
				l.cancel(fmt.Errorf("%w: the datastore has forgotten the lease", datastore.ErrNotLeading))
			}
			if !sleep(l.ctx, l.ttl/renewals/10) {
				return
			}
		}
	}
}

// guard ends leadership if the key is taken away by hand, or the datastore was replaced.
func (l *leadership) guard() {
	_, err := l.store.await(l.ctx, l.key, func(kv *mvccpb.KeyValue) bool {
		return kv == nil || kv.CreateRevision != l.created
	})
	if err == nil {
		l.cancel(fmt.Errorf("%w: its entry in the datastore is gone", datastore.ErrNotLeading))
	}
}

// renew puts off the end of leadership. (The client's own call tries without a pause while there is no connection, and
// logs in each time.)
func (l *leadership) renew(end *time.Timer) error {
	if l.stream == nil {
		ctx, drop := context.WithCancel(l.ctx)
		stream, err := clientv3.RetryLeaseClient(l.store.client).LeaseKeepAlive(ctx)
		if err != nil {
			drop()
			return err
		}
		l.stream, l.drop = stream, drop
	}
	sent := time.Now()
	limit := time.AfterFunc(l.ttl/renewals, l.drop)
	defer limit.Stop()
	err := l.stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(l.lease)})
	var answer *etcdserverpb.LeaseKeepAliveResponse
	if err == nil {
		answer, err = l.stream.Recv()
	}
	switch {
	case err != nil:
		l.drop()
		l.stream = nil
		return err
	case answer.TTL <= 0:
		return rpctypes.ErrLeaseNotFound
	}
	end.Reset(time.Until(l.endOf(sent, answer.TTL)))
	return nil
}

// Resign implements datastore.Leadership.
func (l *leadership) Resign(ctx context.Context) error {
	l.cancel(datastore.ErrNotLeading)
	<-l.done
	return l.revoke(ctx)
}

// revoke gives the lease back, and the key with it.
func (l *leadership) revoke(ctx context.Context) error {
	limited, cancel := l.store.bounded(ctx)
	defer cancel()
	_, err := l.store.client.Revoke(limited, l.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return l.store.explained(ctx, err)
}

// Observe implements datastore.Elector.
func (s *Store) Observe(ctx context.Context, election string) <-chan string {
	out := make(chan string)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	s.watches.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		last, told := "", false
		for {
			kv, err := s.await(ctx, electionRoot+election, func(kv *mvccpb.KeyValue) bool {
				return !told || leader(kv) != last
			})
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				s.log.Warn("the leader cannot be observed", zap.String("election", election), zap.Error(err))
				if !sleep(ctx, maxDelay) {
					return
				}
				continue
			}
			last, told = leader(kv), true
			select {
			case out <- last:
			case <-ctx.Done():
				return
			}
		}
	})
	return out
}

func leader(kv *mvccpb.KeyValue) string {
	if kv == nil {
		return ""
	}
	return string(kv.Value)
}

// await returns what is stored at a key, nil for nothing, as soon as it is wanted. It goes on over lost connections,
// and gives up when ctx ends or the datastore refuses.
func (s *Store) await(ctx context.Context, key string, wanted func(*mvccpb.KeyValue) bool) (*mvccpb.KeyValue, error) {
	for delay := minDelay; ; delay = min(2*delay, maxDelay) {
		began := time.Now()
		kv, err := s.awaitOnce(ctx, key, wanted)
		if err == nil {
			return kv, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err = s.explain(ctx, err); errors.Is(err, datastore.ErrUnauthorized) {
			return nil, err
		}
		if time.Since(began) > stable {
			delay = minDelay
		}
		if !sleep(ctx, delay/2+rand.N(delay)) {
			return nil, context.Cause(ctx)
		}
	}
}

func (s *Store) awaitOnce(
	ctx context.Context, key string, wanted func(*mvccpb.KeyValue) bool,
) (*mvccpb.KeyValue, error) {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	limited, done := s.bounded(ctx)
	now, err := s.client.Get(limited, key)
	done()
	if err != nil {
		return nil, err
	}
	var kv *mvccpb.KeyValue
	if len(now.Kvs) > 0 {
		kv = now.Kvs[0]
	}
	if wanted(kv) {
		return kv, nil
	}
	s.cancelWhenLost(ctx, cancel)
	for resp := range s.client.Watch(ctx, key, clientv3.WithRev(now.Header.Revision+1)) {
		if err := resp.Err(); err != nil {
			return nil, err
		}
		for _, e := range resp.Events {
			if kv = e.Kv; e.Type == clientv3.EventTypeDelete {
				kv = nil
			}
			if wanted(kv) {
				return kv, nil
			}
		}
	}
	return nil, cmp.Or(context.Cause(ctx), errConnectionLost)
}
