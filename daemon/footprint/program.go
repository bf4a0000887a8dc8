package footprint

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetProgram drops the page table entries of the program's file: most pages were used only by the start, or read
// ahead. Pages in use return from the page cache on access. Errors are harmless.
func forgetProgram() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer maps.Close() //nolint:errcheck // it was read
	for _, p := range cleanParts(maps, exe) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, p.start, p.size, unix.MADV_DONTNEED)
	}
}

// programPart is a mapping of the program's file.
type programPart struct{ start, size uintptr }

// cleanParts reads /proc/PID/smaps (proc_pid_smaps(5)) and returns the read-only mappings of a file without private
// pages: all of their content is in the file. A mapping that the dynamic linker or a debugger has changed has such
// pages (Anonymous), although it cannot be written any more.
func cleanParts(smaps io.Reader, file string) (parts []programPart) {
	var part programPart
	inside := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) > 1 && !strings.HasSuffix(fields[0], ":"): // the first line of a mapping
			part, inside = readOnlyPart(lines.Text(), fields, file)
		case inside && len(fields) > 1 && fields[0] == "Anonymous:" && fields[1] == "0":
			parts = append(parts, part)
		}
	}
	return parts
}

func readOnlyPart(line string, fields []string, file string) (programPart, bool) {
	if len(fields) < 6 || strings.Contains(fields[1], "w") || !strings.HasSuffix(line, " "+file) {
		return programPart{}, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	start, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return programPart{}, false
	}
	end, err := strconv.ParseUint(to, 16, 64)
	return programPart{uintptr(start), uintptr(end - start)}, err == nil && end > start
}
