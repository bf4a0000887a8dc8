package password

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxFile is more than any password; a larger file is none.
const maxFile = 4096

// settleTime is how long a file must stay unchanged before it counts as complete, on a file system without leases.
const settleTime = time.Second

// errBeingWritten is the error for a file that a process has open for writing: half a password must not be used.
var errBeingWritten = errors.New("the file is being written")

// sighting is a state of a file and when it was seen first.
type sighting struct {
	content string
	changed time.Time
	at      time.Time
}

// readFile reads a file of the folder as a whole; info is its state before, nil if it could not be opened. Links may
// lead through the folder, as those of Kubernetes do, but not out of it. Only a regular file is opened for long: a pipe
// would keep the reader waiting.
func (f *Folder) readFile(n name) (_ string, info os.FileInfo, _ error) {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(filepath.Join(n.secret, n.key), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	info, err = file.Stat()
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() {
		return "", info, fmt.Errorf("%s/%s is no regular file", n.secret, n.key)
	}
	// While we hold a read lease, no process has the file open for writing (fcntl(2), F_SETLEASE).
	_, leaseErr := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if errors.Is(leaseErr, unix.EAGAIN) {
		return "", info, errBeingWritten
	}
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return "", info, err
	}
	if len(content) > maxFile {
		return "", info, fmt.Errorf("%s/%s is larger than %d bytes", n.secret, n.key, maxFile)
	}
	if leaseErr != nil { // not ours, or a file system without leases
		return string(content), info, f.settled(n, info, string(content))
	}
	return string(content), info, nil
}

// settled reports whether a file is unchanged for a while: its time of change is some time past, or an earlier check
// found the same.
func (f *Folder) settled(n name, info os.FileInfo, content string) error {
	now, changed := f.now(), info.ModTime()
	if now.Sub(changed) >= settleTime {
		delete(f.seen, n)
		return nil
	}
	before, ok := f.seen[n]
	if !ok || before.content != content || !before.changed.Equal(changed) {
		f.seen[n] = sighting{content: content, changed: changed, at: now}
		return errBeingWritten
	}
	if now.Sub(before.at) < settleTime {
		return errBeingWritten
	}
	return nil
}
