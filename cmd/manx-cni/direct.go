package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// directName is the program with its own datastore client, in the folder of this one.
const directName = "manx-cni-direct"

// becomeDirect executes manx-cni-direct in the place of this process, with the same arguments and environment, and with
// stdin as its standard input if it is not nil. It returns only on an error.
func becomeDirect(stdin []byte) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if stdin != nil {
		if err := feed(stdin); err != nil {
			return fmt.Errorf("standard input of %s: %w", directName, err)
		}
	}
	path := filepath.Join(filepath.Dir(self), directName)
	if err := unix.Exec(path, os.Args, os.Environ()); err != nil {
		return fmt.Errorf("%s cannot be executed: %w", path, err)
	}
	return nil
}

// feed makes content the standard input, from its beginning.
func feed(content []byte) error {
	fd, err := unix.MemfdCreate("cni-configuration", 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "cni-configuration")
	if _, err := f.Write(content); err != nil {
		return err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return err
	}
	return unix.Dup3(fd, 0, 0) // without close-on-exec
}
