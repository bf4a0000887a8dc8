package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// bootable reports why a kernel that lacks nothing cannot be booted here.
func bootable(missing error, keep bool) error {
	switch {
	case runtime.GOARCH != "amd64":
		return fmt.Errorf("%w, and one that has it can be booted on amd64 alone", missing)
	case keep:
		return fmt.Errorf("%w, and KEEP=1 cannot keep one that is booted for the demo", missing)
	}
	return nil
}

// boot runs this program again, with its arguments, under a kernel that lacks nothing. It returns only after an error.
func boot(root string, missing error) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	programs, err := lab.Programs()
	if err != nil {
		return err
	}
	fmt.Printf("%v, so the demo boots one that has it.\n", missing)
	args := []string{filepath.Join(root, "integration", "vm", "run"), "--user-mode", "--mem", "8192",
		"--timeout", "3600", "--env", "MANX_CACHE=" + filepath.Dir(programs),
		"--env", "MANX_PATIENCE=5", "--env", "GOMAXPROCS=1",
		"--env", "GODEBUG=asyncpreemptoff=1", "--", program}
	return errors.Join(fmt.Errorf("run %s", args[0]),
		syscall.Exec(args[0], append(args, os.Args[1:]...), os.Environ()))
}
