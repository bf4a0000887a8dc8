package embedded

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/safefile"
)

// connectEnv names the socket that TestConnecting tries to connect to.
const connectEnv = "MANX_TEST_CONNECT"

// TestConnecting is an unprivileged process that connects again and again until its standard input ends.
func TestConnecting(t *testing.T) {
	path := os.Getenv(connectEnv)
	if path == "" {
		t.Skip("TestSocketIsNeverOpen runs this")
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	os.Stdout.WriteString("READY\n")
	for {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		if unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == nil {
			os.Stdout.WriteString("CONNECTED\n")
			os.Exit(0)
		}
		_ = unix.Close(fd)
	}
}

// The socket is closed to others from the moment it has its name. The test makes thousands of sockets with an umask of
// 0, while another user tries to connect all the time.
func TestSocketIsNeverOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user wants root")
	}
	dir, err := os.MkdirTemp("", "socket-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, socket := filepath.Join(dir, "test"), filepath.Join(dir, "s")
	program, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(self, program, 0o755)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Umask(unix.Umask(0))
	cmd := exec.Command(self, "-test.run=^TestConnecting$")
	cmd.Env, cmd.Dir = append(os.Environ(), connectEnv+"="+socket), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdout := bufio.NewReader(out)
	if line, err := stdout.ReadString('\n'); line != "READY\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for range 3_000 {
		l, err := safefile.Listen(socket, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	in.Close()
	rest, _ := io.ReadAll(stdout)
	if cmd.Wait(); strings.Contains(string(rest), "CONNECTED") {
		t.Error("an unprivileged user connected to the socket")
	}
}
