package world

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// live is a running manxctl explain --live.
type live struct {
	t           *testing.T
	Cmd         *exec.Cmd
	out, errors strings.Builder
	read        sync.WaitGroup
}

// StartLiveExplain starts the command and returns when it waits for packets.
func StartLiveExplain(t *testing.T, n *lab.Node, args ...string) *live {
	t.Helper()
	x := &live{t: t}
	x.Cmd = namespace.Command(n.Namespace, filepath.Join(Binaries(t), "manxctl"),
		append([]string{"--socket=" + n.Socket(), "explain", "--live", "--live-timeout=60s"}, args...)...)
	out, err := x.Cmd.StdoutPipe()
	Must(t, err)
	stderr, err := x.Cmd.StderrPipe()
	Must(t, err)
	Must(t, x.Cmd.Start())
	t.Cleanup(func() { _ = x.Cmd.Process.Kill() })
	waits, ended := make(chan bool, 1), make(chan bool)
	follow := func(from io.Reader, to *strings.Builder) {
		defer x.read.Done()
		for lines := bufio.NewReader(from); ; {
			line, err := lines.ReadString('\n')
			to.WriteString(line)
			if strings.HasSuffix(line, "; send one now\n") {
				waits <- true
			}
			if err != nil {
				return
			}
		}
	}
	x.read.Add(2)
	go follow(out, &x.out)
	go follow(stderr, &x.errors)
	go func() {
		x.read.Wait()
		close(ended)
	}()
	select {
	case <-waits:
	case <-ended:
		if strings.Contains(x.errors.String(), "which take Linux 5.12") {
			t.Skip(x.errors.String())
		}
		t.Fatalf("manxctl explain %v ended early: %s%s", args, x.out.String(), x.errors.String())
	}
	return x
}

// End waits for the end and requires an exit code and texts.
func (x *live) End(code int, texts ...string) string {
	x.t.Helper()
	x.read.Wait()
	_ = x.Cmd.Wait()
	out := x.out.String()
	if have := x.Cmd.ProcessState.ExitCode(); have != code {
		x.t.Errorf("exit code %d, want %d:\n%s%s", have, code, out, x.errors.String())
	}
	for _, want := range texts {
		if !strings.Contains(out+x.errors.String(), want) {
			x.t.Errorf("does not print %q:\n%s%s", want, out, x.errors.String())
		}
	}
	return out
}
