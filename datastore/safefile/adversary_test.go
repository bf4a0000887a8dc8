package safefile

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nobody is a user without any rights.
const nobody = 65534

// adversary is set for a copy of the test that runs as nobody and plants files in a folder until its standard input
// ends.
const adversary = "SAFEFILE_ADVERSARY"

func TestMain(m *testing.M) {
	if kind := os.Getenv(adversary); kind != "" {
		plantFiles(kind)
		return
	}
	os.Exit(m.Run())
}

// plantFiles creates a kind of file under a name, again and again. Its arguments are FOLDER NAME TARGET.
func plantFiles(kind string) {
	dir, name, target := os.Args[1], filepath.Join(os.Args[1], os.Args[2]), os.Args[3]
	once := func(temporary string) error {
		switch kind {
		case "symlink":
			return os.Symlink(target, temporary)
		case "hardlink":
			return os.Link(target, temporary)
		case "pipe":
			return unix.Mkfifo(temporary, 0o666)
		case "folder":
			return os.Mkdir(temporary, 0o777)
		case "file":
			return os.WriteFile(temporary, []byte("forged"), 0o666)
		}
		return fmt.Errorf("what is a %s?", kind)
	}
	ended := make(chan struct{})
	go func() { _, _ = bufio.NewReader(os.Stdin).ReadString(0); close(ended) }()
	for i := 0; ; i++ {
		temporary := filepath.Join(dir, fmt.Sprintf("adversary-%d", i))
		err := errors.Join(once(temporary), os.Rename(temporary, name))
		_ = os.RemoveAll(temporary)
		if i == 0 {
			if err != nil {
				fmt.Println("cannot:", err)
				return
			}
			fmt.Println("planted")
		}
		select {
		case <-ended:
			return
		default:
		}
	}
}

// startPlanting has nobody plant files until the returned function is called. ok is false where the host does not allow
// this.
func startPlanting(t *testing.T, kind, dir, name, target string) (stop func(), ok bool) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	binary := filepath.Join(open0711(t), "adversary") // the test's own is in a folder that nobody cannot read
	must(t, os.WriteFile(binary, self, 0o755))
	cmd := exec.Command(binary, dir, name, target)
	cmd.Env = append(os.Environ(), adversary+"="+kind)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	stop = func() { _ = stdin.Close(); _ = cmd.Wait() }
	if !strings.HasPrefix(line, "planted") {
		stop()
		return nil, false
	}
	return stop, true
}

// open0711 makes a folder of root below /tmp that every user may traverse.
func open0711(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "safefile-")
	must(t, err)
	must(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
}

// scene returns a folder of user nobody, and a file of root elsewhere.
func scene(t *testing.T) (dir, precious string) {
	t.Helper()
	needRoot(t)
	root := open0711(t)
	dir, precious = filepath.Join(root, "nobodys"), filepath.Join(root, "precious")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Chown(dir, nobody, nobody))
	must(t, os.WriteFile(precious, []byte("precious"), 0o666))
	must(t, os.Chmod(precious, 0o666)) // so that protected_hardlinks lets nobody link to it
	return dir, precious
}

func isPrecious(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "precious" {
		t.Fatalf("root's file is now %q, %v", content, err)
	}
	info, err := os.Stat(path)
	must(t, err)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 || info.Mode().Perm() != 0o666 {
		t.Fatalf("root's file has owner %d and mode %v now", st.Uid, info.Mode())
	}
}

