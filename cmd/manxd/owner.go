package main

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// asOwner runs do as the owner of manxd's run directory. Root, the caller, becomes that user in a separate process with
// CAP_NET_ADMIN only: with more it would have to distrust the files that manxd created as another user. That process
// gets args behind the arguments of this one.
func asOwner(o options, do func(options) error, args ...string) error {
	info, err := os.Stat(o.host.runDir)
	if err != nil || os.Geteuid() != 0 {
		return do(o)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid == 0 {
		return do(o)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, slices.Concat(os.Args[1:], args)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid},
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN},
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1)) // it has printed why
	}
	return err
}
