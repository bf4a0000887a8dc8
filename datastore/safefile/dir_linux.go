package safefile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open folder. Its methods work in that folder, even if another one, or a link, has taken over its path
// meanwhile. Their names are entries, without a folder.
type Dir struct {
	path string
	file *os.File
	// exposed names the other users who could change the folder's content or replace the folder, "" for none.
	exposed string
}

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// Open opens a folder. The error wraps fs.ErrNotExist if it does not exist.
func Open(path string) (*Dir, error) { return open(path, 0) }

// Make opens a folder. It creates missing folders of the path with this mode.
func Make(path string, mode fs.FileMode) (*Dir, error) { return open(path, mode) }

func open(path string, mode fs.FileMode) (*Dir, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w := walk{mode: mode, rest: components(absolute)}
	defer w.close()
	if err := w.begin(); err != nil {
		return nil, err
	}
	for len(w.rest) > 0 {
		if err := w.step(); err != nil {
			return nil, err
		}
	}
	d, err := w.reopen()
	if err == nil {
		d.path = absolute // the user's path, with its links
	}
	return d, err
}

// Close closes the folder.
func (d *Dir) Close() error { return d.file.Close() }

// CheckOwned returns an error that names another user who can change the content of the folder, or put another folder
// at its path. It returns nil if only root and this process's user can.
func (d *Dir) CheckOwned() error { return exposure(d.exposed) }

func exposure(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// CheckOwned is Dir.CheckOwned for a folder that need not exist: for a missing one, it checks the existing part of its
// path.
func CheckOwned(path string) error {
	for {
		d, err := Open(path)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != path {
			if path, err = filepath.Abs(filepath.Dir(path)); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		defer d.Close() //nolint:errcheck // only read
		if d.sticky() { // the creator of the missing folder will own it; that is checked once it exists
			return nil
		}
		return d.CheckOwned()
	}
}

// sticky reports whether only the sticky bit keeps others from changing entries.
func (d *Dir) sticky() bool {
	var st unix.Stat_t
	return unix.Fstat(d.fd(), &st) == nil && guarded(&st) && st.Mode&0o022 != 0
}

func (d *Dir) fd() int { return int(d.file.Fd()) }

// walk is the traversal of a path. Its folders are kept open for links that lead up again.
type walk struct {
	mode  fs.FileMode // of missing folders; 0: none is created
	rest  []string
	stack []folder
	links int
}

type folder struct {
	fd   int
	path string
	// exposed names the other users who could have put another folder here; writers those who may write here.
	exposed, writers string
	// guarded is set if the folder protects root's entries from others.
	guarded bool
}

func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

func (w *walk) last() *folder { return &w.stack[len(w.stack)-1] }

func (w *walk) close() {
	for _, f := range w.stack {
		_ = unix.Close(f.fd)
	}
	w.stack = nil
}

// begin starts at the root.
func (w *walk) begin() error {
	w.close()
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	return w.enter(fd, "/")
}

// enter takes over an open folder.
func (w *walk) enter(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	f := folder{fd: fd, path: path, writers: writers(path, &st), guarded: guarded(&st)}
	if len(w.stack) > 0 {
		f.exposed = w.last().exposedBelow()
	}
	w.stack = append(w.stack, f)
	return nil
}

// reopen returns the walk's current folder.
func (w *walk) reopen() (*Dir, error) {
	last := w.last()
	fd, err := unix.Openat(last.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: last.path, Err: err}
	}
	return &Dir{path: last.path, file: os.NewFile(uintptr(fd), last.path), exposed: cmp.Or(last.exposed, last.writers)},
		nil
}

// exposedBelow names the other users who could replace an entry of root.
func (f *folder) exposedBelow() string {
	if f.exposed == "" && !f.guarded {
		return f.writers
	}
	return f.exposed
}

// step follows one component.
func (w *walk) step() error {
	name, at := w.rest[0], w.last()
	switch name {
	case ".":
		w.rest = w.rest[1:]
		return nil
	case "..":
		w.rest = w.rest[1:]
		if len(w.stack) > 1 {
			_ = unix.Close(at.fd)
			w.stack = w.stack[:len(w.stack)-1]
		}
		return nil
	}
	path := filepath.Join(at.path, name)
	fd, err := unix.Openat(at.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) && w.mode != 0 {
		if err = unix.Mkdirat(at.fd, name, uint32(w.mode.Perm())); err == nil || errors.Is(err, unix.EEXIST) {
			fd, err = unix.Openat(at.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		w.rest = w.rest[1:]
		return w.enter(fd, path)
	case unix.S_IFLNK:
		defer unix.Close(fd) //nolint:errcheck // only read
		return w.follow(fd, path, &st)
	}
	_ = unix.Close(fd)
	return &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
}

// follow replaces the link, which is open, by its target.
func (w *walk) follow(link int, path string, st *unix.Stat_t) error {
	if !trusted(st.Uid) {
		return fmt.Errorf("%s is a symbolic link of user %d and is not followed", path, st.Uid)
	}
	if who := w.last().exposedBelow(); who != "" {
		return fmt.Errorf("%s is a symbolic link and is not followed: %s", path, who)
	}
	if w.links++; w.links > maxLinks {
		return &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(link, "", target)
	if err != nil {
		return &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	w.rest = append(components(string(target[:n])), w.rest[1:]...)
	if target[0] == '/' {
		return w.begin()
	}
	return nil
}

// trusted reports whether a user's files are as trustworthy as this process's own.
func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// guarded reports whether a folder prevents others from renaming and removing root's entries: no other user may write
// there, or the sticky bit protects entries from all but their owners.
func guarded(st *unix.Stat_t) bool {
	return trusted(st.Uid) && (st.Mode&0o022 == 0 || st.Mode&unix.S_ISVTX != 0)
}

// writers names the other users who may write in a folder. With access control lists the group's bits are the maximum
// of the lists, so they count whatever the group.
func writers(path string, st *unix.Stat_t) string {
	switch {
	case !trusted(st.Uid):
		return fmt.Sprintf("the folder %s belongs to user %d", path, st.Uid)
	case st.Mode&0o002 != 0:
		return fmt.Sprintf("everybody may write in the folder %s (mode %04o)", path, st.Mode&0o7777)
	case st.Mode&0o020 != 0:
		return fmt.Sprintf("the group %d may write in the folder %s (mode %04o)", st.Gid, path, st.Mode&0o7777)
	}
	return ""
}
