package safefile

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// fresh is the prefix of temporary files.
	fresh = ".manx-"
	// leftoverAfter is the age at which a temporary file counts as left over from a dead process.
	leftoverAfter = time.Minute
)

// CheckName returns an error if a name is no valid name of an entry, or would garble a listing.
func CheckName(name string) error {
	bad := func(r rune) bool { return r < ' ' || r == 0x7f || r == '/' || r == '\uFFFD' }
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%q cannot be the name of a file", name)
	case strings.ContainsFunc(name, bad):
		return fmt.Errorf("%q cannot be the name of a file: it has a slash or a control character", name)
	case len(name) > unix.NAME_MAX:
		return fmt.Errorf("%q cannot be the name of a file: it has %d bytes, want at most %d", name, len(name),
			unix.NAME_MAX)
	}
	return nil
}

// Replace writes a file with this content and mode in the place of any entry of that name except a folder. Readers see
// either the old or the whole new file. A link of that name is replaced, not followed. A file of this process's user
// that is so already is not written: that works on a disk that is full or read-only.
func (d *Dir) Replace(name string, content []byte, mode fs.FileMode) error {
	return d.replace(name, content, mode, false)
}

func (d *Dir) replace(name string, content []byte, mode fs.FileMode, durable bool) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if d.has(name, content, mode) {
		return nil
	}
	temporary, err := d.write(content, mode, durable)
	if err != nil {
		return err
	}
	if err = unix.Renameat(d.fd(), temporary, d.fd(), name); err != nil {
		_ = unix.Unlinkat(d.fd(), temporary, 0)
		return d.inTheWay(name, err)
	}
	return nil
}

// write writes a file with a random name. After an error there is none.
func (d *Dir) write(content []byte, mode fs.FileMode, durable bool) (name string, err error) {
	f, name, err := d.create(mode)
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = unix.Unlinkat(d.fd(), name, 0)
	}
	return name, err
}

// ErrChanged means that another process has changed a file meanwhile.
var ErrChanged = errors.New("another process has changed the file")

// ReplaceIf is Replace if the file's content is still was; nil: if there is no entry of that name. Otherwise it
// returns ErrChanged, and the file is as the other process wrote it, even if that was at the same moment.
func ReplaceIf(path string, was, content []byte, mode fs.FileMode) error {
	return in(path, 0o755, func(d *Dir, name string) error {
		d.RemoveLeftovers(time.Now())
		if err := CheckName(name); err != nil {
			return err
		}
		temporary, err := d.write(content, mode, true)
		if err != nil {
			return err
		}
		defer unix.Unlinkat(d.fd(), temporary, 0) //nolint:errcheck // it may have taken the file's name
		if was == nil {
			return d.renameNew(temporary, name)
		}
		return d.exchange(temporary, name, was)
	})
}

// renameNew renames a file to a name that has no entry.
func (d *Dir) renameNew(temporary, name string) error {
	err := unix.Renameat2(d.fd(), temporary, d.fd(), name, unix.RENAME_NOREPLACE)
	if unsupported(err) {
		var st unix.Stat_t
		if err = d.lstat(name, &st); errors.Is(err, unix.ENOENT) {
			err = unix.Renameat(d.fd(), temporary, d.fd(), name)
		} else if err == nil {
			err = unix.EEXIST
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w", filepath.Join(d.path, name), ErrChanged)
	}
	if err != nil {
		return d.inTheWay(name, err)
	}
	return nil
}

// exchange exchanges a file with the one of that name if that one's content is was.
func (d *Dir) exchange(temporary, name string, was []byte) error {
	changed := fmt.Errorf("%s: %w", filepath.Join(d.path, name), ErrChanged)
	if !d.contains(name, was) {
		return changed
	}
	ours, err := d.Read(temporary, math.MaxInt32)
	if err != nil {
		return err
	}
	swap := func() error { return unix.Renameat2(d.fd(), temporary, d.fd(), name, unix.RENAME_EXCHANGE) }
	switch err := swap(); {
	case unsupported(err):
		if err = unix.Renameat(d.fd(), temporary, d.fd(), name); err != nil {
			return d.inTheWay(name, err)
		}
		return nil
	case errors.Is(err, unix.ENOENT):
		return changed
	case err != nil:
		return d.inTheWay(name, err)
	}
	if d.contains(temporary, was) {
		return nil
	}
	// A file that came after the check goes back, unless a still newer one has come.
	for put := ours; ; {
		held, err := d.Read(temporary, math.MaxInt32)
		if err = errors.Join(err, swap()); err != nil || d.contains(temporary, put) {
			return errors.Join(changed, err)
		}
		put = held
	}
}

func (d *Dir) contains(name string, content []byte) bool {
	have, err := d.Read(name, int64(len(content)))
	return err == nil && bytes.Equal(have, content)
}

// unsupported reports whether the file system has no renames with flags.
func unsupported(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) }

