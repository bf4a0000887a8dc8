package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/daemon/restarts"
)

const patience = 30 * time.Second

// TestMain is manx-supervise where a test starts this program as such.
func TestMain(m *testing.M) {
	if os.Getenv("MANX_TEST_SUPERVISE") != "" {
		main()
	}
	os.Exit(m.Run())
}

// supervised is manx-supervise with a shell script as its program.
type supervised struct {
	*exec.Cmd
	stdout bytes.Buffer
	dir    string // $DIR of the script, with a file of standard error
}

// supervise starts it; flags are of clone(2).
func supervise(t *testing.T, flags uintptr, script string) *supervised {
	t.Helper()
	if flags != 0 && os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	s := &supervised{Cmd: exec.Command(os.Args[0], "sh", "-c", script), dir: t.TempDir()}
	s.Env = append(os.Environ(), "MANX_TEST_SUPERVISE=1", "DIR="+s.dir)
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.Stdout, s.Stderr = &s.stdout, log
	s.SysProcAttr = &unix.SysProcAttr{Cloneflags: flags, Pdeathsig: unix.SIGKILL}
	s.WaitDelay = time.Second
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Process.Kill() })
	return s
}

// log returns its standard error so far.
func (s *supervised) log() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(text)
}

// code waits for its end, and returns the exit code.
func (s *supervised) code(t *testing.T) int {
	t.Helper()
	late := time.AfterFunc(patience, func() { _ = s.Process.Kill() })
	defer late.Stop()
	_ = s.Wait()
	return s.ProcessState.ExitCode()
}

// await waits until the program has made a file in $DIR, and returns its content.
func (s *supervised) await(t *testing.T, name string) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(filepath.Join(s.dir, name)); err == nil && len(text) > 0 {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("no file %s; standard error: %s", name, s.log())
	return ""
}

