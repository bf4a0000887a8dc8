package embedded

import (
	"errors"
	"fmt"
	"os"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// diskGuard keeps a full disk from ending the process: etcd exits if it cannot write its log or its database. It
// refuses writes while the next segment of the log (64 MB, allocated in advance) might not fit. It also allocates in
// advance the space of the database's internal work, such as compaction, which must succeed even on a full disk.
type diskGuard struct {
	dir      string // a directory on the disk
	database string // the file of the database
	minFree  uint64
}

// reserved is the growth of the database that a full disk still allows, in bytes: it grows by 16 MiB at a time.
const reserved = 32 << 20

// reserve allocates the holes of the database file and the space after its end.
func (g *diskGuard) reserve() error {
	f, err := os.OpenFile(g.database, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 >= st.Size+reserved {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, st.Size+reserved)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // the file system cannot; check alone must do
	}
	return err
}

// check fails if the disk has too little free space.
func (g *diskGuard) check() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(g.dir, &fs); err != nil {
		return fmt.Errorf("data directory %s: %w", g.dir, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < g.minFree {
		return fmt.Errorf("the disk of data directory %s is full: %d MiB are free, want at least %d MiB", g.dir,
			free>>20, g.minFree>>20)
	}
	return nil
}

// admit fails if a request would write while the disk has too little free space.
func (g *diskGuard) admit(req any) error {
	if !writes(req) {
		return nil
	}
	if err := g.check(); err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return nil
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