// has reports whether a file is as Replace would make it.
func (d *Dir) has(name string, content []byte, mode fs.FileMode) bool {
	f, st, err := d.open(name, unix.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // only read
	if int(st.Uid) != os.Geteuid() || st.Nlink != 1 || st.Mode&0o7777 != uint32(mode.Perm()) ||
		st.Size != int64(len(content)) {
		return false
	}
	have, err := io.ReadAll(io.LimitReader(f, st.Size+1))
	return err == nil && bytes.Equal(have, content)
}

// create creates a file with a random name.
func (d *Dir) create(mode fs.FileMode) (*os.File, string, error) {
	name := fresh + rand.Text()
	path := filepath.Join(d.path, name)
	fd, err := unix.Openat(d.fd(), name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, "", &fs.PathError{Op: "create a file in", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	if err := f.Chmod(mode); err != nil {
		_ = unix.Unlinkat(d.fd(), name, 0)
		return nil, "", errors.Join(err, f.Close())
	}
	return f, name, nil
}

// inTheWay explains why a rename to a name failed.
func (d *Dir) inTheWay(name string, err error) error {
	path := filepath.Join(d.path, name)
	var st unix.Stat_t
	if d.lstat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("%s is a folder, of user %d: remove it", path, st.Uid)
	}
	return &fs.PathError{Op: "rename to", Path: path, Err: err}
}

func (d *Dir) lstat(name string, st *unix.Stat_t) error {
	return unix.Fstatat(d.fd(), name, st, unix.AT_SYMLINK_NOFOLLOW)
}

// Read returns the content of a regular file of at most limit bytes. It never blocks, as on a pipe, and follows no
// link.
func (d *Dir) Read(name string, limit int64) ([]byte, error) {
	f, _, err := d.open(name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", f.Name(), limit)
	}
	return content, err
}

// openOwn opens a file that is written in place: a log, or a lock file. flag is one of os.O_RDWR, O_WRONLY and
// O_RDONLY, optionally with O_APPEND and O_CREATE. It refuses any other entry than a regular file and, in a folder
// where others may write, a file of another user or with further hard links.
func (d *Dir) openOwn(name string, flag int, mode fs.FileMode) (*os.File, error) {
	f, st, err := d.open(name, flag, mode)
	if err != nil {
		return nil, err
	}
	switch {
	case d.exposed == "": // only root could put it there
		return f, nil
	case !trusted(st.Uid):
		err = fmt.Errorf("%s belongs to user %d and is not written", f.Name(), st.Uid)
	case st.Nlink > 1:
		err = fmt.Errorf("%s has %d names (hard links) and is not written", f.Name(), st.Nlink)
	default:
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// open opens a regular file.
func (d *Dir) open(name string, flag int, mode fs.FileMode) (*os.File, *unix.Stat_t, error) {
	if err := CheckName(name); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(d.path, name)
	fd, err := unix.Openat(d.fd(), name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC,
		uint32(mode.Perm()))
	if err != nil {
		var st unix.Stat_t
		if d.lstat(name, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, nil, notRegular(path, &st)
		}
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = notRegular(path, &st)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, &st, nil
}

func notRegular(path string, st *unix.Stat_t) error {
	return fmt.Errorf("%s is a %s of user %d, not a regular file", path, kindOf(st), st.Uid)
}

func kindOf(st *unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "regular file"
	case unix.S_IFDIR:
		return "folder"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFIFO:
		return "named pipe"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// Files returns the names of the regular files that only root and this process's user can have put there.
func (d *Dir) Files() ([]string, error) {
	list, err := d.Names()
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range list {
		var st unix.Stat_t
		if d.lstat(name, &st) == nil && d.owns(&st) {
			files = append(files, name)
		}
	}
	return files, nil
}

// Names returns the names of all entries, in no order.
func (d *Dir) Names() ([]string, error) {
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close() //nolint:errcheck // only read
	return f.Readdirnames(-1)
}

func (d *Dir) owns(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && (d.exposed == "" || trusted(st.Uid))
}

// Remove removes a regular file of those that Files lists. A missing file is no error; any other entry of that name is
// an error, and stays.
func (d *Dir) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	path := filepath.Join(d.path, name)
	var st unix.Stat_t
	switch err := d.lstat(name, &st); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	case !d.owns(&st):
		return fmt.Errorf("%s is a %s of user %d and is left alone", path, kindOf(&st), st.Uid)
	}
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// RemoveLeftovers removes the temporary files of dead processes. It ignores errors: a later call tries again.
func (d *Dir) RemoveLeftovers(now time.Time) {
	list, _ := d.Names()
	for _, name := range list {
		var st unix.Stat_t
		if strings.HasPrefix(name, fresh) && d.lstat(name, &st) == nil && d.owns(&st) &&
			now.Sub(time.Unix(st.Mtim.Unix())) > leftoverAfter {
			_ = d.Remove(name)
		}
	}
}

// Replace creates the folder of a file if it is missing (mode 0755) and replaces the file as Dir.Replace does. When it
// returns, the content is on the disk.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return in(path, 0o755, func(d *Dir, name string) error {
		d.RemoveLeftovers(time.Now())
		return d.replace(name, content, mode, true)
	})
}

// Read is Dir.Read of a file by its path.
func Read(path string, limit int64) (content []byte, err error) {
	err = in(path, 0, func(d *Dir, name string) error {
		content, err = d.Read(name, limit)
		return err
	})
	return content, err
}

// ReadTrusted is Read of a file that only root and this process's user can have written. modified is the time of its
// last Replace or Touch.
func ReadTrusted(path string, limit int64) (content []byte, modified time.Time, err error) {
	err = in(path, 0, func(d *Dir, name string) error {
		f, st, err := d.open(name, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		err = errors.Join(d.CheckOwned(), f.Close())
		switch {
		case err != nil:
		case !trusted(st.Uid):
			err = fmt.Errorf("%s belongs to user %d, who could change it", path, st.Uid)
		case st.Mode&0o022 != 0:
			err = fmt.Errorf("%s has the mode %#o: other users could change it", path, st.Mode&0o7777)
		case st.Nlink > 1:
			err = fmt.Errorf("%s has %d names (hard links)", path, st.Nlink)
		default:
			modified = time.Unix(st.Mtim.Unix())
			content, err = d.Read(name, limit)
		}
		return err
	})
	return content, modified, err
}

// Touch sets the time of a file to now. It writes no content.
func Touch(path string) error {
	return in(path, 0, func(d *Dir, name string) error {
		now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
		return unix.UtimesNanoAt(d.fd(), name, now, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Remove is Dir.Remove of a file by its path. A missing folder is no error.
func Remove(path string) error {
	err := in(path, 0, func(d *Dir, name string) error { return d.Remove(name) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// OpenOwn creates the folder of a file if it is missing (mode 0755) and opens the file as Dir.openOwn does.
func OpenOwn(path string, flag int, mode fs.FileMode) (f *os.File, err error) {
	err = in(path, 0o755, func(d *Dir, name string) error {
		f, err = d.openOwn(name, flag, mode)
		return err
	})
	return f, err
}

// in calls f with the folder of a path and the file's name. If mode is not 0 it creates a missing folder.
func in(path string, mode fs.FileMode, f func(d *Dir, name string) error) error {
	d, err := open(filepath.Dir(path), mode)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // only read
	return f(d, filepath.Base(path))
}

// RemoveDir removes an empty folder of root or of this process's user, and leaves any other.
func RemoveDir(path string) {
	_ = in(path, 0, func(d *Dir, name string) error {
		var st unix.Stat_t
		if err := d.lstat(name, &st); err != nil || !trusted(st.Uid) {
			return err
		}
		return unix.Unlinkat(d.fd(), name, unix.AT_REMOVEDIR)
	})
}
