package main

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// crashBySignal makes a panic, and SIGABRT of systemd's watchdog, end the process by a signal. Go's exit code for both
// is 2, as that of a wrong setting, for which the unit does not start manxd again. There is no core dump: it would hold
// passwords. A limit of 1 also keeps the kernel from passing one to a program (core(5)); 0 does not.
func crashBySignal() {
	debug.SetTraceback("crash")
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1})
}