// Another user creates and exchanges entries under the name of a file all the time. No replacement, append, read or
// removal of the file follows them elsewhere.
func TestNothingIsWrittenThroughWhatOthersPlant(t *testing.T) {
	for _, kind := range []string{"symlink", "hardlink", "pipe", "folder", "file"} {
		t.Run(kind, func(t *testing.T) {
			dir, precious := scene(t)
			stop, ok := startPlanting(t, kind, dir, "status", precious)
			if !ok {
				t.Skipf("nobody may not make a %s here", kind)
			}
			defer stop()
			d, err := Open(dir)
			must(t, err)
			defer d.Close()
			log := NewLog(LogConfig{Path: filepath.Join(dir, "status"), Mode: 0o640, MaxSize: 10, MaxFiles: 1})
			for range 500 {
				_ = d.Replace("status", []byte("overwritten"), 0o644)
				if f, err := d.openOwn("status", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
					_, _ = f.WriteString("appended")
					_ = f.Close()
				}
				if content, err := d.Read("status", 1<<10); err == nil && kind == "symlink" &&
					string(content) == "precious" {
					t.Fatal("a link was read through")
				}
				_, _ = log.Write([]byte("a line for the log\n"))
				_ = d.Remove("status")
				isPrecious(t, precious)
			}
		})
	}
}

// The reason of a refusal names the file and its owner.
func TestRefusalsTellWhatIsInTheWay(t *testing.T) {
	for kind, want := range map[string]string{
		"symlink": "is a symbolic link of user 65534", "pipe": "is a named pipe of user 65534",
		"folder": "is a folder of user 65534",
		"file":   "belongs to user 65534", "hardlink": "2 names (hard links)",
	} {
		t.Run(kind, func(t *testing.T) {
			dir, precious := scene(t)
			stop, ok := startPlanting(t, kind, dir, "log", precious)
			if !ok {
				t.Skipf("nobody may not make a %s here", kind)
			}
			stop()
			d, err := Open(dir)
			must(t, err)
			defer d.Close()
			if _, err := d.openOwn("log", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("opened for appending: %v, want %q", err, want)
			}
			if kind == "hardlink" { // nobody's link goes, root's file stays
				must(t, d.Remove("log"))
				isPrecious(t, precious)
				return
			}
			if err := d.Remove("log"); err == nil || !strings.Contains(err.Error(), "left alone") {
				t.Errorf("removed: %v", err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "log")); err != nil {
				t.Errorf("the thing of another user is gone: %v", err)
			}
		})
	}
}

func TestAPathIsFollowedOnlyWhereOthersCannotTurnItAside(t *testing.T) {
	dir, _ := scene(t)
	root := filepath.Dir(dir)
	must(t, os.Mkdir(filepath.Join(root, "target"), 0o755))
	must(t, os.Symlink("target", filepath.Join(root, "roots")))
	must(t, os.Symlink("../nobodys/../target", filepath.Join(root, "target", "roundabout")))
	must(t, os.Symlink("loop", filepath.Join(root, "loop")))
	theirs := filepath.Join(dir, "theirs")
	must(t, os.Symlink(filepath.Join(root, "target"), theirs))
	must(t, os.Lchown(theirs, nobody, nobody))
	planted := filepath.Join(dir, "planted") // root's, but nobody could have moved it there
	must(t, os.Symlink(filepath.Join(root, "target"), planted))
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o644))
	for _, x := range []struct{ path, want string }{
		{filepath.Join(root, "roots"), ""},
		{filepath.Join(root, "target", "roundabout", "new"), ""},
		{filepath.Join(root, "loop"), "too many levels of symbolic links"},
		{theirs, "is a symbolic link of user 65534 and is not followed"},
		{filepath.Join(theirs, "below"), "is a symbolic link of user 65534 and is not followed"},
		{planted, "is a symbolic link and is not followed: the folder " + dir + " belongs to user 65534"},
		{filepath.Join(root, "file", "below"), "not a directory"},
	} {
		d, err := Make(x.path, 0o755)
		if err == nil {
			d.Close()
		}
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", x.path, err, x.want)
		}
	}
	if list, _ := os.ReadDir(filepath.Join(root, "target")); len(list) != 2 || list[0].Name() != "new" {
		t.Errorf("there is %v, want new and roundabout", list)
	}
}

