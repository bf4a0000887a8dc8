package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

const (
	dialTimeout      = 10 * time.Second
	keepAliveTime    = 30 * time.Second
	keepAliveTimeout = 10 * time.Second
	// pageSize keeps one response of a large read at a few megabytes.
	pageSize = 500
	// readRetries bounds the restarts of a read after a compaction.
	readRetries = 5
)

// Store is a datastore.Store over an etcd cluster.
type Store struct {
	config  Config
	tls     *tls.Config // of the files at the start; nil: the endpoints are not encrypted
	client  *clientv3.Client
	log     *zap.Logger
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	watches sync.WaitGroup
}

var _ datastore.Store = (*Store)(nil)

// Open connects to etcd and checks that it answers. An error that Is ErrUnavailable may be temporary, and names each
// endpoint with its problem; ErrUnauthorized and errors about the configuration are permanent.
func Open(ctx context.Context, config Config, log *zap.Logger) (*Store, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	tlsConfig, err := config.tlsConfig()
	if err != nil {
		return nil, err
	}
	if config.Password, err = config.password(); err != nil {
		return nil, err
	}
	if config.RequestTimeout == 0 {
		config.RequestTimeout = dialTimeout
	}
	s := &Store{config: config, tls: tlsConfig, log: log}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.connect(ctx); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

func (s *Store) connect(ctx context.Context) error {
	// The client requests an authentication token before it returns, bounded only by DialTimeout: probe first.
	if err := s.reachable(ctx, dialTimeout); err != nil {
		return err
	}
	// gRPC's own limit is two minutes: too long after the datastore's return.
	options := []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
			MaxDelay: 2 * time.Second},
		MinConnectTimeout: dialTimeout,
	}), grpc.WithChainUnaryInterceptor(askAnother, forgetToken)}
	if s.tls != nil {
		options = append(options,
			grpc.WithTransportCredentials(&currentTLS{credentials.NewTLS(s.tls), s.config}))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            s.config.Endpoints,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxUnaryRetries:      20,
		TLS:                  s.tls,
		Username:             s.config.Username,
		Password:             s.config.Password,
		Context:              s.ctx,
		DialOptions:          options,
		Logger:               quietClient(s.log.Named("etcd-client")),
	})
	if err != nil {
		return s.explain(ctx, err)
	}
	s.client = client
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if _, err := client.Get(ctx, Root, clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil {
		err = s.explain(ctx, err)
		client.Close()
		return err
	}
	return nil
}

// Keeps implements datastore.Backend.
func (s *Store) Keeps(kind model.Kind) bool {
	_, err := Prefixes(kind, "")
	return err == nil
}

// Source implements datastore.Backend.
func (s *Store) Source(kind model.Kind) string {
	if !s.Keeps(kind) {
		return ""
	}
	return strings.Join(s.config.Endpoints, ", ")
}

// UpgradeNode implements datastore.Backend. It does nothing.
func (s *Store) UpgradeNode(context.Context, string) error { return nil }

// Notices implements datastore.Backend. It returns none.
func (s *Store) Notices() []string { return nil }

// Close ends all watches and the connection.
func (s *Store) Close() error {
	s.cancel()
	s.watches.Wait()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// bounded gives ctx a deadline if it has none.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.config.RequestTimeout)
}

// Get implements datastore.Store.
func (s *Store) Get(ctx context.Context, key model.Key) (*model.Object, error) {
	path, err := Path(key)
	if err != nil {
		return nil, &datastore.KeyError{Op: "get", Key: key, Err: err}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	resp, err := s.client.Get(ctx, path)
	if err != nil {
		return nil, s.keyError(ctx, "get", key, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, &datastore.KeyError{Op: "get", Key: key, Err: datastore.ErrNotFound}
	}
	return codec.Decode(key, resp.Kvs[0].Value, resp.Kvs[0].ModRevision), nil
}

// List implements datastore.Store. It reads any number of objects in pages at one revision.
func (s *Store) List(ctx context.Context, kind model.Kind, namespace string) ([]*model.Object, int64, error) {
	key := model.Key{Kind: kind, Namespace: namespace, Name: "*"}
	prefixes, err := Prefixes(kind, namespace)
	if err != nil {
		return nil, 0, &datastore.KeyError{Op: "list", Key: key, Err: err}
	}
	kvs, at, err := s.read(ctx, prefixes, 0)
	if err != nil {
		return nil, 0, s.keyError(ctx, "list", key, err)
	}
	objects := make([]*model.Object, 0, len(kvs))
	for _, kv := range kvs {
		if o := parse(string(kv.Key), kv); o != nil && o.Key.Kind == kind {
			objects = append(objects, o)
		}
	}
	slices.SortFunc(objects, func(a, b *model.Object) int {
		return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return objects, at.revision, nil
}

// position is a revision of one cluster.
type position struct {
	cluster  uint64
	revision int64
}

// read returns the entries below the prefixes at the given revision, or at the newest if it is 0.
func (s *Store) read(
	ctx context.Context, prefixes []string, revision int64, opts ...clientv3.OpOption,
) ([]*mvccpb.KeyValue, position, error) {
	for attempt := 1; ; attempt++ {
		kvs, at, err := s.readOnce(ctx, prefixes, revision, opts)
		if errors.Is(err, rpctypes.ErrCompacted) && revision == 0 && attempt < readRetries {
			continue // compaction overtook a read of many pages
		}
		return kvs, at, err
	}
}

func (s *Store) readOnce(
	ctx context.Context, prefixes []string, revision int64, opts []clientv3.OpOption,
) (all []*mvccpb.KeyValue, at position, err error) {
	at, err = s.readPages(ctx, prefixes, revision, func(page []*mvccpb.KeyValue) error {
		all = append(all, page...)
		return nil
	}, opts...)
	return all, at, err
}

// readPages passes the entries at a revision, or at the newest one if it is 0, to each page by page, until each fails.
func (s *Store) readPages(
	ctx context.Context, prefixes []string, revision int64, each func([]*mvccpb.KeyValue) error,
	opts ...clientv3.OpOption,
) (position, error) {
	at := position{revision: revision}
	for _, prefix := range prefixes {
		from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
		for more := true; more; {
			resp, err := s.readPage(ctx, from, end, at.revision, opts)
			if err != nil {
				return at, err
			}
			at.cluster = resp.Header.ClusterId
			if at.revision == 0 {
				at.revision = resp.Header.Revision
			}
			if err := each(resp.Kvs); err != nil {
				return at, err
			}
			if more = resp.More && len(resp.Kvs) > 0; more {
				from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
			}
		}
	}
	return at, nil
}

func (s *Store) readPage(
	ctx context.Context, from, end string, revision int64, opts []clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	opts = append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithRev(revision),
		clientv3.WithLimit(pageSize)}, opts...)
	return s.client.Get(ctx, from, opts...)
}

// parse decodes an entry of a range, nil if it is not an object of Manx.
func parse(path string, kv *mvccpb.KeyValue) *model.Object {
	key, ok, err := ParsePath(path)
	switch {
	case !ok:
		return nil
	case err != nil:
		return &model.Object{Key: key, Revision: kv.ModRevision, Err: err}
	}
	return codec.Decode(key, kv.Value, kv.ModRevision)
}
