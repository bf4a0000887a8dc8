package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command runs a program to its end and returns its output; the error holds that too.
func command(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// Process is a program that runs in the background.
type Process struct {
	Name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	once sync.Once
}

// start runs cmd in the background; its output goes to w, or to a file in dir.
func (l *Lab) start(name, dir string, cmd *exec.Cmd) (*Process, error) {
	var w io.Writer = l.Spec.Log
	if w == nil {
		f, err := os.OpenFile(dir+"/"+name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		w = f
	}
	cmd.Stdout, cmd.Stderr = w, w
	// In its own process group, so that Ctrl-C in a terminal does not reach it before the lab is removed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	l.mu.Lock()
	l.processes = append(l.processes, p)
	l.mu.Unlock()
	return p, nil
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.once.Do(func() { _ = p.cmd.Process.Kill() })
	<-p.done
}

// Stop sends SIGTERM to the process, kills it after the timeout, and returns how it ended.
func (p *Process) Stop(timeout time.Duration) error {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(timeout):
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, timeout)
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Patience is how many times slower than usual this machine is: MANX_PATIENCE, or 1. Waits last longer by this factor.
func Patience() int {
	n, err := strconv.Atoi(os.Getenv("MANX_PATIENCE"))
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// Eventually calls check until it returns nil; at the end of the time it returns the last error.
func Eventually(timeout time.Duration, check func() error) error {
	patience := time.Duration(Patience())
	end := time.Now().Add(timeout * patience)
	for {
		err := check()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond * patience)
	}
}
