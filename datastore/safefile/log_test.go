package safefile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// logScene is a log whose clock the test sets.
type logScene struct {
	*testing.T
	dir  string
	log  *Log
	when time.Time
}

func newLogScene(t *testing.T, c LogConfig) *logScene {
	s := &logScene{T: t, dir: t.TempDir(), when: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	c.Path, c.Mode = filepath.Join(s.dir, "flow.log"), 0o640
	s.log = NewLog(c)
	s.log.now = func() time.Time { return s.when }
	t.Cleanup(func() { s.log.Close() })
	return s
}

func (s *logScene) write(text string) {
	s.Helper()
	if n, err := s.log.Write([]byte(text)); err != nil || n != len(text) {
		s.Fatalf("%d, %v", n, err)
	}
}

func (s *logScene) files(want ...string) {
	s.Helper()
	list, err := os.ReadDir(s.dir)
	must(s.T, err)
	var have []string
	for _, e := range list {
		content, err := os.ReadFile(filepath.Join(s.dir, e.Name()))
		must(s.T, err)
		have = append(have, e.Name()+": "+string(content))
	}
	if got, want := strings.Join(have, ", "), strings.Join(want, ", "); got != want {
		s.Fatalf("files are %q\nwant %q", got, want)
	}
}

func TestALogBeginsANewFileAndKeepsSoMany(t *testing.T) {
	s := newLogScene(t, LogConfig{MaxSize: 4, MaxFiles: 2})
	for _, text := range []string{"aa", "bb", "cc", "dddddd", "ee", "f"} {
		s.write(text)
		s.when = s.when.Add(time.Second)
	}
	s.files("flow-2026-01-02T03-04-08.000.log: cc", "flow-2026-01-02T03-04-09.000.log: dddddd", "flow.log: eef")
	info, err := os.Stat(filepath.Join(s.dir, "flow.log"))
	must(t, err)
	if info.Mode() != 0o640 {
		t.Errorf("mode is %v", info.Mode())
	}
}

func TestALogDropsWhatIsTooOldAndNothingElse(t *testing.T) {
	s := newLogScene(t, LogConfig{MaxSize: 1, MaxAge: time.Hour})
	must(t, os.WriteFile(filepath.Join(s.dir, "flow-notes.log"), []byte("mine"), 0o644))
	s.write("a")
	s.write("b")
	s.when = s.when.Add(2 * time.Hour)
	s.write("c")
	s.files("flow-2026-01-02T05-04-05.000.log: b", "flow-notes.log: mine", "flow.log: c")
}

func TestALogGoesOnWhereItsFileIsMovedAway(t *testing.T) {
	s := newLogScene(t, LogConfig{})
	path := filepath.Join(s.dir, "flow.log")
	s.write("a")
	must(t, os.Rename(path, path+".1"))
	must(t, s.log.Reopen()) // as logrotate does, with SIGHUP
	s.write("b")
	s.files("flow.log: b", "flow.log.1: a")
	must(t, os.Remove(path)) // without a notification
	s.when = s.when.Add(checkEvery)
	s.write("c")
	s.files("flow.log: c", "flow.log.1: a")
}

func TestALogRecoversWhenItsFolderComesBack(t *testing.T) {
	s := newLogScene(t, LogConfig{})
	s.write("a")
	must(t, os.Rename(s.dir, s.dir+"-away"))
	s.when = s.when.Add(checkEvery)
	for range 2 {
		if _, err := s.log.Write([]byte("lost")); err == nil ||
			!strings.Contains(err.Error(), "no such file or directory") {
			t.Fatalf("without its folder: %v", err)
		}
	}
	must(t, os.Rename(s.dir+"-away", s.dir))
	s.write("b")
	s.files("flow.log: ab")
}

// On a full disk a line may be cut; the next one begins on a line of its own.
func TestALogRecoversWhenTheDiskHasRoomAgain(t *testing.T) {
	needRoot(t)
	s := newLogScene(t, LogConfig{})
	if err := unix.Mount("test", s.dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("no file system of its own here: ", err)
	}
	t.Cleanup(func() { s.log.Close(); must(t, unix.Unmount(s.dir, 0)) })
	line := strings.Repeat("x", 999) + "\n"
	var err error
	written := 0
	for ; err == nil && written < 1000; written++ {
		_, err = s.log.Write([]byte(line))
	}
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("after %d lines: %v", written, err)
	}
	must(t, unix.Mount("test", s.dir, "tmpfs", unix.MS_REMOUNT, "size=256k"))
	s.write("whole\n")
	content, err := os.ReadFile(filepath.Join(s.dir, "flow.log"))
	must(t, err)
	if lines := strings.Split(strings.TrimSpace(string(content)), "\n"); lines[len(lines)-1] != "whole" {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
}

// Several calls of a CNI plugin write to one log at once: no line is lost or cut.
func TestProcessesShareALog(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			l := NewLog(LogConfig{Path: filepath.Join(dir, "cni.log"), Mode: 0o600, MaxSize: 2000})
			defer l.Close()
			for n := range 200 {
				text := []byte(fmt.Sprintf("writer %d line %d\n", i, n))
				if _, err := l.Write(text); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	files, err := filepath.Glob(filepath.Join(dir, "cni*.log"))
	must(t, err)
	seen := map[string]int{}
	for _, f := range files {
		content, err := os.ReadFile(f)
		must(t, err)
		for line := range strings.Lines(string(content)) {
			seen[line]++
		}
	}
	if len(seen) != 800 || len(files) < 3 {
		t.Errorf("%d different lines in %d files, want 800 in several", len(seen), len(files))
	}
}