func TestCheckOwnedNamesWhoElseCouldWrite(t *testing.T) {
	dir, _ := scene(t)
	root := filepath.Dir(dir)
	for name, mode := range map[string]os.FileMode{"ours": 0o755, "group": 0o775, "everybody": 0o777,
		"sticky": 0o777 | os.ModeSticky} {
		path := filepath.Join(root, name)
		must(t, os.Mkdir(path, 0o755))
		must(t, os.Mkdir(filepath.Join(path, "below"), 0o755))
		must(t, os.Chmod(path, mode))
	}
	must(t, os.Mkdir(filepath.Join(root, "sticky", "theirs"), 0o755))
	must(t, os.Chown(filepath.Join(root, "sticky", "theirs"), nobody, nobody))
	must(t, os.Mkdir(filepath.Join(dir, "roots"), 0o755))
	for _, x := range []struct{ path, want string }{
		{"ours", ""},
		{"ours/below/missing/further", ""},
		{"group", "the group 0 may write in the folder " + root + "/group (mode 0775)"},
		{"group/below", "the group 0 may write in the folder " + root + "/group"},
		{"everybody/below", "everybody may write in the folder " + root + "/everybody (mode 0777)"},
		{"everybody/missing", "everybody may write"},
		{"sticky", ""},       // as the parent of a folder to be made
		{"sticky/below", ""}, // as /tmp: others cannot move root's folder away
		{"sticky/theirs", "belongs to user 65534"},
		{"nobodys", "the folder " + dir + " belongs to user 65534"},
		{"nobodys/roots", "the folder " + dir + " belongs to user 65534"},
	} {
		err := CheckOwned(filepath.Join(root, x.path))
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", x.path, err, x.want)
		}
	}
	d, err := Open(filepath.Join(root, "sticky"))
	must(t, err)
	defer d.Close()
	if err := d.CheckOwned(); err == nil || !strings.Contains(err.Error(), "everybody may write") {
		t.Errorf("files in a folder like /tmp: %v", err)
	}
}

// Another process renames a new file to the same name again and again: ReplaceIf never takes its place unread.
func TestReplaceIfLosesNoFileOfAnotherProcess(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "manx") // in memory, for many rounds
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	put := func(n int) error {
		return errors.Join(os.WriteFile(other, []byte(strconv.Itoa(n)), 0o600), os.Rename(other, path))
	}
	if err := put(0); err != nil {
		t.Fatal(err)
	}
	replaced := 0
	ended := make(chan error, 1)
	end := time.Now().Add(time.Second)
	rounds := 0
	go func() {
		for ; time.Now().Before(end); rounds++ {
			if text, ok := madeOf(path, rounds); !ok {
				ended <- fmt.Errorf("the file has %q and not what was made of %d", text, rounds)
				return
			}
			if err := put(rounds + 1); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for time.Now().Before(end) {
		was, err := Read(path, 100)
		if err != nil {
			t.Fatal(err)
		}
		number, _, _ := strings.Cut(string(was), " ")
		err = ReplaceIf(path, was, []byte(fmt.Sprint(number, " ", replaced)), 0o600)
		if err == nil {
			replaced++
		} else if !errors.Is(err, ErrChanged) {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if rounds < 1000 || replaced < 100 {
		t.Errorf("only %d rounds, %d replacements", rounds, replaced)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceIf(path, []byte("x"), []byte("y"), 0o600); !errors.Is(err, ErrChanged) {
		t.Errorf("of a file that has gone: %v", err)
	}
	for _, want := range []error{nil, ErrChanged} {
		if err := ReplaceIf(path, nil, []byte("y"), 0o600); !errors.Is(err, want) {
			t.Errorf("of a file that must not be there: %v, want %v", err, want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// madeOf reports whether a file begins with the number. An older file lies there for a moment before ReplaceIf puts the
// newer one back.
func madeOf(path string, number int) (text []byte, ok bool) {
	for range 1000 {
		text, _ = os.ReadFile(path)
		if have, _, _ := strings.Cut(string(text), " "); have == strconv.Itoa(number) {
			return text, true
		}
	}
	return text, false
}
