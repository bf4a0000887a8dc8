// Package namespace makes network namespaces with ip-netns(8), runs programs and functions in them, and removes them:
// the one place for tests, benchmarks and the lab.
package namespace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// folder has a file for each namespace.
const folder = "/run/netns"

// patience bounds a run of ip(8).
const patience = time.Minute

// Path is the file of a namespace, for CNI and netlink sockets.
func Path(name string) string { return filepath.Join(folder, name) }

// Add makes a namespace whose loopback interface is up.
func Add(name string) error {
	if err := ip("netns", "add", name); err != nil {
		return err
	}
	return ip("-n", name, "link", "set", "lo", "up")
}

// Remove ends the processes in a namespace with SIGKILL, and deletes it.
func Remove(name string) error {
	if pids, err := run("ip", "netns", "pids", name); err == nil {
		for word := range strings.FieldsSeq(pids) {
			if pid, err := strconv.Atoi(word); err == nil && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	return ip("netns", "del", name)
}

// List returns the names of the namespaces that begin with a prefix.
func List(prefix string) (names []string, err error) {
	files, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), prefix) {
			names = append(names, f.Name())
		}
	}
	return names, err
}

// Command is the command that runs a program in a namespace. ip(8) replaces itself with the program, so that the
// process ID is the program's.
func Command(name, program string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", name, program}, args...)...)
}

// Batch runs many commands of ip(8) in a namespace, at once and in order.
func Batch(name string, lines ...string) error {
	cmd := exec.Command("ip", "-n", name, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip -n %s -batch: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// Inside calls f on a thread that is in a namespace. Sockets that f opens stay in that namespace; goroutines that f
// starts are not in it.
func Inside(name string, f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
		if unix.Gettid() == os.Getpid() {
			// The main thread does not end, and the namespace of a process is that of its main thread. While this
			// goroutine holds the main thread, the next goroutine gets another one.
			err = Inside(name, f)
			runtime.UnlockOSThread()
			return
		}
		var file *os.File
		if file, err = os.Open(Path(name)); err != nil {
			return
		}
		err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		_ = file.Close()
		if err != nil {
			err = fmt.Errorf("enter network namespace %s: %w", name, err)
			return
		}
		f()
	}()
	<-done
	return err
}

func ip(args ...string) error {
	_, err := run("ip", args...)
	return err
}

// run runs a program to its end and returns its output; the error holds that too.
func run(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}
