package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// diskGuard refuses writes while the disk is nearly full. etcd ends the whole process when a write to its log or its
// database fails, so it must never come to that: what it may need for what it has accepted stays free, which is the
// next segment of its log (64 MB, allocated in advance) and some growth of the database.
type diskGuard struct {
	dir     string
	minFree uint64
}

// check fails if too little of the disk is free.
func (g *diskGuard) check() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(g.dir, &fs); err != nil {
		return fmt.Errorf("data directory %s: %w", g.dir, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < g.minFree {
		return fmt.Errorf("the disk of data directory %s is full: %d MiB are free, want at least %d MiB", g.dir, free>>20, g.minFree>>20)
	}
	return nil
}

// serverOptions makes the server ask the guard before each write.
func (g *diskGuard) serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if writes(req) {
				if err := g.check(); err != nil {
					return nil, status.Error(codes.ResourceExhausted, err.Error())
				}
			}
			return handler(ctx, req)
		})}
}

func writes(req any) bool {
	switch r := req.(type) {
	case *etcdserverpb.PutRequest, *etcdserverpb.DeleteRangeRequest, *etcdserverpb.LeaseGrantRequest:
		return true
	case *etcdserverpb.TxnRequest:
		return anyWrites(r.Success) || anyWrites(r.Failure)
	}
	return false
}

func anyWrites(ops []*etcdserverpb.RequestOp) bool {
	for _, op := range ops {
		switch {
		case op.GetRequestPut() != nil, op.GetRequestDeleteRange() != nil:
			return true
		case op.GetRequestTxn() != nil && writes(op.GetRequestTxn()):
			return true
		}
	}
	return false
}
