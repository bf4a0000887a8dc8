package main

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetProgram has the kernel forget which pages of the program's file are mapped: most were used by the start
// alone, or came along with others. Those in use come back from the page cache as they are touched. Errors do no harm.
func forgetProgram() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close() //nolint:errcheck // it was read
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if start, size, ok := programPart(lines.Text(), exe); ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, size, unix.MADV_DONTNEED)
		}
	}
}

// programPart is where a line of /proc/PID/maps (proc_pid_maps(5)) has a part of a file that cannot be written:
// nothing is in memory that is not in the file.
func programPart(line, file string) (start, size uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || strings.Contains(fields[1], "w") || !strings.HasSuffix(line, " "+file) {
		return 0, 0, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	a, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	b, err := strconv.ParseUint(to, 16, 64)
	return uintptr(a), uintptr(b - a), err == nil && b > a
}
