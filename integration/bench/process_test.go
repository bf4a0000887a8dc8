package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpu returns the processor time of all threads of a process.
func cpu(pid int) time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	var sum time.Duration
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		ns, _ := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// statusMB reads a size of /proc/PID/status, for instance VmHWM, in megabytes.
func statusMB(pid int, field string) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return kilobytes(string(b), field)
}

// privateMB returns the memory of a process that it does not share, in megabytes.
func privateMB(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	return kilobytes(string(b), "Private_Clean") + kilobytes(string(b), "Private_Dirty")
}

func kilobytes(text, field string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb / 1024
		}
	}
	return 0
}

// fibSize is the number of IPv4 prefixes in the main table of the namespace that a process is in.
func fibSize(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/fib_triestat", pid))
	_, main, _ := strings.Cut(string(b), "Main:")
	_, rest, _ := strings.Cut(main, "Prefixes:")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(line))
	return n
}

// waitFIB waits until the table has grown by n.
func waitFIB(pid, base, n int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if have := fibSize(pid) - base; have >= n {
			return nil
		} else if time.Now().After(end) {
			return fmt.Errorf("%d of %d routes in the kernel after %s", have, n, limit)
		}
	}
}
