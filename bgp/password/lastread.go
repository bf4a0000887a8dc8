package password

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// writingPeriod is how often files are checked while one of them is being written.
	writingPeriod = time.Second
	// period is how often files are checked: some file systems do not report changes.
	period = 10 * time.Second
)

// lastRead holds the attributes of a password file when it was last read.
type lastRead struct {
	attributes       attributes
	writing, unclear bool // it must be read again: it was being written, or its attributes are incomplete
	requested        bool // since EndDecision
}

// attributes distinguish two states of a file without its content: those of stat(2) that change with it. Those of a
// missing file are zero.
type attributes struct {
	device, inode, mode uint64
	size                int64
	modified, changed   syscall.Timespec
}

func attributesOf(info os.FileInfo) attributes {
	if info == nil {
		return attributes{}
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return attributes{}
	}
	return attributes{s.Dev, s.Ino, uint64(s.Mode), s.Size, s.Mtim, s.Ctim}
}

// newLastRead records the state of a file when it was read, with the error of the read. A file that changed a moment
// ago may change again without another time.
func newLastRead(info os.FileInfo, err error, now time.Time) lastRead {
	l := lastRead{attributes: attributesOf(info), requested: true, writing: errors.Is(err, errBeingWritten)}
	changed := time.Unix(l.attributes.changed.Unix())
	l.unclear = l.writing || unreadable(err) || info != nil && now.Sub(changed) < settleTime
	return l
}

// unreadable reports whether a system error, other than a missing file, prevented the read.
func unreadable(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && errno != syscall.ENOENT
}

// EndDecision ends the calls of Password for one decision: files that it did not name are no longer read. It returns
// how often Outdated is to be called until the next one, 0 for never.
func (f *Folder) EndDecision() (every time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, l := range f.lastReads {
		switch {
		case !l.requested:
			delete(f.lastReads, n)
			continue
		case l.writing:
			every = writingPeriod
		case every == 0:
			every = period
		}
		l.requested = false
		f.lastReads[n] = l
	}
	return every
}

// Outdated reports whether a file that the last decision named may hold another password than it did then. It costs a
// stat for each file.
func (f *Folder) Outdated() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lastReads) == 0 {
		return false
	}
	root, err := os.OpenRoot(f.dir)
	if err == nil {
		defer root.Close()
	}
	for n, l := range f.lastReads {
		var info os.FileInfo
		failed := err
		if failed == nil {
			info, failed = root.Stat(filepath.Join(n.secret, n.key))
		}
		if failed != nil {
			info = nil
		}
		if l.unclear || attributesOf(info) != l.attributes {
			return true
		}
	}
	return false
}
