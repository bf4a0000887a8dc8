package safefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Refused adds to an error of reading a file without permission who was refused, and owner, group and mode of the file,
// or of the folder that hides it. It returns other errors unchanged.
func Refused(err error) error {
	var at *fs.PathError
	if !errors.Is(err, fs.ErrPermission) || !errors.As(err, &at) {
		return err
	}
	what, path := "the file", at.Path
	info, statErr := os.Stat(path)
	for statErr != nil && path != filepath.Dir(path) {
		path = filepath.Dir(path)
		what = "the folder " + path
		info, statErr = os.Stat(path)
	}
	uid := strconv.Itoa(os.Geteuid())
	if statErr != nil {
		return fmt.Errorf("%w for user %s", err, userName(uid))
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%w for user %s", err, userName(uid))
	}
	return fmt.Errorf("%w for user %s: %s belongs to %s:%s, mode %#o", err, userName(uid), what,
		userName(strconv.Itoa(int(owner.Uid))), groupName(strconv.Itoa(int(owner.Gid))), info.Mode().Perm())
}

// userName returns the name of a user, the number if it has none.
func userName(id string) string {
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func groupName(id string) string {
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}