func (s *supervised) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	if err := s.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// It starts the program again after each way to end unexpectedly, at once if it ran for a second, tells it and the log
// the reason, and ends with a setting that can never work. A start that the program asked for does not count.
func TestCrash(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	s := supervise(t, 0, `date +%s.%N >>"$DIR/starts"
		[ -e "$DIR/again" ] || { >"$DIR/again"; exit 75; }
		echo "$MANX_SUPERVISED"; case $MANX_SUPERVISED in
		0) sleep 1; kill -SEGV $$;;
		1*) kill -KILL $$;;
		2*) exit 1;;
		*) exit 2;; esac`)
	if code := s.code(t); code != 2 {
		t.Errorf("exit code %d", code)
	}
	var reasons, logged []string
	for line := range strings.Lines(s.stdout.String()) {
		r, err := restarts.Parse(strings.TrimSpace(line))
		if err != nil || r.Count != len(reasons) || r.Count > 0 && (!r.Report || r.Last.Before(begin) ||
			r.Last.After(time.Now())) {
			t.Errorf("%+v, %v", r, err)
		}
		reasons = append(reasons, r.Reason)
	}
	for line := range strings.Lines(s.log()) {
		var l struct {
			Level, Time, Logger, Msg, Reason string
			Restarts                         int
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Level != "error" || l.Logger != "supervise" ||
			l.Time == "" || l.Msg != "sh ended unexpectedly and is started again" || l.Restarts != len(logged)+1 {
			t.Errorf("%q: %v", line, err)
		}
		logged = append(logged, l.Reason)
	}
	want := []string{"SIGSEGV", "SIGKILL", "exit code 1"}
	if !slices.Equal(reasons, append([]string{""}, want...)) || !slices.Equal(logged, want) {
		t.Errorf("the program got %q, the log %q", reasons, logged)
	}
	var at []float64
	for _, text := range strings.Fields(s.await(t, "starts")) {
		var x float64
		if _, err := fmt.Sscan(text, &x); err != nil {
			t.Fatal(err)
		}
		at = append(at, x)
	}
	for i := 1; i < len(at); i++ {
		if apart := at[i] - at[i-1]; apart < 0.9 {
			t.Errorf("start %d comes %.3f s after the one before", i, apart)
		}
	}
}

func TestPause(t *testing.T) {
	for ran, want := range map[time.Duration]time.Duration{0: time.Second,
		300 * time.Millisecond: 700 * time.Millisecond, time.Second: 0, time.Hour: 0} {
		if got := pause(ran); got != want {
			t.Errorf("a pause of %s after %s", got, ran)
		}
	}
}

// A program that crashes each second does not flood the API server with Events.
func TestEventsAreBounded(t *testing.T) {
	s, now := supervisor{events: burst}, time.Now()
	reported := func(n int, before time.Duration) (reports int) {
		for range n {
			now = now.Add(before)
			s.remember("SIGSEGV", now)
			if s.record.Report {
				reports++
			}
		}
		return reports
	}
	if n := reported(100, time.Second); n != burst {
		t.Errorf("%d of 100 crashes are reported", n)
	}
	if n := reported(240, time.Second); n != 2 {
		t.Errorf("%d of 240 crashes, one a second, are reported later", n)
	}
	if n := reported(3, time.Hour); n != 3 {
		t.Errorf("%d of 3 crashes, one an hour, are reported", n)
	}
}

// Ends that are no crash are the end of the container.
func TestEnd(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 2": 2} {
		if code := supervise(t, 0, script).code(t); code != want {
			t.Errorf("%s: exit code %d", script, code)
		}
	}
	cmd := exec.Command(os.Args[0], "no-such-program")
	cmd.Env = append(os.Environ(), "MANX_TEST_SUPERVISE=1")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 ||
		!strings.Contains(string(out), "no-such-program") {
		t.Errorf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

// waiting is a script that waits for signals.
const waiting = `echo $$ >"$DIR/up"; while :; do sleep 0.05; done`

func TestSignals(t *testing.T) {
	t.Parallel()
	for _, flags := range []uintptr{0, unix.CLONE_NEWPID} { // in a container it is process 1
		t.Run(fmt.Sprintf("flags %x", flags), func(t *testing.T) {
			s := supervise(t, flags, `trap 'echo yes >"$DIR/hup"' HUP; trap 'exit 7' TERM; `+waiting)
			s.await(t, "up")
			s.signal(t, unix.SIGHUP)
			s.await(t, "hup")
			s.signal(t, unix.SIGTERM)
			if code := s.code(t); code != 7 || s.log() != "" {
				t.Errorf("SIGTERM: exit code %d, %s", code, s.log())
			}
			s = supervise(t, flags, waiting)
			s.await(t, "up")
			s.signal(t, unix.SIGINT)
			if code := s.code(t); code != 128+2 || s.log() != "" {
				t.Errorf("SIGINT: exit code %d, %s", code, s.log())
			}
			// Between a crash and the next start.
			s = supervise(t, flags, `case $MANX_SUPERVISED in 0) kill -ABRT $$;; esac; exit 99`)
			for end := time.Now().Add(patience); s.log() == "" && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			s.signal(t, unix.SIGTERM)
			if code := s.code(t); code != 0 || strings.Count(s.log(), "\n") != 1 {
				t.Errorf("SIGTERM in the pause: exit code %d, %s", code, s.log())
			}
		})
	}
}

// If the parent is killed, its program dies, even one that is stopped: as process 1 of a container and elsewhere.
func TestParentIsKilled(t *testing.T) {
	t.Parallel()
	for _, flags := range []uintptr{0, unix.CLONE_NEWPID} {
		s := supervise(t, flags, `mkfifo "$DIR/alive"; echo yes >"$DIR/up"; exec 5>"$DIR/alive"; kill -STOP $$`)
		s.await(t, "up")
		alive, err := os.Open(filepath.Join(s.dir, "alive")) // the program has the other end
		if err != nil {
			t.Fatal(err)
		}
		defer alive.Close()
		if err := s.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		end := make(chan error, 1)
		go func() { _, err := alive.Read(make([]byte, 1)); end <- err }()
		select {
		case <-end: // end of file: no process has the other end any more
		case <-time.After(patience):
			t.Errorf("flags %x: the program outlives its parent", flags)
		}
	}
}

// Process 1 reaps orphans, and the program's output is not touched.
func TestOrphansAndOutput(t *testing.T) {
	t.Parallel()
	s := supervise(t, unix.CLONE_NEWPID, `printf 'a\0\377\n'; printf 'b\n' >&2
		for i in 1 2 3 4 5; do sh -c 'sleep 0.1 & '; done; sleep 0.5; echo yes >"$DIR/up"; exec sleep 60`)
	s.await(t, "up")
	pid := fmt.Sprint(s.Process.Pid)
	children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil || len(strings.Fields(string(children))) != 1 {
		t.Errorf("children: %q, %v", children, err)
	}
	s.signal(t, unix.SIGTERM)
	s.code(t)
	if s.stdout.String() != "a\x00\xff\n" || s.log() != "b\n" {
		t.Errorf("output %q, %q", s.stdout.String(), s.log())
	}
}

// It takes little of the memory that a node has for Manx.
func TestMemory(t *testing.T) {
	program, err := filepath.Abs("../../bin/manx-supervise")
	if _, statErr := os.Stat(program); err != nil || statErr != nil {
		t.Skip("run `make programs`:", err, statErr)
	}
	cmd := exec.Command(program, "sleep", "60")
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := fmt.Sprint(cmd.Process.Pid)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if children, _ := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children")); len(children) > 0 {
			break
		}
	}
	status, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	if err != nil {
		t.Fatal(err)
	}
	var rss int
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &rss); err == nil {
			break
		}
	}
	if rss == 0 || rss > 6000 {
		t.Errorf("it takes %d kB", rss)
	}
}
