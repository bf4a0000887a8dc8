package safefile

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// LogConfig configures the path of a log and its rotation.
type LogConfig struct {
	Path string
	Mode os.FileMode // of new files
	// MaxSize is the size in bytes at which a new file starts; 0: never.
	MaxSize int64
	// MaxFiles is the number of earlier files to keep, MaxAge the time; 0: all, for ever.
	MaxFiles int
	MaxAge   time.Duration
	// MakeDir creates a missing folder.
	MakeDir bool
}

// Log appends to a file and starts a new one when it is full: the earlier ones are called NAME-TIME.EXT. A file that
// another program moved or removed is created again within a second. After an error each write tries again. Several
// processes may write to one log. It is safe for concurrent use.
type Log struct {
	config LogConfig
	now    func() time.Time

	mu        sync.Mutex
	file      *os.File // nil: to be opened
	inode     unix.Stat_t
	checkedAt time.Time // when the file was last seen at its path
	torn      bool      // the last line is incomplete
	lastDir   *Dir
}

// NewLog returns a Log; the first write opens the file.
func NewLog(c LogConfig) *Log { return &Log{config: c, now: time.Now} }

// checkEvery is the interval between checks that the open file is still the one at the path.
const checkEvery = time.Second

// Write appends all of p, or returns an error.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ready(int64(len(p))); err != nil {
		return 0, errors.Join(err, l.close())
	}
	line := p
	if l.torn {
		line = append([]byte("\n"), p...)
	}
	n, err := l.file.Write(line)
	if err != nil {
		l.torn = l.torn || n > 0
		return 0, errors.Join(err, l.close())
	}
	l.torn = false
	return len(p), nil
}

// Reopen makes the next write open the file at the path.
func (l *Log) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.close()
}

// Close closes the file. A later write opens it again.
func (l *Log) Close() error { return l.Reopen() }

func (l *Log) close() error {
	var errs []error
	if l.file != nil {
		errs = append(errs, l.file.Close())
	}
	if l.lastDir != nil {
		errs = append(errs, l.lastDir.Close())
	}
	l.file, l.lastDir = nil, nil
	return errors.Join(errs...)
}

// ready ensures that the file at the path is open and has room for more bytes.
func (l *Log) ready(more int64) error {
	if l.file != nil && l.now().Sub(l.checkedAt) >= checkEvery && !l.current() {
		if err := l.close(); err != nil {
			return err
		}
	}
	if l.file == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	if l.config.MaxSize <= 0 {
		return nil
	}
	size, err := l.size()
	if err != nil || size == 0 || size+more <= l.config.MaxSize {
		return err
	}
	if err := l.rotate(); err != nil {
		return err
	}
	return l.open()
}

func (l *Log) open() error {
	name := filepath.Base(l.config.Path)
	mode := os.FileMode(0)
	if l.config.MakeDir {
		mode = 0o755
	}
	dir, err := open(filepath.Dir(l.config.Path), mode)
	if err != nil {
		return err
	}
	f, err := dir.openOwn(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, l.config.Mode)
	if err != nil {
		return errors.Join(err, dir.Close())
	}
	l.lastDir, l.file, l.checkedAt = dir, f, l.now()
	return unix.Fstat(int(f.Fd()), &l.inode)
}

// current reports whether the open file is still the one at the path.
func (l *Log) current() bool {
	l.checkedAt = l.now()
	same := false
	_ = in(l.config.Path, 0, func(d *Dir, name string) error {
		var st unix.Stat_t
		same = d.lstat(name, &st) == nil && sameInode(&st, &l.inode)
		return nil
	})
	return same
}

func (l *Log) size() (int64, error) {
	info, err := l.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// backupTime is the format of the time (UTC) in the names of earlier files, as in Calico's CNI plugin.
const backupTime = "2006-01-02T15-04-05.000"

// rotate renames the full file, unless another process has done so, and closes it.
func (l *Log) rotate() error {
	if err := unix.Flock(int(l.file.Fd()), unix.LOCK_EX); err != nil { // against the other processes that write to it
		return os.NewSyscallError("flock", err)
	}
	var st unix.Stat_t
	name := filepath.Base(l.config.Path)
	if l.lastDir.lstat(name, &st) == nil && sameInode(&st, &l.inode) {
		at := l.now()
		rename := func() error {
			return unix.Renameat2(l.lastDir.fd(), name, l.lastDir.fd(), l.backupName(at), unix.RENAME_NOREPLACE)
		}
		err := rename()
		for n := 0; n < 100 && errors.Is(err, unix.EEXIST); n++ { // another one of the same millisecond
			at = at.Add(time.Millisecond)
			err = rename()
		}
		if err != nil {
			return &os.PathError{Op: "rotate", Path: l.config.Path, Err: err}
		}
	}
	if err := l.prune(); err != nil {
		return err
	}
	return l.close()
}

// names returns the prefix and the suffix of earlier files.
func (l *Log) names() (begin, end string) {
	name := filepath.Base(l.config.Path)
	end = filepath.Ext(name)
	return strings.TrimSuffix(name, end) + "-", end
}

func (l *Log) backupName(at time.Time) string {
	begin, end := l.names()
	return begin + at.UTC().Format(backupTime) + end
}

// prune removes excess and expired earlier files.
func (l *Log) prune() error {
	files, err := l.lastDir.Files()
	if err != nil {
		return err
	}
	type earlier struct {
		name string
		at   time.Time
	}
	begin, end := l.names()
	var list []earlier
	for _, name := range files {
		rest, ok := strings.CutPrefix(name, begin)
		rest, ok2 := strings.CutSuffix(rest, end)
		if at, err := time.Parse(backupTime, rest); ok && ok2 && err == nil {
			list = append(list, earlier{name, at})
		}
	}
	slices.SortFunc(list, func(a, b earlier) int { return cmp.Compare(b.name, a.name) }) // the newest first
	var errs []error
	for i, e := range list {
		tooMany := l.config.MaxFiles > 0 && i >= l.config.MaxFiles
		tooOld := l.config.MaxAge > 0 && l.now().Sub(e.at) > l.config.MaxAge
		if tooMany || tooOld {
			errs = append(errs, l.lastDir.Remove(e.name))
		}
	}
	return errors.Join(errs...)
}
