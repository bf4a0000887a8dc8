//go:build !linux

package safefile

import (
	"errors"
	"io/fs"
)

// Programs that share packages with manxd, such as manxctl, are also built for other systems. They write nothing there.
var errNotLinux = errors.New("files of manxd are written on Linux only")

// Dir is an open folder.
type Dir struct{}

// Make opens a folder, on Linux.
func Make(string, fs.FileMode) (*Dir, error) { return nil, errNotLinux }

// Close closes the folder.
func (*Dir) Close() error { return nil }

// Replace replaces a file, on Linux.
func Replace(string, []byte, fs.FileMode) error { return errNotLinux }

// Refused explains a missing permission, on Linux.
func Refused(err error) error { return err }
