// Package restarts defines the record of earlier processes that manx-supervise passes to manxd in its container: the
// value of an environment variable.
package restarts

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Again is the exit code of a process that wants to be started again, and has logged why: it counts as no failure.
const Again = 75

// Variable is the name of the environment variable.
const Variable = "MANX_SUPERVISED"

// Record counts the processes that ended and were replaced.
type Record struct {
	Count int
	// Last is when the last one ended, with millisecond precision, and Reason how: a signal such as SIGSEGV, or an exit
	// code. Both are unset for a Count of 0.
	Last   time.Time
	Reason string
	// Report is true if an Event is to be written about it.
	Report bool
}

// String returns the value of the variable.
func (r Record) String() string {
	if r.Count == 0 {
		return "0"
	}
	return fmt.Sprintf("%d %d %t %s", r.Count, r.Last.UnixMilli(), r.Report, r.Reason)
}

// Parse reads a value of the variable.
func Parse(text string) (r Record, err error) {
	bad := fmt.Errorf("%s=%q is not of manx-supervise", Variable, text)
	fields := strings.SplitN(text, " ", 4)
	if r.Count, err = strconv.Atoi(fields[0]); err != nil || r.Count < 0 || (r.Count == 0) != (len(fields) == 1) {
		return Record{}, bad
	}
	if r.Count == 0 {
		return r, nil
	}
	if len(fields) != 4 || fields[3] == "" {
		return Record{}, bad
	}
	ms, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return Record{}, bad
	}
	if r.Report, err = strconv.ParseBool(fields[2]); err != nil {
		return Record{}, bad
	}
	r.Last, r.Reason = time.UnixMilli(ms), fields[3]
	return r, nil
}
