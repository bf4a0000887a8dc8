package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/daemon/restarts"
)

// apart is the least time between two starts: back soon, and no busy loop.
const apart = time.Second

// Events of a node that crashes again and again: a burst, and then one in an interval.
const (
	burst       = 10
	refillEvery = 2 * time.Minute
)

// The kernel kills the child at the end of the thread that started it: that is the main thread, which ends last.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: manx-supervise PROGRAM [ARGUMENT...]")
		os.Exit(2)
	}
	path, err := exec.LookPath(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "manx-supervise:", err)
		os.Exit(2)
	}
	// The environment may have a password: no core dump, as of manxd.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1})
	signals, ends := make(chan os.Signal, 100), make(chan os.Signal, 1)
	signal.Notify(signals)
	signal.Notify(ends, unix.SIGCHLD)
	s := supervisor{path: path, args: os.Args[1:], events: burst}
	os.Exit(s.run(signals, ends))
}

// supervisor runs one program.
type supervisor struct {
	path string
	args []string

	child    int // process ID; 0: it does not run
	started  time.Time
	stopping bool // it has been asked to end
	record   restarts.Record
	events   float64 // that may be written now
	killed   int     // processes that were killed for want of memory, as of its start
}

// run returns the exit code. One goroutine does everything, so that no signal reaches another process with the ID of a
// child that was reaped.
func (s *supervisor) run(signals, ends <-chan os.Signal) int {
	begin := time.After(0)
	for {
		select {
		case <-begin:
			if err := s.start(); err != nil {
				s.ended("cannot be started: " + err.Error())
				begin = time.After(apart)
			}
		case <-ends:
			end, ok := s.reap()
			if !ok {
				continue
			}
			if code, over := s.over(end); over {
				return code
			}
			if end.ExitStatus() != restarts.Again {
				s.ended(s.reason(end))
			}
			begin = time.After(pause(time.Since(s.started)))
		case sig := <-signals:
			if done := s.pass(sig.(unix.Signal)); done {
				return 0
			}
		}
	}
}

// pause is the time until the next start of a program that ran for a while.
func pause(ran time.Duration) time.Duration { return max(0, apart-ran) }

func (s *supervisor) start() (err error) {
	s.started, s.killed = time.Now(), outOfMemoryKills()
	s.child, err = syscall.ForkExec(s.path, s.args, &syscall.ProcAttr{Files: []uintptr{0, 1, 2},
		Env: append(os.Environ(), restarts.Variable+"="+s.record.String()),
		Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}})
	return err
}

// reap removes all processes that have ended. Process 1 of a container inherits orphans.
func (s *supervisor) reap() (end unix.WaitStatus, ok bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return end, ok
		}
		if pid == s.child {
			s.child, end, ok = 0, status, true
		}
	}
}

// over reports whether the end of the program is final, and returns the exit code then.
func (s *supervisor) over(end unix.WaitStatus) (code int, over bool) {
	if end.Signaled() {
		return 128 + int(end.Signal()), s.stopping
	}
	code = end.ExitStatus()
	return code, s.stopping || code == 0 || code == 2
}

// pass passes a signal on. It reports whether nothing runs that could end.
func (s *supervisor) pass(sig unix.Signal) (done bool) {
	switch sig {
	case unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE: // of this process: its children, its runtime, its standard error
		return false
	}
	s.stopping = s.stopping || sig == unix.SIGTERM || sig == unix.SIGINT
	if s.child == 0 {
		return s.stopping
	}
	_ = unix.Kill(s.child, sig)
	return false
}

func (s *supervisor) reason(end unix.WaitStatus) string {
	switch {
	case !end.Signaled():
		return "exit code " + strconv.Itoa(end.ExitStatus())
	case end.Signal() == unix.SIGKILL && outOfMemoryKills() > s.killed:
		return "SIGKILL, out of memory"
	}
	return unix.SignalName(end.Signal())
}

// ended records an end that is not final, and logs it as manxd logs.
func (s *supervisor) ended(reason string) {
	s.remember(reason, time.Now())
	fmt.Fprintf(os.Stderr, `{"level":"error","time":%q,"logger":"supervise","msg":"%s ended unexpectedly and is `+
		`started again","reason":%q,"restarts":%d}`+"\n", s.record.Last.Format("2006-01-02T15:04:05.000Z0700"),
		filepath.Base(s.path), reason, s.record.Count)
}

func (s *supervisor) remember(reason string, now time.Time) {
	if s.record.Count > 0 {
		s.events = min(burst, s.events+float64(now.Sub(s.record.Last))/float64(refillEvery))
	}
	s.record = restarts.Record{Count: s.record.Count + 1, Last: now, Reason: reason, Report: s.events >= 1}
	if s.record.Report {
		s.events--
	}
}

// outOfMemoryKills is how many processes of this container the kernel has killed because their memory is limited: of
// cgroup version 2, or 1.
func outOfMemoryKills() int {
	for _, file := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		text, _ := os.ReadFile(file)
		for line := range bytes.Lines(text) {
			var n int
			if _, err := fmt.Sscanf(string(line), "oom_kill %d", &n); err == nil {
				return n
			}
		}
	}
	return 0
}
